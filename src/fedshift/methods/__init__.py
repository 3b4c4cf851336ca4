"""One page for each published method, and the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.core.method import Method

INDEXING = "client2vec"  # the method whose index `fedshift index` makes unless another is named
METHODS: Catalogue[Method] = Catalogue(
    "METHODS",
    __name__,
    kind="method",
    base="fedshift.core.method:Method",
    entries={
        "centralised": ".references:Centralised",
        "single": ".references:Single",
        "fedavg": ".fedavg:FedAvg",
        "fedavg-again": ".references:FedAvgAgain",
        "fedprox": ".fedprox:FedProx",
        "fedbn": ".fedbn:FedBN",
        "fedsr": ".fedsr:FedSR",
        "fedl2r": ".fedsr:FedL2R",
        "fedcmi": ".fedsr:FedCMI",
        "fedcir": ".fedcir:FedCiR",
        "fedreg": ".fedcir:FedReg",
        "fedalign": ".fedcir:FedAlign",
        "fraug": ".fraug:FRAug",
        "fraug-code": ".fraug_code:FRAugCode",
        "head-retraining": ".head_retraining:HeadRetraining",
        "client2vec": ".client2vec.client2vec:Client2Vec",
        "fedpin": ".fedpin:FedPIN",
        "fedpin-lambda-0": ".fedpin:FedPINLambda0",
        "fedpin-gamma-0": ".fedpin:FedPINGamma0",
        "fedpin-gm": ".fedpin_global:GlobalModel",
        "fedpin-gm-ft": ".fedpin_global:FineTuned",
        "fedpin-gm-l2": ".fedpin:Anchored",
        "ditto": ".ditto:Ditto",
        "pfedavg": ".pfedavg:PFedAvg",
        "pfedme": ".pfedme:PFedMe",
        "ftfa": ".ftfa:FTFA",
        "fedrep": ".fedrep:FedRep",
        "partialfed": ".partialfed:PartialFed",
        "partialfed-adaptive": ".partialfed:PartialFedAdaptive",
        "fedrod": ".fedrod:FedRoD",
        "fedpac": ".fedpac:FedPAC",
        "fedsdr": ".fedsdr:FedSDR",
        "fedavgm": ".fedopt:FedAvgM",
        "fedadagrad": ".fedopt:FedAdagrad",
        "fedadam": ".fedopt:FedAdam",
        "fedyogi": ".fedopt:FedYogi",
        "feddyn": ".feddyn:FedDyn",
        "scaffold": ".scaffold:SCAFFOLD",
        "drfa": ".drfa:DRFA",
        "moon": ".moon:MOON",
        "fedlc": ".fedlc:FedLC",
        "fediir": ".fediir:FedIIR",
        "fedproc": ".fedproc:FedProc",
        "fedgen": ".fedgen:FedGen",
        "fedadg": ".fedadg:FedADG",
    },
)
