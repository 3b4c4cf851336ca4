"""A run on the coordinator's machine: rounds, records and checkpoints, over any link.

The run folder is the same as a simulation's. Each message costs seconds, so a model is scored in the message with the
next order; a record is therefore written when the next round's answers have arrived, and only the last record needs an
extra message. With ``train.patience`` every record does, as there may be no next round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedshift.core.messages import Order
from fedshift.core.setup import Round, Setup
from fedshift.deployment.agreement import Agreement
from fedshift.deployment.flower import Away, Link
from fedshift.deployment.journal import Doubts, Journal, Scoring
from fedshift.deployment.leaving import CATEGORIES, refusal, refused
from fedshift.deployment.members import ROSTER, Arrival, Members, Roster, as_received, refuses
from fedshift.deployment.wire import Done, Failed, Joined, Reason, Work
from fedshift.engines.choice import open_engine, requested_engine
from fedshift.engines.engine import Engine, ServerJob
from fedshift.errors import FedshiftError, Problems
from fedshift.rounds.coordinator import Received, Request
from fedshift.rounds.outliers import GuardedCoordinator, Limits
from fedshift.runs.checkpoint import Weights, current_weights
from fedshift.runs.collapse import notes_on_collapse
from fedshift.runs.events import PlannedStage, Progress, RunEvents
from fedshift.runs.locks import locked
from fedshift.runs.recorder import Recorder
from fedshift.runs.run import EVENTS, Run
from fedshift.runs.simulation import choose_device

RUNS = "runs"
_LOG = " Its log.jsonl has the whole error."
_ADVICE: Mapping[Reason, str] = {  # about a site that cannot take part
    "models": " Raise evaluate.every in every experiment.toml, or ask the site to raise max_models in its site.toml.",
    "experiment": " Give every member the same experiment.toml and federation.toml, and the same plugins.",
    "error": _LOG,
    "state": _LOG,
}


def coordinate(folder: Path, link: Link, progress: Progress) -> Run:
    """Run the experiment of a coordinator's folder, or resume it from its last checkpoint."""
    agreement = Agreement.read(folder)
    run = Run(folder / RUNS / agreement.run)
    if run.finished:
        progress.reused(run.path.name)
        return run
    with locked(run.path):
        if run.finished:  # by another process meanwhile
            return run
        if not run.has_started:
            Run.create(agreement.experiment, run.path, host="federation")
        run.check_is(agreement.experiment.fingerprint)
        setup = agreement.setup(choose_device(agreement.experiment.run.device))
        choice = requested_engine(setup, agreement.experiment.run.replace(engine="sequential"))
        with open_engine(choice, progress.note) as engine:
            _FederatedRun(agreement, setup, run, link, engine, progress).carry_out()
    return run


class _GoesBackError(Exception):
    """The coordinator restarts from an earlier checkpoint."""


class _FederatedRun:
    """A run in progress."""

    def __init__(
        self, agreement: Agreement, setup: Setup, folder: Run, link: Link, engine: Engine, progress: Progress
    ) -> None:
        self.agreement, self.setup, self.folder, self.link, self.engine = agreement, setup, folder, link, engine
        self.read = agreement.parts_of_model(setup)
        self.sites = agreement.federation.sites
        self.called = f"Flower with {len(self.sites)} sites"  # in timings.jsonl
        self.scoring: Scoring | None = None  # of the model that waits for scores, if any
        self.scored: Weights | None = None  # that model's
        self._go_back()
        coordinator = self.coordinator
        self.display = RunEvents(folder.path.name, progress, folder.path / EVENTS, self.position)
        self.display.begin(
            [  # a round's work is counted in answers here, since only sites know their steps
                PlannedStage(
                    name=stage.name,
                    rounds=coordinator.rounds_of(stage),
                    steps=len(stage.exchanges) * coordinator.cohort(stage),
                )
                for stage in setup.stages
            ]
        )

    @property
    def position(self) -> int:
        return self.coordinator.position

    def carry_out(self) -> None:
        """Run to the end, if necessary from an earlier checkpoint."""
        roster = Roster(self.agreement.folder / ROSTER / self.agreement.run)
        try:
            while True:
                self.members = Members(self.agreement, self.setup, self.link, roster, self.display, self.samples)
                self.refusing = set[str]()  # who refused the last order
                try:
                    self._resume()
                    break
                except _GoesBackError:
                    self._go_back()
        except Exception as error:
            self.display.failed(str(error))
            raise
        self.recorder.write_times(self.called)
        self.recorder.finish(self._notes())
        self.recorder.keep_only(self.position)
        self.display.end()

    def _resume(self) -> None:
        """Run the remaining rounds."""
        if self.scoring is not None or self.position < len(self.coordinator.schedule):
            self._join()
        while self.position < len(self.coordinator.schedule):
            clients = tuple(self.agreement.clients.values())
            self.members.wait_for(clients, self._fewest(len(clients)), self._fewest(len(clients)))
            self._round()
        self._score()

    # Who takes part -------------------------------------------------------------------------------

    def _fewest(self, requested: int) -> int:
        least = self.setup.train.min_answers
        return 1 if least == "all" else math.ceil(least * requested)

    def _join(self) -> None:
        """Check that every site can take part.

        Before the first round any problem of a site must be fixed; later only problems that no site can fix end the
        run.
        """
        strict = self.setup.train.min_answers == "all"
        fewest = len(self.sites) if strict and not self.position else self._fewest(len(self.sites))
        self.members.wait_for(self.sites, len(self.sites), fewest)
        problems = Problems("sites cannot take part")
        for site, reply in self.members.join(self.sites).items():
            if isinstance(reply, Joined | Away):
                continue
            what = [each for each in CATEGORIES if isinstance(reply, Failed) and each in reply.what]
            if isinstance(reply, Failed) and reply.reason == "policy" and refused(self.setup, what):
                problems.add(refusal(self.setup, site, what))
            elif refuses(reply) or strict or not self.position:
                why = "sent no reply to the request to join" if isinstance(reply, Done) else str(reply)
                advice = _ADVICE.get(reply.reason, "") if isinstance(reply, Failed) else ""
                problems.add(FedshiftError(f"The site '{site}' {why}.{advice}"))
        problems.check()

    # A round --------------------------------------------------------------------------------------

    def _round(self) -> None:
        """Run the next round and save its result."""
        round, started = self.coordinator.next_round, time.perf_counter()
        self.display.begin_round(round)
        asking = self.coordinator.round()
        journal, place = Journal(self.folder.path, self.position), 0
        orders, received = list[Order](), list[Received]()
        with suppress(StopIteration):  # the round is over
            request: Request = next(asking)
            while True:
                if isinstance(request, ServerJob):
                    try:
                        served = self.engine.serve(request)
                    except Exception as error:  # which is the coordinator's to judge
                        request = asking.throw(error)
                    else:
                        request = asking.send(served)
                    continue
                if orders:  # the exchange whose answers are aggregated now
                    journal.add(place - 1, orders, received)
                orders, received = request, journal.read(place, request) or self._order(round, request)
                request, place = asking.send(received), place + 1
        self.display.round(self.position, *self.coordinator.sent)
        self.recorder.count(time.perf_counter() - started, "")
        if self.setup.scored(round):
            self.recorder.write_times(self.called)
            self.scoring = Scoring.of(self.coordinator.record(round), self.coordinator, self.agreement)
            self.scored = current_weights(self.coordinator, self.read)
            if self.setup.train.patience != "off":  # which decides whether there is a next round
                if orders:  # what is merged must not change once a site has seen the model
                    journal.add(place - 1, orders, received)
                self._score()
        self._save()

    def _score(self) -> None:
        if self.scoring is not None:
            self.members.wait_for(self.sites, len(self.sites), self._fewest(len(self.sites)))
            replies = self.members.ask({site: self._work(site) for site in self.scoring.orders})
            self._judge(replies)
            self._note_scores(replies)

    def _order(self, round: Round, orders: Sequence[Order]) -> list[Received]:
        """Send orders, together with a model to score, and return the answers."""
        names = self.coordinator.names
        by_site = {names[order.client]: order for order in orders}
        scored = self.scoring.orders if self.scoring else {}
        exchange = orders[0].exchange if orders else ""
        self.display.begin_task(exchange, len(orders), len(orders), *self.coordinator.sent)
        requested = [site for site in self.sites if site in by_site or site in scored]
        replies = self.members.ask({site: self._work(site, by_site.get(site)) for site in requested})
        self._judge(replies, exchange)
        self._check_refusals({site: replies[site] for site in by_site})
        self._note_scores(replies)
        return [as_received(order, names[order.client], replies[names[order.client]]) for order in orders]

    def _judge(self, arrived: Mapping[str, Arrival], exchange: str = "") -> None:
        """Go back to a checkpoint if most sites report that the newest model is broken.

        The site with the largest update has no vote.

        Args:
            arrived: the results of requests with the model.
            exchange: the exchange, if the requests had an order.
        """
        worked = {site for site, each in arrived.items() if isinstance(each, Done) and (each.answer or each.scores)}
        diverged = {site for site, each in arrived.items() if isinstance(each, Failed) and each.reason == "diverged"}
        suspect = self.doubts.next_of(self.coordinator.suspects)
        if suspect is not None:
            name = self.coordinator.names[suspect.client]
            if len(diverged - {name}) > len(worked - {name}):
                why = (
                    f"{', '.join(sorted(diverged))} cannot work with the model: round {suspect.position} of the run is "
                    f"repeated without the answer of {name}, the largest of its cohort"
                )
                self.members.notify("coordinator", "goes back", why)
                Journal(self.folder.path, self.position).remove(this_too=True)
                self.doubts.go_back(suspect)
                sound = self.doubts.sound  # the position whose checkpoint becomes the newest
                self.recorder.amend(sound, self.recorder.saved[sound].host | {"doubts": self.doubts.model_dump()})
                self.recorder.keep_only(sound)
                raise _GoesBackError
        # Later exchanges of a round are sent a model that no checkpoint has yet.
        if worked and (not exchange or exchange == self.coordinator.next_round.stage.exchanges[0].name):
            self.doubts.works(self.position)

    def _check_refusals(self, arrived: Mapping[str, Arrival]) -> None:
        """Raise an error if most sites refuse their orders, since they would refuse the next ones as well.

        In a repeated round they may: a site that answered an order of it refuses its replacement.
        """
        for site, each in arrived.items():
            if isinstance(each, Failed) and each.reason == "order":
                self.refusing.add(site)
            else:
                self.refusing.discard(site)
        if 2 * len(self.refusing) > len(self.sites) and not self.doubts.tried:
            name = self.agreement.run
            raise FedshiftError(
                f"{', '.join(sorted(self.refusing))} refuse the orders of round {self.position + 1} of the run: a site "
                "answers one order at each position, and they have answered others, for example because the folder "
                f"of the run was removed or is an old copy. To restart the run, ask each site to move its "
                f"'state/{name}' away, and remove '{ROSTER}/{name}' here."
            )

    def _work(self, site: str, order: Order | None = None) -> Work:
        score = self.scoring.orders.get(site) if self.scoring else None
        number = self.position + (order is not None)
        saved = min(self.recorder.saved)
        return Work(**self.members.address(site), position=number, saved=saved, order=order, score=score)

    def _note_scores(self, arrived: Mapping[str, Arrival]) -> None:
        """Complete the record that waits for scores, if any."""
        scoring, self.scoring = self.scoring, None
        if scoring is None:
            return
        record = scoring.completed(arrived)
        if {row["role"] for row in record["environments"]} == {"validation", "test"}:
            self.recorder.record(record, self.scored)
            self.display.evaluated(record)
        else:
            why = f"after round {record['round']}: no site scored validation and test environments"
            self.members.notify("coordinator", "not scored", why)
            self.coordinator.missing[:0] = record.get("missing", [])  # which the next record has then
        if self.position in self.recorder.saved:
            self.recorder.amend(self.position, self._host(), recorded=True)

    # Resuming --------------------------------------------------------------------------------------

    def _go_back(self) -> None:
        """Return to the newest checkpoint; before the first round a checkpoint is written, so there is always one."""
        checkpoint, federation = self.folder.checkpoint, self.agreement.federation
        self.samples = dict[int, int]()  # of the clients that have joined
        limits = Limits(federation.norm_factor, self.samples)
        self.coordinator = GuardedCoordinator(self.setup, self.agreement.clients, limits, self._report_excluded)
        self.recorder = Recorder(self.folder, self.coordinator, self.read)
        host = checkpoint.host if checkpoint else {}
        self.doubts = Doubts.model_validate(host.get("doubts", {}))
        self.recorder.begin(self.agreement.blueprint, keep=[self.doubts.sound])
        self.coordinator.suspects = self.doubts.merged
        for suspect in self.doubts.tried[-1:]:
            why = "with its answer, the largest of its cohort, most sites could not work with the model"
            self.coordinator.left_out = {(suspect.position, suspect.exchange, suspect.client): why}
        Journal(self.folder.path, self.position).remove()
        pending = host.get("pending")  # the record of the model that waits for scores, if any
        self.scoring = Scoring.of(pending, self.coordinator, self.agreement) if pending else None
        self.scored = current_weights(self.coordinator, self.read) if self.position else None
        if checkpoint is None:
            self._save()

    def _host(self) -> dict[str, Any]:
        pending = self.scoring.record if self.scoring else None
        return {"doubts": self.doubts.model_dump(), "pending": pending}

    def _save(self) -> None:
        self.doubts.renew(self.coordinator.suspects)
        self.coordinator.suspects = self.doubts.merged
        self.recorder.save({"engine": "federation"}, [self.folder.path.name], self._host())
        self.recorder.keep_only(self.position, self.doubts.sound)
        Journal(self.folder.path, self.position).remove()

    def _notes(self) -> list[str]:
        """Notes for readers of the results."""
        notes = [f"Run by {len(self.sites)} sites, each on its local data: {', '.join(self.sites)}."]
        if kept := sorted(name for name in self.read if self.setup.parts[name].scope == "client"):
            notes.append(f"{', '.join(kept)} of each model stayed at its site; the weights here are what sites share.")
        if factor := self.agreement.federation.norm_factor:
            notes.append(f"An answer of more than {factor:g} times the norm that is usual in its cohort is not merged.")
        records = self.recorder.records
        if not records:
            notes.append("No site has scored both validation and test environments, so there is no record.")
        elif lacking := records[-1].get("unscored"):
            names = ", ".join(sorted({each["site"] for each in lacking}))
            notes.append(f"The last evaluation lacks scores of {names}; records.jsonl has the reasons.")
        notes += [*self.setup.notes_on_rates, *self.setup.method.notes(self.coordinator.state)]
        return [*notes, *notes_on_collapse(self.setup, self.agreement.blueprint, records)]

    def _report_excluded(self, site: str, why: str, about: Mapping[str, Any]) -> None:
        self.members.notify(site, "left out", why, **about)
