"""One page for each data set, the layouts of a user's own, and the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.datasets.dataset import Dataset

DATASETS: Catalogue[Dataset] = Catalogue(
    "DATASETS",
    __name__,
    kind="data set",
    base=".dataset:Dataset",
    entries={
        "rotated-mnist": ".mnist:RotatedMNIST",
        "folder": ".image_sets:ImageFolder",
        "parquet": ".image_sets:ParquetFile",
        "arrays": ".arrays:Arrays",
        "table": ".table_file:TableFile",
        "text": ".text:TextFile",
        "signals": ".signals:Signals",
        "medical": ".medical:Medical",
        "hub": ".image_sets:HubDataset",
        "colored-mnist": ".mnist:ColoredMNIST",
        "colored-fashion-mnist": ".mnist:ColoredFashionMNIST",
        "waterbird": ".waterbird:WaterBird",
        "digits": ".digits:Digits",
        "pacs": ".image_sets:PACS",
        "office-home": ".image_sets:OfficeHome",
        "office-caltech-10": ".image_sets:OfficeCaltech10",
        "domainnet": ".image_sets:DomainNet",
        "cifar10": ".image_sets:CIFAR10",
        "camelyon17": ".wilds:Camelyon17",
        "iwildcam": ".wilds:IWildCam",
        "watch": ".windows:Watch",
        "shakespeare": ".shakespeare:Shakespeare",
        "diabetes": ".sklearn_tables:Diabetes",
        "breast-cancer": ".sklearn_tables:BreastCancer",
        "heart": ".hospitals:Heart",
        "opt": ".hospitals:OPT",
        "breast": ".hospitals:Breast",
    },
)
