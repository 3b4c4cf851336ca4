r"""FedSR: domain generalisation by a simple representation.

Nguyen, Lim and Torr, FedSR: a simple and effective domain generalization method for federated learning, NeurIPS 2022.

The encoder gives a Gaussian :math:`p(z|x) = N(\mu(x), \sigma(x)^2)`. Two regularisers restrict the representation: its
norm (L2R, Eq. 10-11) and the information about x beyond y (CMI, Eq. 17-18 and 46). A client minimises (Eq. 9)

.. math::

    f &= \mathrm{CE}(h(z), y) + \alpha_{L2R}\, L2R + \alpha_{CMI}\, CMI, \qquad L2R = \|z\|_2^2 \\
    CMI &= D_{KL}(p(z|x) \,\|\, r(z|y)) = \sum_j \log \frac{\sigma_{y,j}}{\sigma_j}
        + \frac{\sigma_j^2 + (\mu_j - m_{y,j})^2}{2 \sigma_{y,j}^2} - \frac{1}{2}

with learned class Gaussians :math:`r(z|y) = N(m_y, \sigma_y^2)`. Prediction (Eq. 5) averages the softmax over samples
of z. ``fedl2r`` has the norm alone with a deterministic encoder, ``fedcmi`` the CMI alone.

**When to choose it.** For a domain that no client has, whose content occurs in training: +4.5 points over FedAvg on a
held-out angle of RotatedMNIST with the same digits (``fedl2r``, without the CMI term: +4.2; ``fedcir``: +4.2;
``feddg-ga``: +3.0; ``coral``: +3.1, not clear, and +5.9 on pooled data), but +1.3 with other digits and +0.9 on
held-out domains of frozen PACS features, neither clear. It gains nothing on the hospitals' tables.

**Unavailable clients.** As in FedAvg; :math:`r(z|y)` of scope ``client`` does not change on an absent client and is
trained on a late one.

**Choices.**

- :math:`\sigma = \mathrm{softplus}(s)` (public code), with one sample of z in training.
- ``l2r_form``: the paper's equation has the squared norm, the public code the norm. The published weights for PACS,
  OfficeHome and DomainNet were run with the norm, so these presets use it.
- ``reference_scope``: r(z|y) is a model parameter in the paper, hence averaged; the public code keeps it on each
  client. :math:`m_y` starts at 0 and :math:`\sigma_y` at softplus(1) (public code).
- ``cmi_scale``: the public code multiplies mu and sigma by one learnable scalar inside CMI.
- The default weights are published for PACS. RotatedMNIST's 0.1 and 0.3 need its small rate with kept momentum;
  elsewhere a model stays near chance.
- With ``cmi = 0`` the encoder is deterministic (Sec. 3.3.2), which is FedL2R.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.gaussian import Probabilistic, gaussian_kl
from fedshift.page import *


class ClassGaussians(nn.Module):
    """r(z|y) = N(m_y, sigma_y^2), one diagonal Gaussian for each class (Sec. 3.3.2)."""

    def __init__(self, classes: int, dim: int, scaled: bool) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, dim))
        self.spread = nn.Parameter(torch.ones(classes, dim))
        self.scale = nn.Parameter(torch.ones(())) if scaled else None

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each (B, dim), of the classes y (B,)."""
        return self.mean[y], F.softplus(self.spread)[y]


class FedSR(Probabilistic):
    """FedAvg with two regularisers of the representation: its norm, and its information about x beyond y."""

    paper: ClassVar[str] = "Nguyen, Lim and Torr, NeurIPS 2022, Eq. 9"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "rotated-mnist": {"l2r": 0.1, "cmi": 0.3},
        "pacs": {"l2r": 0.01, "cmi": 0.001, "l2r_form": "norm"},
        "office-home": {"l2r": 0.05, "cmi": 0.0005, "l2r_form": "norm"},
        "domainnet": {"l2r": 0.01, "cmi": 0.0005, "l2r_form": "norm"},
    }

    l2r: NonNegative = setting(
        0.01, help="weight of the norm of z", source="Eq. 9, 10-11; PACS", search=Range(1e-4, 1, log=True)
    )
    cmi: NonNegative = setting(
        0.001,
        help="weight of KL(p(z|x) || r(z|y)); 0 makes the encoder deterministic",
        source="Eq. 9, 17-18; PACS",
        search=Range(1e-5, 1, log=True),
    )
    l2r_form: Literal["squared", "norm"] = setting(
        "squared", help="||z||^2 (paper) or ||z|| (public code)", source="Eq. 10", search=("squared", "norm")
    )
    reference_scope: Literal["shared", "client"] = setting(
        "shared", help="whether r(z|y) is averaged (paper) or stays on the client (public code)", source="Sec. 3.3.2"
    )
    cmi_scale: bool = setting(False, help="a learnable scale of p(z|x) inside CMI (public code)")

    @property
    def probabilistic(self) -> bool:
        """Whether the encoder gives a distribution of z: if cmi > 0."""
        return self.cmi > 0

    def parts(self, model: ModelBuilder) -> dict[str, Part]:
        """A Gaussian encoder, a linear head and the class Gaussians r(z|y); FedAvg's parts if deterministic."""
        parts = super().parts(model)
        if self.probabilistic:
            parts["reference"] = Part(ClassGaussians(model.classes, model.dim, self.cmi_scale), self.reference_scope)
        return parts

    def moves(self) -> tuple[str, ...]:
        """All parts: r(z|y) is trained with p(z|x)."""
        return ("encoder", "head", "reference") if self.probabilistic else super().moves()

    def terms(self) -> dict[str, Term]:
        """The terms of Eq. 9."""
        return super().terms() | {"cmi": Term(self.information, self.cmi), "l2r": Term(self.norm, self.l2r)}

    def information(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """CMI, mean over the batch."""
        assert batch.mean is not None and batch.sigma is not None
        scale = net.of("reference")["scale"] if self.cmi_scale else 1.0
        return gaussian_kl(batch.mean * scale, batch.sigma * scale, *net.reference(batch.y))

    def norm(self, net: Net, batch: Batch, context: Context) -> Tensor:
        """L2R, the mean of ||z||^2 or ||z|| over the batch."""
        norm = batch.z.square().sum(dim=1) if self.l2r_form == "squared" else batch.z.norm(dim=1)
        return norm.mean()


class FedL2R(FedSR):
    """FedSR without CMI: a deterministic encoder and the norm of z; l2r = 0 is FedAvg."""

    paper: ClassVar[str] = "Nguyen, Lim and Torr, NeurIPS 2022, Eq. 9 with the CMI weight 0"

    cmi: NonNegative = fixed(0.0)
    reference_scope: Literal["shared", "client"] = fixed("shared")
    cmi_scale: bool = fixed(False)
    test_samples: WholeNumber = fixed(20)


class FedCMI(FedSR):
    """FedSR without the norm: CMI alone."""

    paper: ClassVar[str] = "Nguyen, Lim and Torr, NeurIPS 2022, Eq. 9 with the L2R weight 0"
    presets: ClassVar[dict[str, dict[str, object]]] = {
        "rotated-mnist": {"cmi": 0.3},
        "pacs": {"cmi": 0.01},
        "office-home": {"cmi": 0.0005},
        "domainnet": {"cmi": 0.005},
    }

    l2r: NonNegative = fixed(0.0)
    l2r_form: Literal["squared", "norm"] = fixed("squared")
