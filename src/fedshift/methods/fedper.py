"""FedPer: the base is averaged, the head is each client's own, and both are trained together.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated learning with personalization layers, arXiv 1912.00818, 2019,
Algorithms 1 and 2.

Choices:

- The personal part is the head alone (the paper: the last K_P layers, one to four blocks of a ResNet).
- All heads start from the same values.
- The mean of encoders is uniform; the paper's is by samples (``weighting = "samples"``).
- A client that never trained is given the mean of the clients' heads, which only a simulation can read.
- ``personal = "none"``: FedAvg.
- An absent client's head stands still and meets the newer encoder; a late one's has moved.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedshift.methods.personal import Divided
from fedshift.page import *


class FedPer(Divided):
    """FedAvg of the encoder, trained together with a head that stays on the client."""

    paper: ClassVar[str] = "Arivazhagan et al., arXiv 2019, Algorithms 1 and 2"

    personal: Literal["head", "none"] = setting(
        "head", help="the part that stays on the client; none: it is FedAvg", source="Sec. 3"
    )
