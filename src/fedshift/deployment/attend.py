"""A site's process: it reads a request, works on its local data, and replies.

A reply to a failure is one of a few fixed words; the error itself, which may quote a sample, stays in the site's log.
Every reply is written to ``sent.jsonl`` before it leaves.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedshift import content, files
from fedshift.clients.federated import FederatedData
from fedshift.core.contract import Category, ServerState
from fedshift.core.messages import Order, pack
from fedshift.core.setup import Round
from fedshift.core.state import ClientState
from fedshift.core.tensors import Tensors
from fedshift.deployment.agreement import EXPERIMENT, SITE
from fedshift.deployment.federation_toml import FEDERATION
from fedshift.deployment.keys import digest, make_proof
from fedshift.deployment.leaving import category, models_scored, of_requests, refusal, refused, without
from fedshift.deployment.sent import SENT, SentLog
from fedshift.deployment.site_data import MODEL, STATE, SiteFolder
from fedshift.deployment.turns import CannotError, Turn, Turns, check_score, check_turn
from fedshift.deployment.wire import (
    DECIMALS,
    MOST_LOSS,
    Done,
    Failed,
    Join,
    Joined,
    Reason,
    Reply,
    Request,
    SiteScore,
    Unscored,
    Work,
    read_request,
)
from fedshift.engines.choice import open_engine
from fedshift.errors import AuditError, DamagedError, DivergedError, FedshiftError
from fedshift.rounds.evaluation import Evaluation
from fedshift.rounds.message_checks import check_answer, first_not_finite
from fedshift.rounds.site import Site
from fedshift.rounds.versions import Versions
from fedshift.runs.schema import environment
from fedshift.written import moment

LOG = "log.jsonl"

_WORDS: tuple[tuple[type[Exception], Reason], ...] = (
    (DivergedError, "diverged"),
    (AuditError, "audit"),
    (DamagedError, "state"),
)


class Attendant:
    """Answers requests one after another; keeps what it has read of the site's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # "." has no name
        self._began, self._seconds = 0.0, dict[str, float]()
        self._read: list[str] = []  # digests of the files that ``site`` has read
        self.site = SiteFolder(self.folder)

    def answer(self, data: bytes) -> bytes:
        """The reply to a request, which is logged before it leaves.

        Raises:
            DiskError: the log could not be written, so the reply does not leave.
            DamagedError: the log is damaged, so the reply does not leave.
        """
        state = self.folder / STATE
        files.make_folder(state)
        state.chmod(0o700)  # it has what the client keeps
        with FileLock(state / ".lock"):
            request: Request | None = None
            turns: Turns | None = None
            self._began, self._seconds = time.perf_counter(), {}
            try:
                with self._timed("setup"):
                    self._forget_what_changed()
                    setup = self.site.setup
                with self._timed("request"):
                    request = read_request(data, of_requests(self.site.agreement, setup))
                turns = self.turns() if request.run == setup.run else None
                reply = self._reply(request, turns)
            except Exception as error:
                reply = self._failure(error)
            if request is not None and turns is not None:
                reply = replace(reply, proof=make_proof(turns.last_reply(request.known), data))
            with self._timed("reply"):
                sent = reply.to_bytes()
            self._write_down(request, reply, sent)
            if turns is not None:
                turns.replied(digest(sent))
            return sent

    def turns(self) -> Turns:
        """The requests of the run and the site's replies to them."""
        return Turns(self.folder / STATE / self.site.setup.run)

    # Requests --------------------------------------------------------------------------------------

    def _reply(self, request: Request, turns: Turns | None) -> Reply:
        if request.site != (mine := self.site.settings.name):
            raise CannotError("order", f"This site is '{mine}'; the request is for '{request.site}'.")
        if isinstance(request, Join) and (different := self.site.agreement.differences(request.settings)):
            known = tuple(name for name in different if name in request.settings)  # others are this site's business
            raise CannotError("experiment", f"The coordinator has other settings: {', '.join(different)}", known)
        if turns is None:
            raise CannotError("order", f"The run {request.run} is not this site's, {self.site.setup.run}.")
        if request.agreed != self.site.agreement.digest:
            raise CannotError("experiment", "The coordinator has other settings.")
        return self._join(turns) if isinstance(request, Join) else self._work(request, turns)

    def _join(self, turns: Turns) -> Joined:
        """Take part in a run."""
        self._check_policy()
        packages = environment().packages
        samples = sum(len(client.train) for client in self._loaded().clients)
        return Joined(
            self.site.settings.name,
            {name: packages[name] for name in ("fedshift", "torch")},
            turns.begin_session(),
            None if "count" in self.site.settings.refuse else samples,
        )

    def _work(self, work: Work, turns: Turns) -> Done:
        """Score a model, then work on an order."""
        order, model, scored = work.order, work.score, work.position - (work.order is not None)
        if work.session != turns.session:
            raise CannotError("session", f"The session {work.session} is not the newest, {turns.session}.")
        if work.saved > scored:
            raise CannotError("order", f"A checkpoint of {work.saved} rounds has more than the {scored} that are done.")
        client, before = self.site.client, Turn("score", scored)
        turn = Turn("order", work.position)
        if order is not None:
            turn = turn._replace(place=check_turn(self.site.setup, order, work.position, client))
        if model is not None:
            check_score(self.site.setup, model, scored, client)
        store = Versions(self.folder / STATE / self.site.setup.run, self.site.setup.run, self.site.setup.device)
        site = Site(self.site.setup, self._loaded(), store, audit=self.site.agreement.experiment.run.audit)
        done, unsent = Done(self.site.settings.name), model is not None and before not in turns.answered("score")
        if model is not None:
            store.begin(scored + 1)  # after all exchanges of the rounds that are done
            with self._timed("score"):
                done = turns.reply(before, model, partial(self._scored, site, model, turns, Turn("order", scored + 1)))
        if order is not None:
            store.at(turn.position, turn.place)
            try:
                with self._timed("order"):
                    answered = turns.reply(turn, order, partial(self._answered, site, store, order, turns, turn))
            except Exception:
                if unsent:  # its scores do not leave, so another model may take its place
                    turns.end(before, "failed")
                raise
            done = replace(done, answer=answered.answer)
        store.prune(work.saved)
        turns.prune(work.saved)
        return without(done, self.site.settings.refuse)  # which may be stricter than when a reply was kept

    def _answered(self, site: Site, store: Versions, order: Order, turns: Turns, turn: Turn) -> Done:
        """Work on an order, with the client's state of earlier rounds."""
        self._check_policy()
        _check_kept(site, order, turns, turn)
        with open_engine(self.site.engine) as engine:
            (answer,) = site.answers([order], engine)
        if isinstance(answer, Exception):
            raise answer
        _, exchange = self.site.setup.find(order.stage, order.exchange)
        try:
            check_answer(
                self.site.setup, answer, exchange, f"round {order.round}"
            )  # what is not declared does not leave
            _check_finite(store.left(order.client))
        except FedshiftError:
            store.set_aside(order.client)
            raise
        return Done(self.site.settings.name, answer)

    def _scored(self, site: Site, order: Order, turns: Turns, turn: Turn) -> Done:
        """Score the model of an order on every environment for which this site can build it."""
        _check_kept(site, order, turns, turn)
        client, stage = self.site.client, self.site.setup.find(order.stage, order.exchange)[0]
        if self._ends_with(order):
            kept = {} if client is None else site.state(client, order.down).tensors
            private = {f"client.{client}.{name}": tensor for name, tensor in kept.items()}
            files.write(self.folder / STATE / self.site.setup.run / MODEL, pack({**order.down, **private}))
        whole, evaluation = site.federated, Evaluation(site)
        unscored: dict[str, Unscored] = {}
        own = []
        for each in whole.environments:
            if evaluation.model_of(each) == "unseen":
                unscored[each.name] = "model"
            elif len(each.samples) < self.site.settings.min_scored:
                unscored[each.name] = "few"
            else:
                own.append(each)
        if not own:
            return Done(self.site.settings.name, unscored=unscored)
        alone = Evaluation(Site(self.site.setup, replace(whole, environments=own), site.store))
        state = ServerState(order.down)
        with open_engine(self.site.engine) as engine:
            rows = alone.rows(state, lambda client: order.down, Round(stage, order.round), engine)
        return Done(self.site.settings.name, scores=tuple(_score(row) for row in rows), unscored=unscored)

    def _ends_with(self, order: Order) -> bool:
        last = self.site.setup.stages[-1]
        return order.stage == last.name and (order.round == last.rounds or self.site.setup.train.patience != "off")

    def _check_policy(self) -> None:
        """Refuse a run that needs a message or score that the site's policy forbids; a held-out site sends none."""
        declared, most = models_scored(self.site.setup), self.site.settings.max_models
        if most and declared > most:
            why = f"The run scores {declared} models; max_models = {most} in site.toml."
            raise CannotError("models", why, (str(most),))
        if self.site.client is not None and refused(self.site.setup, self.site.settings.refuse):
            error = refusal(self.site.setup, self.site.settings.name, self.site.settings.refuse)
            raise CannotError("policy", str(error), self.site.settings.refuse)

    # What this site has ---------------------------------------------------------------------------

    def _forget_what_changed(self) -> None:
        now = [content.digest(self.folder / name) for name in (FEDERATION, EXPERIMENT, SITE)]
        if now != self._read:
            self._read, self.site = now, SiteFolder(self.folder)

    def _loaded(self) -> FederatedData:
        try:
            with self._timed("data"):
                return self.site.loaded()
        except FedshiftError as error:
            raise CannotError("data", str(error)) from error

    # What is written down -------------------------------------------------------------------------

    def _failure(self, error: Exception) -> Failed:
        """The fixed word for an error, whose text goes to the log."""
        site = self._name()
        if isinstance(error, CannotError):
            self.log("refused", str(error))
            return Failed(site, error.reason, error.what)
        if isinstance(error, FedshiftError):
            self.log("failed", str(error))
        else:
            self.log("failed", str(error), traceback="".join(traceback.format_exception(error)))
        return Failed(site, next((word for kind, word in _WORDS if isinstance(error, kind)), "error"))

    def _name(self) -> str:
        try:
            return self.site.settings.name
        except FedshiftError:
            return ""

    def _write_down(self, request: Request | None, reply: Reply, data: bytes) -> None:
        """Append a line to the list of sent messages, and to the log."""
        order = request.order if isinstance(request, Work) else None
        what = {Joined: "join", Done: "score" if order is None else "answer", Failed: "failure"}[type(reply)]
        run = "" if request is None else request.run
        with self._timed("sent.jsonl"):
            SentLog(self.folder / SENT).add(data, partial(self._category, order), run=run, what=what, trip=order)
        if not isinstance(reply, Failed):
            whole = round(time.perf_counter() - self._began, 3)
            trip = {} if order is None else {name: getattr(order, name) for name in ("stage", "round", "exchange")}
            self.log(what, bytes=len(data), **trip, seconds={**self._seconds, "all": whole})

    def _category(self, order: Order | None, name: str) -> Category:
        return category(self.site.setup, self.site.setup.find(order.stage, order.exchange)[1] if order else None, name)

    def log(self, what: str, why: str = "", **more: Any) -> None:
        line = {"when": moment(time.time()), "who": self.folder.name, "what": what, "why": why, **more}
        files.append(self.folder / LOG, json.dumps(line))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[what] = round(time.perf_counter() - started, 3)


def _check_kept(site: Site, order: Order, turns: Turns, turn: Turn) -> None:
    if order.client not in site.store.ids() and any(each < turn for each in turns.answered("order")):
        raise CannotError("state", f"What the client kept before round {order.round} is no longer here.")


def _check_finite(state: ClientState | None) -> None:
    if state is not None and (name := first_not_finite(Tensors(state.tensors))):
        raise DivergedError(f"'{name}', which the client keeps, is not finite.")


def _score(row: Mapping[str, Any]) -> SiteScore:
    """A row of a record with rounded scores: more decimals would reveal more about the samples.

    Raises:
        DivergedError: the loss is not finite.
    """
    loss = row["loss"]
    if not loss <= MOST_LOSS:  # nan is not, either
        raise DivergedError(f"The loss on '{row['environment']}' ({row['role']}) is {loss}.")
    metrics = {
        name: None if value is None else round(value, DECIMALS) for name, value in row.get("metrics", {}).items()
    }
    intervals = {name: tuple(round(end, DECIMALS) for end in ends) for name, ends in row.get("intervals", {}).items()}
    plain = {name: row[name] for name in ("environment", "role", "model", "models", "n")}
    numbers = {"accuracy": round(row["accuracy"], DECIMALS), "loss": round(max(loss, 0.0), DECIMALS)}
    return SiteScore(**plain, **numbers, metrics=metrics, intervals=intervals)
