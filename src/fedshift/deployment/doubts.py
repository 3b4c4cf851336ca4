"""What a coordinator can take back: the rounds since the newest model with which sites could work.

A merged model may pass every comparison of norms and still let all sites diverge. So the checkpoint of the newest model
that a site has scored, or trained on, stays beside that of the newest round. Where most sites report of a newer model
that it diverges, the coordinator goes back to the former and repeats the rounds after it without the answer that was
the largest for its cohort; if the model diverges again, without the next largest instead.

A checkpoint has the doubts of its time. To go back is to put those of now into the older one and to remove the newer,
so a coordinator that is killed in between finds the same sites diverging, and decides the same again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ConfigDict, Field, FiniteFloat

from fedshift.rounds.coordinator import Suspect
from fedshift.runs.schema import File, Size


class MergedAnswer(File):
    """An answer that was merged; see :class:`Suspect`."""

    position: Size
    exchange: str
    client: Size
    ratio: FiniteFloat


class Doubts(File):
    """The rounds of a run that may be taken back.

    Attributes:
        sound: after how many rounds the model was the newest with which a site could work.
        merged: what was merged since.
        tried: what was left out since, first to last; the last one still is.
    """

    model_config = ConfigDict(frozen=False, extra="forbid")

    sound: Size = 0
    merged: list[MergedAnswer] = Field(default_factory=list)
    tried: list[MergedAnswer] = Field(default_factory=list)

    @property
    def suspects(self) -> list[Suspect]:
        """The answers that were merged since the sound model, at the newest checkpoint."""
        return [Suspect(**vars(each)) for each in self.merged]

    @property
    def left_out(self) -> Suspect | None:
        """The answer that is left out when the rounds since the sound model are repeated, if they are."""
        return Suspect(**vars(self.tried[-1])) if self.tried else None

    def works(self, position: int) -> None:
        """A site could work with the model after so many rounds, so nothing before is taken back any more."""
        self.sound = position
        self.merged = [each for each in self.merged if each.position > position]
        self.tried = [each for each in self.tried if each.position > position]

    def renew(self, suspects: Sequence[Suspect]) -> None:
        """Keep, for the next checkpoint, which answers were merged since the sound model."""
        self.merged = [MergedAnswer(**vars(each)) for each in suspects if each.position > self.sound]

    def next_of(self, suspects: Sequence[Suspect]) -> Suspect | None:
        """The largest answer since the sound model that was not left out before; None where there is none."""
        tried = {(each.position, each.exchange, each.client) for each in self.tried}
        untried = (
            each
            for each in suspects
            if each.position > self.sound and (each.position, each.exchange, each.client) not in tried
        )
        return max(untried, key=lambda each: each.ratio, default=None)

    def go_back(self, without: Suspect) -> None:
        """Repeat the rounds after the sound model without an answer."""
        self.merged = []
        self.tried.append(MergedAnswer(**vars(without)))
