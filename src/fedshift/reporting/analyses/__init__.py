"""What can be measured of finished runs without training again: one page for each analysis, and the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.reporting.analyses.analysis import Analysis

ANALYSES: Catalogue[Analysis] = Catalogue(
    "ANALYSES",
    __name__,
    kind="analysis",
    base=".analysis:Analysis",
    entries={
        "a-distance": ".a_distance:ADistance",
        "calibration": ".calibration:Calibration",
        "cka": ".cka:CKA",
        "confusion": ".confusion:Confusion",
        "domain-gap": ".domain_gap:DomainGap",
        "grad-cam": ".grad_cam:GradCAM",
        "hardest": ".hardest:Hardest",
        "overhead": ".overhead:Overhead",
        "samples": ".sample_images:SampleImages",
        "similarity": ".similarity:Similarity",
        "tsne": ".tsne:TSNE",
        "uncertainty": ".uncertainty:Uncertainty",
    },
)
