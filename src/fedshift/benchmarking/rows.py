"""Which methods are rows unless others are named: the catalogue's, but no ablation and none that came later."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.errors import FedshiftError
from fedshift.methods import METHODS

BASE = "fedavg"  # with which rows are compared
ALL = "all"
ABLATIONS = {
    "fedl2r": "FedSR without CMI",
    "fedcmi": "FedSR without the norm",
    "fedreg": "FedCiR without the alignment",
    "fedalign": "FedCiR without generated representations",
    "fraug-code": "FRAug as its public code has it",
    "head-retraining": "the study that motivates FRAug, no federation",
    "fedpin-lambda-0": "FedPIN with lambda 0",
    "fedpin-gamma-0": "FedPIN with gamma 0",
    "fedpin-gm": "FedPIN's global model",
    "fedpin-gm-ft": "FedPIN's global model, fine-tuned",
    "fedpin-gm-l2": "FedPIN's global model as an anchor",
}
SINCE = ("fedadagrad", "fedadam", "fedyogi")  # the tables were published; name them to have them as rows


def rows(names: Sequence[str] | None = None) -> list[str]:
    """The methods of the benchmark; "all" among the names, as no names at all, stands for those of the package.

    Raises:
        FedshiftError: the names are none, or a method is not known, or named twice.
    """
    if names is not None and not names:
        raise FedshiftError(f"No method is named: give some, such as {BASE}, or '{ALL}' for the published ones.")
    left_out = {*ABLATIONS, *SINCE}
    published = [name for name in METHODS if name not in left_out and METHODS.get(name).built_in]
    found = [each for name in (names or [ALL]) for each in (published if name == ALL else [name])]
    for name in found:
        METHODS.get(name)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise FedshiftError(f"The method '{twice[0]}' is given twice; give each once ('{ALL}' has the published ones).")
    return found
