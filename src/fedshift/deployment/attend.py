"""A site at work: it reads a request, does what it asks on its own data, and replies.

Whatever goes wrong, the reply is one of a few fixed words. What an error says stays in the site's log, because it may
quote a sample. All that leaves is written down in ``sent.jsonl``, before it leaves.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedshift import files
from fedshift.coordinator.checks import check_answer, check_order
from fedshift.coordinator.schedule import Schedule
from fedshift.core.contract import Category, Round, ServerState
from fedshift.core.messages import Order
from fedshift.core.setup import Setup
from fedshift.deployment.agreement import Agreement, SiteSettings, read_site
from fedshift.deployment.leaving import METRICS_ARE, category
from fedshift.deployment.local import prepared, site_federation
from fedshift.deployment.model import keep_model
from fedshift.deployment.policy import refusal, refused, withheld, without
from fedshift.deployment.sent import SENT, Sent
from fedshift.deployment.turns import Turns
from fedshift.deployment.wire import (
    MEGABYTE,
    NOBODY,
    Done,
    Failed,
    Join,
    Joined,
    Reason,
    Reply,
    Request,
    Score,
    Session,
    Work,
    read_request,
)
from fedshift.engines.calibration import asked_for
from fedshift.engines.choice import Choice, open_engine
from fedshift.engines.engine import Engine
from fedshift.errors import AuditError, DamagedError, DivergedError, FedshiftError
from fedshift.evaluation.evaluation import Evaluation
from fedshift.federation.federation import Federation
from fedshift.runs.machine import environment
from fedshift.runs.schema import moment
from fedshift.simulation.simulation import choose_device
from fedshift.site.site import Site
from fedshift.site.versions import Versions

STATE, LOG, TURNS = "state", "log.jsonl", "turns.json"
AFTER_ALL = 10**6  # the place of scoring alone, after every exchange of a round


_WORDS: tuple[tuple[type[Exception], Reason], ...] = (
    (DivergedError, "diverged"),
    (AuditError, "audit"),
    (DamagedError, "state"),
)


class _CannotError(FedshiftError):
    """Why a site does not do what it is asked, in words that may leave."""

    def __init__(self, reason: Reason, text: str, what: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.reason, self.what = reason, what


class Attendant:
    """A site's folder, and what was read of it so far; it answers one request after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # "." has no name
        self._began, self._seconds = 0.0, dict[str, float]()

    def answer(self, data: bytes) -> bytes:
        """The reply to a request, which is written down before it leaves.

        Raises:
            DiskError: it could not be written down, so it does not leave.
            DamagedError: what was written down before is damaged, so it does not leave.
        """
        state = self.folder / STATE
        files.make_folder(state)
        state.chmod(0o700)  # it has a copy of the samples
        with FileLock(state / ".lock"):
            request: Request | None = None
            self._began, self._seconds = time.perf_counter(), {}
            try:
                with self._timed("request"):
                    request = read_request(data)
                reply = self._bounded(self._reply(request))
            except Exception as error:
                reply = self._failure(error)
            with self._timed("reply"):
                sent = reply.to_bytes()
            self._write_down(request, reply, sent)
            return sent

    def _bounded(self, reply: Reply) -> Reply:
        """A reply, or a failure where it is larger than a message may be."""
        largest = self.agreement.federation.largest * MEGABYTE if isinstance(reply, Done) else 0
        if not isinstance(reply, Done) or reply.answer is None or reply.answer.up.nbytes <= largest:
            return reply
        self.log("failed", f"The reply has {reply.answer.up.nbytes:,} bytes; federation.toml allows {largest:,}.")
        return Failed(self.settings.name, "error")

    # What is asked --------------------------------------------------------------------------------

    def _reply(self, request: Request) -> Reply:
        if request.site != self.settings.name:
            raise _CannotError("order", f"This site is '{self.settings.name}'; the request is for '{request.site}'.")
        if isinstance(request, Join):
            return self._join(request)
        return self._work(request)

    def _join(self, join: Join) -> Joined:
        """Whether this site can take part in a run."""
        if different := self.agreement.differences(join.agreed):
            known = tuple(name for name in different if name in join.agreed)  # others are this site's business
            raise _CannotError("experiment", f"The coordinator has otherwise: {', '.join(different)}", known)
        self._check_policy()
        self._begin(join.session)
        self._loaded()
        return Joined(self.settings.name, {name: environment()["packages"][name] for name in ("fedshift", "torch")})

    def _work(self, work: Work) -> Done:
        """Score a model, then carry out an order."""
        store, turns = self._begin(work.session)
        store.begin(work.position + 1)  # after all exchanges so far
        if work.score is not None:
            self._check_score(work, work.score, turns)
        if work.order is not None:
            store.at(work.position, self._take_turn(work, work.order, turns))
        store.prune(work.saved)
        site = Site(self.setup, self._loaded(), store, audit=self.agreement.experiment.run.audit)
        done = Done(self.settings.name)
        with open_engine(self._engine) as engine:
            if work.score is not None:
                with self._timed("score"):
                    done = self._scored(site, work.score, engine)
            if work.order is not None:
                with self._timed("order"):
                    done = self._carried_out(site, work.order, engine, done)
        return done

    def _carried_out(self, site: Site, order: Order, engine: Engine, done: Done) -> Done:
        self._check_policy()
        (answer,) = site.answers([order], engine)
        if isinstance(answer, Exception):
            raise answer
        _, exchange = self.setup.find(order.stage, order.exchange)
        check_answer(self.setup, answer, exchange, f"round {order.round}")  # what is not declared does not leave
        return replace(done, answer=replace(answer, telemetry=without(answer.telemetry, self.settings.refuse)))

    def _scored(self, site: Site, order: Order, engine: Engine) -> Done:
        """Score what an order brings on every environment whose model can be made here."""
        client = self.agreement.client(self.settings.name)
        stage, exchange = self.setup.find(order.stage, order.exchange)
        if client is not None:  # the target is sent more than any client is
            check_order(self.setup, order, exchange)
        if self._ends_with(order):
            kept = {} if client is None else site.state(client).tensors
            keep_model(self.folder / STATE / self.setup.run, order.down, client, kept)
        whole, evaluation = site.federation, Evaluation(site)
        own = [each for each in whole.environments if evaluation.whose(each) != "unseen"]
        unscored = tuple(each.name for each in whole.environments if evaluation.whose(each) == "unseen")
        if not own:
            return Done(self.settings.name, unscored=unscored)
        alone = Evaluation(Site(self.setup, replace(whole, environments=own), site.store))
        state = ServerState(order.down)
        rows = alone.rows(state, lambda client: order.down, Round(stage, order.round), engine)
        return Done(self.settings.name, scores=tuple(self._score(row) for row in rows), unscored=unscored)

    def _ends_with(self, order: Order) -> bool:
        """Whether a model is the run's last; where a stage may end early, any that is scored may be."""
        last = self.setup.stages[-1]
        return order.stage == last.name and (order.round == last.rounds or self.setup.train.patience != "off")

    def _score(self, row: Mapping[str, Any]) -> Score:
        """A row of a record, less what the policy withholds.

        Raises:
            DivergedError: the loss is not finite.
        """
        if not math.isfinite(row["loss"]):
            raise DivergedError(f"The loss on '{row['environment']}' ({row['role']}) is {row['loss']}.")
        told = {name: value for name, value in row.items() if name != "undefined"}  # which follows from the metrics
        left_out: dict[str, Any] = dict.fromkeys(withheld(self.settings.refuse))
        if METRICS_ARE in self.settings.refuse:
            left_out["metrics"] = {}
        return Score(**{**told, **left_out})

    def _check_policy(self) -> None:
        """Refuse a run that needs what this site does not send; of a target, which never trains, it needs nothing."""
        if self.agreement.client(self.settings.name) is not None and refused(self.setup, self.settings.refuse):
            error = refusal(self.setup, self.settings.name, self.settings.refuse)
            raise _CannotError("policy", str(error), self.settings.refuse)

    # What this site has ---------------------------------------------------------------------------

    @cached_property
    def agreement(self) -> Agreement:
        """What the members agreed on."""
        return Agreement.read(self.folder)

    @cached_property
    def settings(self) -> SiteSettings:
        """What the site says of itself."""
        return self._site[0]

    @cached_property
    def _site(self) -> tuple[SiteSettings, dict[str, Any]]:
        return read_site(self.folder)

    @cached_property
    def setup(self) -> Setup:
        """What it needs to work with the coordinator."""
        with self._timed("setup"):
            return self.agreement.setup(choose_device(self.settings.device))

    @cached_property
    def _engine(self) -> Choice:
        options = replace(self.agreement.experiment.run, engine="sequential", threads=self.settings.threads)
        return asked_for(self.setup, options)

    def _loaded(self) -> Federation:
        """The site's samples, read again only when what they are read from has changed."""
        try:
            with self._timed("data"):
                return self._federation
        except FedshiftError as error:
            raise _CannotError("data", str(error)) from error

    @cached_property
    def _federation(self) -> Federation:
        settings, data = self._site
        samples = prepared(self.agreement, settings, data, self.folder / STATE)
        return site_federation(self.agreement, settings, samples).to(self.setup.device)

    def _begin(self, session: Session) -> tuple[Versions, Turns]:
        """The client's states; those of rounds that a new session of the coordinator knows nothing of are removed."""
        if session.run != self.setup.run:
            raise _CannotError("order", f"The run {session.run} is not this site's, {self.setup.run}.")
        folder = self.folder / STATE / session.run
        store, turns = Versions(folder, session.run, self.setup.device), Turns(folder / TURNS)
        if turns.is_over(session.id):
            raise _CannotError("order", f"The session {session.id} has ended: its message came late, or again.")
        if session.agreed != self.agreement.digest:
            raise _CannotError("experiment", "The coordinator has agreed on something else.")
        if turns.is_new(session.id):
            store.go_back(session.start)
            turns.begin(session.id)
        return store, turns

    def _take_turn(self, work: Work, order: Order, turns: Turns) -> int:
        """The place of an order's exchange in its round.

        Raises:
            FedshiftError: the order is not for this site, none that a coordinator would give, or comes too late.
        """
        self._check_trip(order, self.agreement.client(self.settings.name))
        round = self._round(order, work.position)
        place = next((n for n, each in enumerate(round.stage.exchanges) if each.name == order.exchange), None)
        if place is None:
            raise _CannotError("order", f"The stage '{order.stage}' has no exchange '{order.exchange}'.")
        check_order(self.setup, order, round.stage.exchanges[place])
        if not turns.take(work.position, place):
            raise _CannotError("order", f"The order of round {order.round} came after a later one.")
        return place

    def _check_score(self, work: Work, score: Order, turns: Turns) -> None:
        """Refuse a model that is not for this site, of another round than the last, or that comes too late.

        Raises:
            FedshiftError: the message says which.
        """
        client = self.agreement.client(self.settings.name)
        self._check_trip(score, NOBODY if client is None else client)
        self._round(score, work.position - (work.order is not None))
        if work.order is None and not turns.take(work.position, AFTER_ALL):
            raise _CannotError("order", f"The model of round {score.round} came after a later order.")

    def _check_trip(self, order: Order, client: int | None) -> None:
        """Refuse what is not for this site's client."""
        if (order.run, order.client) != (self.setup.run, client):
            raise _CannotError("order", f"This is client {order.client} of the run {order.run}, not this site's.")

    def _round(self, order: Order, position: int) -> Round:
        """The round of an order, which must be that after which so many are done, or fewer where stages end early."""
        stage = next((stage for stage in self.setup.stages if stage.name == order.stage), None)
        if stage is not None and 1 <= order.round <= stage.rounds:
            planned = Schedule(self.setup.stages).start(stage) + order.round
            if position == planned or (self.setup.train.patience != "off" and order.round <= position < planned):
                return Round(stage, order.round)
        raise _CannotError("order", f"Round {order.round} of the stage '{order.stage}' is not the {position}th.")

    # What is written down -------------------------------------------------------------------------

    def _failure(self, error: Exception) -> Failed:
        """What is said of an error; all of it goes to the log."""
        site = self._name()
        if isinstance(error, _CannotError):
            self.log("refused", str(error))
            return Failed(site, error.reason, error.what)
        if isinstance(error, FedshiftError):
            self.log("failed", str(error))
        else:
            self.log("failed", str(error), traceback="".join(traceback.format_exception(error)))
        return Failed(site, next((word for kind, word in _WORDS if isinstance(error, kind)), "error"))

    def _name(self) -> str:
        """The site's name; empty where site.toml cannot be read, as a folder's name is nobody's business."""
        try:
            return self.settings.name
        except FedshiftError:
            return ""

    def _write_down(self, request: Request | None, reply: Reply, data: bytes) -> None:
        """A line in the list of all that left, and one in the log."""
        order = request.order if isinstance(request, Work) else None
        trip: dict[str, Any] = {}
        if order is not None:
            trip = {"stage": order.stage, "round": order.round, "exchange": order.exchange}
        what = {Joined: "join", Done: "score" if order is None else "answer", Failed: "failure"}[type(reply)]
        run = "" if request is None else request.session.run
        about = self._category_of(order) if isinstance(reply, Done) else _nothing
        with self._timed("sent.jsonl"):
            Sent(self.folder / SENT).add(data, about, run=run, what=what, **trip)
        if not isinstance(reply, Failed):
            whole = round(time.perf_counter() - self._began, 3)
            self.log(what, bytes=len(data), **trip, seconds={**self._seconds, "all": whole})

    def _category_of(self, order: Order | None) -> Callable[[str], Category]:
        """What tensors of a reply say, by name."""
        exchange = None if order is None else self.setup.find(order.stage, order.exchange)[1]
        return partial(category, self.setup, exchange)

    def log(self, what: str, why: str = "", **more: Any) -> None:
        """Write a line of the site's log."""
        line = {"when": moment(time.time()), "who": self.folder.name, "what": what, "why": why, **more}
        files.append(self.folder / LOG, json.dumps(line))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Note for the log how many seconds something takes."""
        started = time.perf_counter()
        yield
        self._seconds[what] = round(time.perf_counter() - started, 3)


def _nothing(name: str) -> Category:
    """The category of a tensor in a message that has none."""
    raise FedshiftError(f"'{name}' was not sent: such a message carries no tensor.")
