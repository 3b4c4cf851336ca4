"""One page for each published method, and the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue, Variant

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
        "fedprox": ".fedprox:FedProx",
        "fedbn": ".fedbn:FedBN",
        "fedsr": ".fedsr:FedSR",
        "fedl2r": Variant(
            of="fedsr",
            fixed={"cmi": 0.0},
            unused=("reference_scope", "cmi_scale", "test_samples"),
            help="FedSR without CMI: a deterministic encoder and the norm of z. With l2r = 0 it is FedAvg.",
            paper="Nguyen, Lim and Torr, NeurIPS 2022, Eq. 9 with the CMI weight 0",
        ),
        "fedcmi": Variant(
            of="fedsr",
            fixed={"l2r": 0.0},
            unused=("l2r_form",),
            help="FedSR without the norm: the conditional mutual information alone.",
            paper="Nguyen, Lim and Torr, NeurIPS 2022, Eq. 9 with the L2R weight 0",
            presets={
                "rotated-mnist": {"cmi": 0.3},
                "pacs": {"cmi": 0.01},
                "office-home": {"cmi": 0.0005},
                "domainnet": {"cmi": 0.005},
            },
        ),
        "fedcir": ".fedcir:FedCiR",
        "fedreg": Variant(
            of="fedcir",
            fixed={"l_align": 0.0},
            unused=("mle_samples", "sigma_floor"),
            help="FedCiR without the alignment: clients learn from generated representations alone.",
            paper="Li et al., IEEE TMC 2024, Eq. 18 with the weight of L_align 0",
        ),
        "fedalign": Variant(
            of="fedcir",
            fixed={"l_reg": 0.0},
            help="FedCiR without generated representations: clients align with the class Gaussians alone.",
            paper="Li et al., IEEE TMC 2024, Eq. 18 with the weight of L_reg 0",
        ),
        "fraug": ".fraug:FRAug",
        "fraug-code": ".fraug_code:FRAugCode",
        "head-retraining": ".head_retraining:HeadRetraining",
        "client2vec": ".client2vec.client2vec:Client2Vec",
        "fedpin": ".fedpin:FedPIN",
        "fedpin-lambda-0": Variant(
            of="fedpin",
            fixed={"lam": 0.0},
            unused=("anchor", "temperature"),
            help="FedPIN with lambda = 0: a personal model on its own, but for the variance of its features.",
            paper="Tang et al., ICML 2024, Table 2 (lambda = 0)",
        ),
        "fedpin-gamma-0": Variant(
            of="fedpin",
            fixed={"gamma": 0.0},
            help="FedPIN with gamma = 0: the contrast alone.",
            paper="Tang et al., ICML 2024, Table 2 (gamma = 0)",
        ),
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
        "fedavgm": ".fedavgm:FedAvgM",
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
