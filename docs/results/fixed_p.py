"""Client2Vec whose projection P stays as it was drawn, to show what use 3 does to the encoder; see client2vec.md."""

from __future__ import annotations

from dataclasses import replace

import fedshift
from fedshift.core.contract import Objective


@fedshift.METHODS.register("fixed-p")
class FixedP(fedshift.Client2Vec):
    """Client2Vec that does not train P."""

    def _extend_objective(self, objective: Objective) -> Objective:
        extended = super()._extend_objective(objective)
        return replace(extended, moves=tuple(part for part in extended.moves if part != "projector"))
