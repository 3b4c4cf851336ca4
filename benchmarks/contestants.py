"""One contestant in a process of its own: it waits for "go N" on its standard input and answers with seconds.

Each is written as its documentation says one should, and where that leaves a choice, the faster one was taken:

* ``hand``: what one would write in a notebook; slices of tensors, no data loader, the default memory format.
* ``fedshift``: a simulation and an engine.
* ``pfl``: ``FederatedAveraging`` on a ``SimulatedBackend``; a user's data set holds just the samples of the round.
* ``fluke``: ``CentralizedFL`` with clients that forget their model and optimiser; models in memory; its loader is
  subclassed so that an epoch has the round's steps. Its ``run`` ends with one more broadcast to all clients, which is
  no part of a round: rounds are timed from inside, from the first one's start to the last one's end.
* ``flower``: ``run_simulation`` with a ``ServerApp`` that stays, and clients in Ray's actors, each of which makes the
  data and the network once. Rounds are timed around the strategy's ``start``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from by_hand import Count, train
from workloads import LR, MOMENTUM, WORKLOADS, Workload, order


@dataclass(frozen=True)
class Options:
    """How a contestant is run: a workload, threads, and (fedshift alone) an engine and a precision."""

    workload: Workload
    threads: int
    engine: str = "sequential"
    precision: str = "float32"


Serve = Callable[["Contestant"], None]


@dataclass
class Contestant:
    """Something that carries out rounds of FedAvg."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)

    options: Options
    count: Count = field(default_factory=Count)

    @property
    def workload(self) -> Workload:
        """What it works on."""
        return self.options.workload

    def host(self, serve: Serve) -> None:
        """Set everything up, and serve until the parent has had enough."""
        serve(self)

    def go(self, rounds: int) -> float:
        """Carry out some rounds; the seconds they took."""
        started = time.perf_counter()
        self.rounds(rounds)
        return time.perf_counter() - started

    def rounds(self, rounds: int) -> None:
        """Carry out some rounds."""
        raise NotImplementedError

    def weights(self) -> Sequence[Tensor]:
        """The global model's parameters, in the order of the workload's network."""
        raise NotImplementedError

    def note(self) -> str:
        """What a reader should know of how it was run."""
        return ""


class Hand(Contestant):
    """The loop of a notebook: load the global model, train, collect, average."""

    def host(self, serve: Serve) -> None:
        """Build the network once."""
        self.model = self.workload.model()
        self.data = self.workload.data()
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        serve(self)

    def rounds(self, rounds: int) -> None:
        """FedAvg."""
        work = self.workload
        x, y = self.data
        for _ in range(rounds):
            collected = []
            for client in torch.randperm(work.clients)[: work.cohort].sort().values.tolist():
                self.model.load_state_dict(self.state)
                train(self.model.train(), x[client], y[client], work, self.count)
                collected.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            self.state = {name: mean([one[name] for one in collected]) for name in self.state}

    def weights(self) -> Sequence[Tensor]:
        """Those of the averaged state."""
        return [self.state[name] for name, _ in self.model.named_parameters()]


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of tensors of one shape; counters are taken from the first."""
    return torch.stack(list(tensors)).mean(dim=0) if tensors[0].is_floating_point() else tensors[0]


class Fedshift(Contestant):
    """This library."""

    packages = ("fedshift", "torch")

    def host(self, serve: Serve) -> None:
        """A simulation that starts from the same weights as the others, and the engine that is asked for."""
        from fedshift.runs.simulation import Simulation  # noqa: PLC0415
        from ours import experiment, opened  # noqa: PLC0415  # the others' environments lack fedshift

        options = self.options
        self.simulation = Simulation(experiment(options.workload, options.precision, options.engine, options.threads))
        names = self._parameters()
        values = dict(zip(names, self.workload.model().parameters(), strict=True))
        coordinator = self.simulation.coordinator
        coordinator.state = coordinator.state.updated(
            {name: torch.empty_like(coordinator.state.shared[name]).copy_(values[name].detach()) for name in values}
        )
        self.count.samples = None
        with ExitStack() as stack:
            self.opened = stack.enter_context(opened(self.simulation))
            serve(self)

    def _parameters(self) -> list[str]:
        """The names of shared tensors that are no buffers of batch norm."""
        buffers = ("running_mean", "running_var", "num_batches_tracked")
        return [name for name in self.simulation.coordinator.state.shared if not name.endswith(buffers)]

    def rounds(self, rounds: int) -> None:
        """Rounds of the simulation."""
        for _ in range(rounds):
            self.count.steps += self.opened.round()

    def weights(self) -> Sequence[Tensor]:
        """The server's shared tensors."""
        return [self.simulation.coordinator.state.shared[name].float() for name in self._parameters()]

    def note(self) -> str:
        """Which engine it was in the end."""
        return self.opened.note()


class PFL(Contestant):
    """Apple's pfl."""

    packages = ("pfl", "torch")

    def host(self, serve: Serve) -> None:
        """A model, users' data and the algorithm."""
        from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415
        from pfl.aggregate.weighting import WeightByUser  # noqa: PLC0415
        from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: PLC0415
        from pfl.data.federated_dataset import FederatedDataset  # noqa: PLC0415
        from pfl.data.pytorch import PyTorchTensorDataset  # noqa: PLC0415
        from pfl.data.sampling import get_user_sampler  # noqa: PLC0415
        from pfl.hyperparam import NNTrainHyperParams  # noqa: PLC0415
        from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415

        work, count = self.workload, self.count
        x, y = work.data()
        self.network = work.model()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            count.batch(y)
            self.network.train()
            return F.cross_entropy(self.network(x), y)

        def user(client: int) -> Any:
            chosen = order(work.samples, work.steps * work.batch)
            return PyTorchTensorDataset((x[client][chosen], y[client][chosen]), user_id=str(client))

        # pfl asks the module for its loss and metrics.
        self.network.loss, self.network.metrics = loss, lambda x, y: {}  # type: ignore[assignment]
        self.model = PyTorchModel(
            self.network,
            local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=MOMENTUM),
            central_optimizer=torch.optim.SGD(self.network.parameters(), lr=1.0),
        )
        self.parameters = NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=work.steps, local_learning_rate=LR, local_batch_size=work.batch
        )
        users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(work.clients))))
        self.backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()])
        self.algorithm = FederatedAveraging()
        self.done = 0
        serve(self)

    def rounds(self, rounds: int) -> None:
        """The algorithm goes on where it stopped; evaluations never fall due but before the first round."""
        from pfl.algorithm.base import NNAlgorithmParams  # noqa: PLC0415

        self.done += rounds
        self.model = self.algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=self.done,
                evaluation_frequency=10**9,
                train_cohort_size=self.workload.cohort,
                val_cohort_size=0,
            ),
            self.backend,
            self.model,
            self.parameters,
            send_metrics_to_platform=False,
        )

    def weights(self) -> Sequence[Tensor]:
        """The model's."""
        return [parameter.detach() for parameter in self.network.parameters()]

    def note(self) -> str:
        """Batch norm."""
        return "batch-norm statistics are not averaged" if self.workload.name == "resnet18" else ""


class Fluke(Contestant):
    """fluke."""

    packages = ("fluke-fl", "torch")

    def host(self, serve: Serve) -> None:
        """Clients with loaders, a server, and an observer that times rounds."""
        self.without_torchvision = _stand_in_for_torchvision(self.workload)
        from fluke import DDict, FlukeENV  # noqa: PLC0415
        from fluke.algorithms.fedavg import FedAVG  # noqa: PLC0415
        from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: PLC0415
        from fluke.utils import ServerObserver  # noqa: PLC0415

        work, count = self.workload, self.count
        x, y = work.data()

        class Steps(FastDataLoader):  # type: ignore[misc]
            """A client's samples, of which an epoch takes as many batches as a round has steps."""

            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                indices = order(work.samples, work.steps * work.batch)
                for step in range(work.steps):
                    batch = indices[step * work.batch : (step + 1) * work.batch]
                    count.batch(batch)
                    yield tuple(tensor[batch] for tensor in self.tensors)

            def __len__(self) -> int:
                return work.steps

        marks = self.marks = {"start": [], "end": []}

        class Clock(ServerObserver):  # type: ignore[misc]
            """When rounds start and end."""

            def start_round(self, round: int, global_model: Any) -> None:
                marks["start"].append(time.perf_counter())

            def end_round(self, round: int) -> None:
                marks["end"].append(time.perf_counter())

        environment = FlukeENV()
        environment.set_seed(0)
        environment.set_inmemory(True)
        environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        loaders = [
            Steps(x[client], y[client], num_labels=work.classes, batch_size=work.batch)
            for client in range(work.clients)
        ]
        container = DummyDataContainer(loaders, [None] * work.clients, None, work.classes)
        client = {
            "batch_size": work.batch,
            "local_epochs": 1,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": LR, "momentum": MOMENTUM},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
            "persistency": False,
        }
        parameters = DDict(model=work.model(), client=client, server={"weighted": False})
        self.algorithm = FedAVG(work.clients, DataSplitter(container, distribution="iid"), parameters)
        clock = Clock()
        self.algorithm.set_callbacks(clock)
        self.algorithm.attach(clock)
        serve(self)

    def go(self, rounds: int) -> float:
        """From the first round's start to the last one's end."""
        for times in self.marks.values():
            times.clear()
        self.algorithm.run(n_rounds=rounds, eligible_perc=self.workload.participation)
        return self.marks["end"][-1] - self.marks["start"][0]

    def weights(self) -> Sequence[Tensor]:
        """The server's."""
        return [parameter.detach() for parameter in self.algorithm.server.model.parameters()]

    def note(self) -> str:
        """What stands in for torchvision."""
        return "torchvision, which this work does not need, was stood in for" if self.without_torchvision else ""


def _stand_in_for_torchvision(workload: Workload) -> bool:
    """Let fluke be imported where torchvision cannot be; only its data sets and pretrained networks need it."""
    try:
        import torchvision  # noqa: F401, PLC0415
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # so transformers finds none, rather than ours
        workload.model()
        names = ("", ".models", ".datasets", ".datasets.utils", ".transforms")
        for name in names:
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = ModuleSpec(module.__name__, None)
            module.__path__ = []
            module.__getattr__ = _stand_in  # type: ignore[method-assign]
            sys.modules[module.__name__] = module
        return True
    return False


def _stand_in(name: str) -> type:
    """An empty class in the place of one of torchvision's."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class Flower(Contestant):
    """Flower's simulator."""

    packages = ("flwr", "ray", "torch")

    def host(self, serve: Serve) -> None:
        """A server app that serves, while Flower keeps its actors."""
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message  # noqa: PLC0415
        from flwr.clientapp import ClientApp  # noqa: PLC0415
        from flwr.serverapp import Grid, ServerApp  # noqa: PLC0415
        from flwr.serverapp.strategy import FedAvg  # noqa: PLC0415
        from flwr.simulation import run_simulation  # noqa: PLC0415

        from flower_client import trained  # noqa: PLC0415

        work = self.workload
        client_app, server_app = ClientApp(), ServerApp()

        @client_app.train()
        def fit(message: Message, context: Context) -> Message:
            return trained(message, int(context.node_config["partition-id"]))

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            self.grid, self.arrays = grid, ArrayRecord(work.model().state_dict())
            self.config = ConfigRecord({"workload": work.name})
            self.strategy = FedAvg(
                fraction_train=work.participation,
                fraction_evaluate=0.0,
                min_train_nodes=work.cohort,
                min_available_nodes=work.clients,
                weighted_by_key="samples",
                train_metrics_aggr_fn=self._added,
            )
            serve(self)

        cores = os.cpu_count() or 1
        run_simulation(
            server_app,
            client_app,
            num_supernodes=work.clients,
            backend_config={"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )

    def _added(self, replies: Sequence[Any], weight: str) -> Any:
        """Count what the clients did."""
        from flwr.app import MetricRecord  # noqa: PLC0415

        for reply in replies:
            (told,) = reply.metric_records.values()
            self.count.steps += int(told["steps"])
            self.count.samples = (self.count.samples or 0) + int(told["samples"])
        return MetricRecord()

    def rounds(self, rounds: int) -> None:
        """The strategy starts from where it stopped."""
        result = self.strategy.start(self.grid, self.arrays, num_rounds=rounds, train_config=self.config)
        self.arrays = result.arrays

    def weights(self) -> Sequence[Tensor]:
        """The arrays' that are parameters."""
        state = self.arrays.to_torch_state_dict()
        return [state[name] for name, _ in self.workload.model().named_parameters()]

    def note(self) -> str:
        """Processes."""
        return f"{os.cpu_count()} actors of one core each"


CONTESTANTS: Mapping[str, type[Contestant]] = {
    "hand": Hand,
    "fedshift": Fedshift,
    "pfl": PFL,
    "fluke": Fluke,
    "flower": Flower,
}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages that are installed."""
    return {name: metadata.version(name) for name in packages}


def served(contestant: Contestant, answers: IO[str]) -> None:
    """Answer the parent's lines until there is no more."""
    start = [parameter.detach().clone() for parameter in contestant.workload.model().parameters()]

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(ready=True, versions=versions(type(contestant).packages))
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "go":
            answer(seconds=contestant.go(int(arguments[0])))
        elif command == "check":
            weights = contestant.weights()
            moved = sum(float((now - then).square().sum()) for now, then in zip(weights, start, strict=True)) ** 0.5
            answer(
                steps=contestant.count.steps,
                samples=contestant.count.samples,
                finite=all(bool(tensor.isfinite().all()) for tensor in weights),
                moved=moved,
                loss=contestant.workload.loss(contestant.workload.loaded(weights)),
                note=contestant.note(),
            )
        elif command == "weights":
            torch.save([tensor.float().contiguous() for tensor in contestant.weights()], arguments[0])
            answer(saved=arguments[0])
        else:
            return


def main() -> None:
    """Run the contestant that the arguments (as JSON) name."""
    # What libraries print must not come between answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told = json.loads(sys.argv[1])
    threads = told["threads"]
    if told["name"] != "fedshift":
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    options = Options(WORKLOADS[told["workload"]], threads, told["engine"], told["precision"])
    try:
        CONTESTANTS[told["name"]](options).host(lambda contestant: served(contestant, answers))
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and "." not in (error.name or ".")
        reason = f"not installed ({error})" if missing else f"{type(error).__name__}: {error}"
        answers.write(json.dumps({"failed": reason}) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
