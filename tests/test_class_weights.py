"""Rare and absent classes: weights reach every method's cross-entropy, balanced batches, and work class by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor
from torch.nn import functional as F

from conftest import Make, evaluated, simulate, states
from fedshift.clients.federated import FederatedData
from fedshift.core.contract import Batch, Context, Term
from fedshift.core.frozen import Embedding
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors
from fedshift.core.training import Train
from fedshift.engines.engine import Engine
from fedshift.engines.kernels import Kernels
from fedshift.engines.lane import BalancedOrder, Lane
from fedshift.engines.sequential import Sequential
from fedshift.engines.vectorised import Vectorised
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods.classes import COUNTS, update_counts, update_means
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.generator import draw_labels
from fedshift.runs import simulation as simulation_module
from fedshift.streams import Streams
from reference import EVERY_METHOD, small
from refusal import refuses
from test_engines import assert_agree, engine_named

REFUSING = ("fedlc", "fedrod")  # whose losses count classes themselves
SITES = {"north": (24, 6, 3), "south": (20, 4, 0), "west": (12, 12, 6)}  # samples of each class; one lacks the third


def rare(folder: Path) -> dict[str, Any]:
    """Samples of 1x10x10 numbers, site by site, as a file of arrays; in-domain, so that every site trains."""
    numbers = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(len(counts)), counts) for counts in SITES.values()])
    domain = np.repeat([*SITES], [sum(counts) for counts in SITES.values()])
    x = (numbers.normal(size=(len(y), 1, 10, 10)) + y[:, None, None, None]).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "rare.npz", x=x, y=y, domain=domain)
    data = {"name": "arrays", "path": str(folder / "rare.npz")}
    return {"data": data, "protocol": {"name": "in-domain"}, "train.precision": "float64"}


# Weights ------------------------------------------------------------------------------------------


def test_balanced_weights_are_scikit_learns(make: Make, tmp_path: Path):
    """N / (C n_c), whose mean over the samples is 1, of what each client trains on."""
    simulation = simulate(make({**rare(tmp_path), "train.class_weights": "balanced"}), 0)
    when = simulation.coordinator.schedule[0]
    for order in simulation.coordinator.orders(when.stage.exchanges[0], when, range(3)):
        weights, y = Lane(simulation.site.job(order)).class_weights, simulation.federated.clients[order.client].train.y
        assert weights is not None
        assert weights[y].numpy() == pytest.approx(compute_sample_weight("balanced", y.numpy()))


def test_the_cross_entropy_of_a_batch_by_hand():
    """Probabilities of the right class of 1/2 and 1/4, with weights 1/2 and 3/2.

    The risk is (ln 2 / 2 + 3/2 ln 4) / 2 = (1/2 + 3) ln 2 / 2 = 7/4 ln 2.
    """
    logits, y = torch.tensor([[0.5, 0.5], [0.75, 0.25]]).double().log(), torch.tensor([0, 1])
    batch = Batch(torch.zeros(2), y, weight=torch.tensor([0.5, 1.5]).double())
    ln2 = float(np.log(2))
    assert batch.cross_entropy(logits).item() == pytest.approx(7 / 4 * ln2)
    assert batch.cross_entropy(logits, "sum").item() == pytest.approx(7 / 2 * ln2)
    assert batch.cross_entropy(logits, "none").tolist() == pytest.approx([ln2 / 2, 3 * ln2])
    assert batch.part(slice(1, None)).cross_entropy(logits[1:]).item() == pytest.approx(3 * ln2)
    assert Batch(torch.zeros(2), y).cross_entropy(logits).item() == pytest.approx(3 / 2 * ln2)


@pytest.mark.parametrize("name", [name for name in EVERY_METHOD if name not in REFUSING])
def test_weights_reach_the_cross_entropy_of_every_method(make: Make, tmp_path: Path, name: str):
    """Weights of 1 change nothing but rounding, and others change what is learned, in every model that is scored."""
    changes = {**small(name), **rare(tmp_path), "train.rounds": 1}
    kinds = ("none", [1, 1, 1], [1, 5, 25])
    runs = [simulate(make({**changes, "train.class_weights": weights})) for weights in kinds]
    losses = [[row["loss"] for row in evaluated(each, each.coordinator.schedule[-1])["environments"]] for each in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert all(abs(a - b) > 1e-6 * abs(a) for a, b in zip(losses[0], losses[2], strict=True))


# Balanced batches ---------------------------------------------------------------------------------

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@settings(max_examples=60)
@given(LABELS, st.integers(1, 12), st.integers(0, 20))
def test_batches_are_even_and_found_from_their_number(labels: list[int], size: int, number: int):
    """Each has as many of every class as of another, or one more; any place in the sequence is the same anew."""
    y = torch.tensor(labels)
    order = BalancedOrder(Streams(0), 3, len(y), size, labels=y)
    batches = [*islice(order.from_number(0), number + 5)]
    assert torch.equal(torch.stack(batches[number:]), torch.stack([*islice(order.from_number(number), 5)]))
    present = set(labels)
    for batch in batches:
        counts = Counter(y[batch].tolist())
        assert len(batch) == order.length == min(size, len(y))
        held = [counts[label] for label in present]
        assert max(held) - min(held) <= 1
    of_each = Counter(torch.cat(batches).tolist())
    for label in present:  # a class goes through all of its samples before any comes again
        drawn = [of_each[row] for row in range(len(y)) if labels[row] == label]
        assert max(drawn) - min(drawn) <= 1


def test_a_balanced_batch_is_in_random_order():
    """Every other sample is of both classes, and so are neighbours: IRM compares halves, Mixup neighbours.

    With 10 samples of each of two classes, a half has 5 of a class in the mean, and 10 of 19 neighbours differ.
    """
    y = torch.arange(40) % 2
    batches = [y[rows] for rows in islice(BalancedOrder(Streams(0), 0, len(y), 20, labels=y).from_number(0), 200)]
    halves = torch.stack([batch[::2].sum() for batch in batches]).float()
    differ = torch.stack([(batch[1:] != batch[:-1]).sum() for batch in batches]).float()
    assert halves.mean().item() == pytest.approx(5, abs=0.3)
    assert differ.mean().item() == pytest.approx(10, abs=0.6)


# Engines, resuming, refusals ----------------------------------------------------------------------


def test_weights_by_name_are_those_of_a_list(make: Make, tmp_path: Path):
    """A class that is not named counts 1; the order in which names come is not looked at."""
    listed = simulate(make({**rare(tmp_path), "train.class_weights": [2.5, 1, 9], "train.rounds": 2}))
    named = {"2": 9, "0": 2.5}
    by_name = simulate(make({**rare(tmp_path), "train.class_weights": named, "train.rounds": 2}))
    assert by_name.setup.classes == ("0", "1", "2")
    assert all(
        torch.equal(tensor, by_name.coordinator.state.tensors[name])
        for name, tensor in listed.coordinator.state.tensors.items()
    )


BALANCING = [{"train.class_weights": "balanced"}, {"train.class_weights": [1, 3, 9]}, {"train.batches": "balanced"}]


@pytest.mark.parametrize("changes", BALANCING, ids=str)
@pytest.mark.parametrize("name", ["fedavg", "fedsdr"])
def test_engines_agree(make: Make, tmp_path: Path, name: str, changes: dict[str, Any]):
    """Sites of several sizes, one without a class, in float64."""
    experiment = make({**small(name), **rare(tmp_path), **changes, "train.batch": 8, "train.rounds": 2})
    one = simulate(experiment)
    for engine in ("vectorised", "workers"):
        with engine_named(engine) as other:
            assert_agree(one, simulate(experiment, engine=other))


class Plain(FedAvg):
    """A page that was written without class weights in mind, and writes out its loss."""

    def risk(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return -net.head(batch.z).log_softmax(1).gather(1, batch.y[:, None]).mean()


@pytest.mark.parametrize("made", [Sequential, Vectorised], ids=["sequential", "vectorised"])
def test_a_page_that_reads_labels_and_no_weights_is_refused(
    make: Make, tmp_path: Path, made: Callable[[Kernels], Engine]
):
    """It would train as if there were none; without the setting it goes on as ever."""
    experiment = make({**rare(tmp_path), "train.class_weights": "balanced", "train.rounds": 1})
    with pytest.raises(FedshiftError, match=r"'balanced' reaches no loss of Plain.*batch\.cross_entropy\(logits\)"):
        simulate(experiment.replace(method=Plain()), engine=made(Kernels()))
    simulate(make({**rare(tmp_path), "train.rounds": 1}).replace(method=Plain()), engine=made(Kernels()))


class Beside(FedAvg):
    """FedAvg's weighted risk, and another loss beside it, which counts every sample alike."""

    def terms(self) -> dict[str, Term]:
        return super().terms() | {"beside": Term(self.beside)}

    def beside(self, net: Net, batch: Batch, context: Context) -> Tensor:
        return F.cross_entropy(net.head(batch.z), self.labels(batch), reduction="sum")

    def labels(self, batch: Batch) -> Tensor:
        return batch.y


class DrawnLabels(Beside):
    """Its other loss is no risk on labels."""

    def labels(self, batch: Batch) -> Tensor:
        return torch.arange(len(batch.y)) % 2


@pytest.mark.parametrize("made", [Sequential, Vectorised], ids=["sequential", "vectorised"])
def test_a_cross_entropy_beside_the_weighted_one_is_refused(
    make: Make, tmp_path: Path, made: Callable[[Kernels], Engine]
):
    """Half of what is learned would count classes as if the setting were not there; without it nothing is amiss."""
    experiment = make({**rare(tmp_path), "train.class_weights": "balanced", "train.rounds": 1})
    said = r"'balanced' does not reach every loss of Beside: its objective 'train' calls F\.cross_entropy"
    with pytest.raises(FedshiftError, match=said):
        simulate(experiment.replace(method=Beside()), engine=made(Kernels()))
    simulate(experiment.replace(method=DrawnLabels()), engine=made(Kernels()))
    simulate(make({**rare(tmp_path), "train.rounds": 1}).replace(method=Beside()), engine=made(Kernels()))


@pytest.mark.parametrize("name", REFUSING)
@pytest.mark.parametrize("changes", BALANCING, ids=str)
def test_methods_that_count_classes_refuse(make: Make, name: str, changes: dict[str, Any]):
    with pytest.raises(FedshiftError, match="would count rare classes twice"):
        make({"method": {"name": name}, **changes}).check()
    make({"method": {"name": name}}).check()


def test_what_cannot_be_meant_is_an_error(make: Make, tmp_path: Path):
    with refuses("choose one of the two"):
        Train(class_weights="balanced", batches="balanced")
    with refuses("'none' or 'balanced'"):
        Train(class_weights="inverse")
    with refuses("give 3 weights, one for each class: class 0, class 1, class 2"):
        simulate(make({"train.class_weights": [1, 2]}), 0)
    with refuses("class in train.class_weights 'claas 1'", "Did you mean 'class 1'"):
        simulate(make({"train.class_weights": {"claas 1": 2}}), 0)
    with refuses("train.class_weights = {}"):
        Train(class_weights={})
    with refuses("all samples of client 'south' are of classes with a weight of 0"):
        simulate(make({**rare(tmp_path), "train.class_weights": [0, 0, 1]}))


def test_labels_are_drawn_among_the_classes_that_are_there():
    """Classes 1 and 3 of four: draws below a half are 1, the others 3, up to the largest number below 1."""
    uniform = torch.tensor([0.0, 0.3, 0.4999, 0.5, 0.9, 1 - 2**-24])
    assert draw_labels(torch.tensor([0, 2, 0, 9]), uniform).tolist() == [1, 1, 1, 3, 3, 3]
    assert draw_labels(torch.tensor([0, 0, 7]), uniform).tolist() == [2] * 6
    assert draw_labels(torch.zeros(2, dtype=torch.int64), uniform).tolist() == [0, 0, 0, 1, 1, 1]


def test_the_update_counts_and_means_by_hand():
    """Class 0: 3 and 1 samples, with sums of 6 and 2, have the mean 2. Nobody has class 1 now, and never class 2."""
    of_each = [([3, 0, 0], [[6.0], [0.0], [0.0]]), ([1, 0, 0], [[2.0], [0.0], [0.0]])]
    replies = Replies(
        (client, Tensors({COUNTS: torch.tensor(counts), "sums": torch.tensor(sums)}))
        for client, (counts, sums) in enumerate(of_each)
    )
    assert update_counts(replies, torch.tensor([9, 5, 0])).tolist() == [4, 5, 0]
    assert update_means(replies, "sums", torch.tensor([[7.0], [8.0], [0.0]])).tolist() == [[2.0], [8.0], [0.0]]


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
@pytest.mark.parametrize(("name", "denominator"), [("fedproc", "all"), ("fedproc", "others"), ("fedgen", "")])
def test_absent_classes_leave_everything_finite(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, denominator: str, engine: type[Engine]
):
    """Nobody has class 2; the first client has class 0 alone; one of the two takes part in a round."""
    whole = simulation_module.make_federated

    def without(experiment: Experiment, notify: Embedding) -> FederatedData:
        federation, held = whole(experiment, notify), []
        for client in federation.clients:
            present = client.train.y < (1 if client.id == 0 else 2)
            held.append(replace(client, train=client.train.subset(present)))
        return replace(federation, clients=held)

    monkeypatch.setattr(simulation_module, "make_federated", without)
    changes = {"train.rounds": 5, "train.lr": 0.02, "train.participation": 0.5, "run.audit": False}
    changes |= {"method.denominator": denominator} if denominator else {}
    simulation = simulate(make({**small(name), **changes}), engine=engine())
    assert {client for client, _ in states(simulation)} == {0, 1}
    held = [simulation.coordinator.state.tensors, *(state.tensors for _, state in states(simulation))]
    assert all(tensor.isfinite().all() for tensors in held for tensor in tensors.values())
    for terms in simulation.coordinator.terms.values():
        assert all(torch.tensor(value).isfinite() for value in terms.values())
    counts = simulation.coordinator.state.down["class_counts.value"]
    assert (counts > 0).tolist() == [True, True, False]
