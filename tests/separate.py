"""A coordinator and sites as processes of their own, which exchange plain bytes through queues.

What a deployment does, in a few lines: the coordinator is given the experiment, the shape of a sample, the number of
classes and the clients' names, and never sees data; each site has the data of its own clients alone.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.core.messages import Answer, Order, pack
from fedshift.core.method import make_parts
from fedshift.core.model import ModelBuilder
from fedshift.core.setup import Setup
from fedshift.engines.engine import ServerJob
from fedshift.engines.sequential import Sequential
from fedshift.experiments import Experiment, load_plugins
from fedshift.rounds.coordinator import Coordinator
from fedshift.streams import Streams

PATIENCE = 300.0  # seconds, after which something hangs
PLUGIN = str(Path(__file__).parent / "tiny.py")


def setup_of(experiment: Experiment, shape: Sequence[int], classes: int, clients: int) -> Setup:
    """What both sides agree on, made without data."""
    streams = Streams(experiment.seed)
    model = ModelBuilder(experiment.model, tuple(shape), classes, streams, clients, environments=clients)
    parts, device = make_parts(experiment.method, model), torch.device("cpu")
    train, evaluate = experiment.train, experiment.evaluate
    names = tuple(map(str, range(classes)))
    return Setup("a run", experiment.method, model, parts, train, evaluate, streams, device, names)


def fingerprints(tensors: Sequence[Tensor]) -> set[str]:
    """Digests of tensors, and of each of their rows, as far as they hold several different numbers."""
    found = set()
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() > 3:
            plain = tensor.detach().float().contiguous().numpy()
            for each in (plain, *(plain if plain.ndim > 1 else ())):
                if len(set(each.flat[:64])) > 3:
                    found.add(blake2b(each.tobytes(), digest_size=8).hexdigest())
    return found


def every_tensor() -> list[Tensor]:
    """Every dense tensor that this process holds."""
    gc.collect()
    # Looked at by type: some lazy modules answer isinstance with an import.
    kinds = (Tensor, torch.nn.Parameter)
    return [thing for thing in gc.get_objects() if type(thing) in kinds and _readable(thing)]


def _readable(tensor: Tensor) -> bool:
    """Whether it has numbers: not so a tensor of a transform that has ended, which an error keeps alive, say."""
    try:
        return tensor.layout == torch.strided and tensor.data_ptr() != 0
    except RuntimeError:
        return False


# The coordinator's process --------------------------------------------------------------------------


def coordinate(inbox: Any, sites: Sequence[Any], report: Any) -> None:
    """Carry out runs, one after the other; ``sites`` are the inboxes of the sites."""
    torch.set_num_threads(1)
    load_plugins([PLUGIN])
    gc.freeze()  # what was there before any run is not looked through after each
    while (text := inbox.get()) is not None:
        about = json.loads(text)
        try:
            report.put(_run(about, inbox, sites))
        except BaseException as error:
            report.put(f"{type(error).__name__}: {error}".encode())
            raise


def _run(about: dict[str, Any], inbox: Any, sites: Sequence[Any]) -> bytes:
    experiment = Experiment.from_table(about["experiment"])
    names = {int(id): name for id, name in about["names"].items()}
    setup = setup_of(experiment, about["shape"], about["classes"], len(names))
    coordinator, engine, seen = Coordinator(setup, names), Sequential(), set[str]()

    def asked(orders: Sequence[Order], what: str) -> list[bytes]:
        for order in orders:
            sites[order.client % len(sites)].put((what, order.to_bytes()))
        given = dict(inbox.get() for _ in orders)  # in the order in which sites are ready
        return [given[order.client] for order in orders]

    for round in coordinator.schedule:
        asking = coordinator.round()
        request = next(asking)
        try:
            while True:
                if isinstance(request, ServerJob):
                    request = asking.send(engine.serve(request))
                else:
                    answers = [Answer.from_bytes(data) for data in asked(request, "work")]
                    request = asking.send(list(answers))
        except StopIteration:
            pass
        if round.number == round.stage.rounds:
            seen |= fingerprints(every_tensor())
    last = coordinator.schedule[-1]
    orders = coordinator.orders(last.stage.training, last, list(names))
    rows = [json.loads(data) for data in asked(orders, "score")]
    theirs = {f"fedshift.rounds.{name}" for name in ("site", "store", "audit", "simulation")}
    loaded = sorted(theirs & sys.modules.keys())
    told = {
        "rows": rows,
        "seen": sorted(seen),
        "loaded": loaded,
        "terms": coordinator.terms,
        "bytes": [coordinator.bytes_down, coordinator.bytes_up, coordinator.bytes_telemetry],
        "messages": coordinator.ledger.declaration(),
    }
    return pack(coordinator.state.tensors, {"told": json.dumps(told)})


# A site's process ---------------------------------------------------------------------------------


def attend(inbox: Any, coordinator: Any, report: Any) -> None:
    """Carry out orders on the data of some clients alone."""
    from fedshift.core.contract import Round, ServerState
    from fedshift.rounds.evaluation import Evaluation
    from fedshift.rounds.site import Site
    from fedshift.runs.simulation import make_federated

    torch.set_num_threads(1)
    load_plugins([PLUGIN])
    engine = Sequential()
    while (message := inbox.get()) is not None:
        what, data = message
        match what:
            case "begin":
                about = json.loads(data)
                experiment = Experiment.from_table(about["experiment"])
                mine = set(about["clients"])
                whole = make_federated(experiment)
                federation = replace(
                    whole,
                    clients=tuple(client for client in whole.clients if client.id in mine),
                    environments=tuple(each for each in whole.environments if each.client in mine),
                )
                setup = setup_of(experiment, about["shape"], about["classes"], len(about["names"]))
                site = Site(setup, federation)
                engine = Sequential()
            case "work":
                order = Order.from_bytes(data)
                (answer,) = site.answers([order], engine)
                if isinstance(answer, Exception):
                    raise answer
                coordinator.put((order.client, answer.to_bytes()))
            case "score":
                order = Order.from_bytes(data)
                of_client = [each for each in federation.environments if each.client == order.client]
                stage, _ = setup.find(order.stage, order.exchange)
                scored = Evaluation(Site(setup, replace(federation, environments=of_client), site.store))
                rows = scored.rows(
                    ServerState(), lambda client, down=order.down: down, Round(stage, order.round), engine
                )
                coordinator.put((order.client, json.dumps(rows).encode()))
            case "states":
                for client, state in site.store.items():
                    report.put((client, pack(state.flat())))


# All of them --------------------------------------------------------------------------------------


class Processes:
    """A coordinator's process and those of its sites, for one run after the other."""

    def __init__(self, sites: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "fedshift.rounds.coordinator", "fedshift.engines.sequential"])
        self.report, self._inbox = context.Queue(), context.Queue()
        self._sites = [context.Queue() for _ in range(sites)]
        jobs = [(coordinate, (self._inbox, self._sites, self.report))]
        jobs += [(attend, (inbox, self._inbox, self.report)) for inbox in self._sites]
        self._processes = [context.Process(target=target, args=arguments, daemon=True) for target, arguments in jobs]
        for process in self._processes:
            process.start()

    def run(self, about: dict[str, Any]) -> tuple[bytes, dict[int, bytes]]:
        """A whole run: the server's tensors at its end, and what each client keeps."""
        for number, inbox in enumerate(self._sites):
            clients = [int(id) for id in about["names"] if int(id) % len(self._sites) == number]
            inbox.put(("begin", json.dumps({**about, "clients": clients}).encode()))
        self._inbox.put(json.dumps(about))
        ended: bytes = self.report.get(timeout=PATIENCE)
        for inbox in self._sites:
            inbox.put(("states", b""))
        return ended, dict(self.report.get(timeout=PATIENCE) for _ in about["names"])

    def end(self) -> None:
        """Let every process end."""
        for inbox in (self._inbox, *self._sites):
            inbox.put(None)
        for process in self._processes:
            process.join(60)
            process.kill()


@contextmanager
def processes(sites: int) -> Iterator[Processes]:
    """Processes that are ended afterwards."""
    running = Processes(sites)
    try:
        yield running
    finally:
        running.end()
