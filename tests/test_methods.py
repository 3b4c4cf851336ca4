"""What must applies for every registered method, and reductions to known cases."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conftest import (
    CNN_WITH_BN,
    Make,
    at,
    evaluated,
    exchanged,
    first_messages,
    go_on,
    models_of,
    names_sent,
    net_of,
    resident,
    scored,
    simulate,
    states,
)
from fedshift.clients.federated import FederatedData
from fedshift.clients.samples import Environment, Samples
from fedshift.core.contract import Batch, Part, Phase, Term
from fedshift.core.frozen import Embedding
from fedshift.core.net import Net
from fedshift.core.state import OptimiserState, flat_optimisers
from fedshift.core.tensors import Replies, part_of
from fedshift.engines.lane import BatchOrder, steps_of_job
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.methods import METHODS
from fedshift.methods.fedavg import FedAvg
from fedshift.runs import simulation as simulation_module
from fedshift.runs.dry_run import planned_stages
from fedshift.runs.simulation import Simulation
from fedshift.streams import Streams
from reference import ARCHETYPES, BUILT_IN, EVERY_METHOD, reference, small

# What clients keep as they sent it: MOON compares with that model, PartialFed begins with its layers.
KEPT_AS_SENT = {"moon": "previous.", "partialfed": "last.", "fedala": "last.", "partialfed-adaptive": "last."}
# Biases of convolutions before batch norm, which takes away what they add: their gradient is 0 but for rounding, so
# whether they move at all, and whether two of them stay the same, is chance.
BEFORE_BATCH_NORM = ("encoder.0.bias", "encoder.4.bias")
# Some of whose weights move by plain steps, which leave no momentum, as their algorithm states.
WITHOUT_MOMENTUM = {"apfl", "fedala", "pfedme"}


PAGES = sorted({METHODS.get(name).__module__ for name in BUILT_IN})


@pytest.mark.parametrize("module", PAGES)
def test_a_methods_module_describes_the_paper(module: str):
    """From these docstrings the documentation has a page for each method."""
    page = inspect.getdoc(sys.modules[module]) or ""
    title, *_ = page.split("\n")
    assert re.fullmatch(r"[A-Z][^:]*: .+\.|pFed\w+: .+\.|kNN-Per: .+\.", title)
    assert re.search(r"^\.\. math::\n\n    \S", page, re.MULTILINE)
    headings = ("**When to choose it.** ", "**Unavailable clients.** ", "**Choices.**")
    places = [page.find(f"\n\n{heading}") for heading in headings]
    assert -1 < places[0] < places[1] < places[2]
    assert re.search(r"^\*\*Choices\.\*\*.*\n(.+\n)*\n- \S", page, re.MULTILINE)


def tensors_of(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Everything that a run contains, by name."""
    server = simulation.coordinator.state
    held = {**server.shared, **server.down, **server.server, **flat_optimisers(server.optimisers)}
    for client, state in states(simulation):
        held |= {f"{client}/{name}": tensor for name, tensor in state.flat().items()}
    return held


def assert_same(one: Simulation, other: Simulation) -> None:
    mine, theirs = tensors_of(one), tensors_of(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_runs_and_is_scored(name: str):
    """On a held-out domain; test_absent.py has the environments of domains that train."""
    run = reference(name)
    assert len(run.records) == sum(when.stage.scored for when in run.simulation.coordinator.schedule) >= 3
    for record in run.records:
        roles = [row["role"] for row in record["environments"]]
        assert sorted(roles) == ["test", "validation", "validation"]
        assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 for row in record["environments"])


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_trainable_part_receives_a_gradient(name: str):
    """Its moment, which is kept, is not 0, on some client or on the server."""
    simulation = reference(name).simulation
    nets = (resident(simulation).client.net, resident(simulation).server.net)
    parameters = {full_name for net in nets for full_name, _ in net.parameters()}
    on_server = set(moved(simulation.coordinator.state.optimisers))
    start = simulation.setup.shapes
    for _, state in states(simulation):
        end = {**simulation.coordinator.state.shared, **state.tensors} if name in WITHOUT_MOMENTUM else {}
        differ = {one for one in parameters & end.keys() if not torch.equal(end[one], start[one])}
        still = parameters - set(moved(state.optimisers)) - on_server - differ
        assert all(parameter.endswith(BEFORE_BATCH_NORM) for parameter in still)


def moved(optimisers: OptimiserState) -> Iterator[str]:
    """The parameters whose momentum, of any optimiser, is not all zero."""
    for objective in optimisers.values():
        for parameter, kinds in objective.items():
            momentum = kinds["exp_avg"] if "exp_avg" in kinds else kinds["momentum_buffer"]
            if momentum.abs().sum() > 0:
                yield parameter


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_the_bytes_counted_are_those_of_the_messages(name: str):
    run = reference(name)
    assert all(counted == sent for counted, sent in run.counted)
    exchanges = {exchange.name for stage in run.simulation.setup.stages for exchange in stage.exchanges}
    assert all((exchange, "up") in run.ledger.first for exchange in exchanges)


# Whose tensors go down, whose come up, and whose stay at the client; the model alone crosses of those not listed.
MODEL = "encoder head"
CROSSES = {
    "apfl": (MODEL, MODEL, "personal_encoder personal_head mixture"),
    "client2vec": (
        f"{MODEL} projector projector_head index_network feature_index",
        f"{MODEL} projector projector_head pairs feature label samples",
        "",
    ),
    "ditto": (MODEL, MODEL, "personal_encoder personal_head"),
    "coral": (f"{MODEL} moments", f"{MODEL} moments", ""),
    "drfa": (f"{MODEL} scored", f"{MODEL} caught risk samples steps", ""),
    "fedadg": (f"{MODEL} generator", f"{MODEL} generator", "discriminator"),
    "fedala": (MODEL, MODEL, "last weight"),
    "fedbabu": (MODEL, "encoder", "tuned"),
    "fedbn": (MODEL, MODEL, "encoder"),
    "fedcir": (f"{MODEL} generator gaussians", MODEL, ""),
    "feddg-ga": (MODEL, f"{MODEL} gap", "local_loss"),
    "feddyn": (MODEL, MODEL, "dual"),
    "fedfa": (f"{MODEL} spread", f"{MODEL} batches", "statistics"),
    "fedgen": (f"{MODEL} generator class_counts", f"{MODEL} class_counts", ""),
    "fediir": (f"{MODEL} invariant", f"{MODEL} gradient", ""),
    "fedpac": (f"{MODEL} class_means class_counts", f"{MODEL} before squares after class_counts samples", ""),
    "fedper": ("encoder", "encoder", "head"),
    "fedpin": (MODEL, MODEL, "personal_encoder personal_head shortcut_encoder shortcut_head"),
    "fedpin-gm-ft": (MODEL, MODEL, "tuned"),
    "fedpin-gm-l2": (MODEL, MODEL, "personal_encoder personal_head"),
    "fedproc": (f"{MODEL} projection prototypes class_counts", f"{MODEL} projection class_sums class_counts", ""),
    "fedproto": ("prototypes class_counts", "class_sums class_counts", MODEL),
    "fedrep": ("encoder", "encoder", "head"),
    "fedrod": (MODEL, MODEL, "personal_head"),
    "fedsdr": (
        f"{MODEL} shortcut environment_head",
        f"{MODEL} shortcut environment_head environments",
        "personal_encoder personal_head",
    ),
    "fedsr": (f"{MODEL} reference", f"{MODEL} reference", ""),
    "fpl": (f"{MODEL} prototypes class_counts", f"{MODEL} class_sums class_counts", ""),
    "fraug": (f"{MODEL} generator", f"{MODEL} generator", "encoder rtnet prototypes"),
    "fraug-code": (f"{MODEL} generator", f"{MODEL} generator samples", "encoder rtnet prototypes"),
    "ftfa": (MODEL, MODEL, "tuned"),
    "groupdro": (MODEL, f"{MODEL} risk", ""),
    "head-retraining": ("", "", MODEL),
    "knn-per": (MODEL, MODEL, "memory"),
    "lg-fedavg": ("head", "head", "encoder"),
    "moon": (f"{MODEL} projection", f"{MODEL} projection", "previous"),
    "partialfed": (MODEL, MODEL, "last"),
    "partialfed-adaptive": (MODEL, MODEL, "last choice"),
    "pfedavg": (MODEL, MODEL, "personal_encoder personal_head"),
    "pfedme": (MODEL, MODEL, "personal_encoder personal_head"),
    "pooled-groupdro": (f"{MODEL} mixture", f"{MODEL} mixture", ""),
    "scaffold": (f"{MODEL} variate", f"{MODEL} change", "own_variate"),
    "silobn": (MODEL, MODEL, "encoder"),
    "single": ("", "", MODEL),
    "vrex": (f"{MODEL} mean_risk", f"{MODEL} risk", ""),
}


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_what_crosses_what_stays_and_whose_model_is_scored(name: str):
    """In the whole run; what stays is a model of the client's own, or what its training continues with."""
    run = reference(name)
    down, up, stays = (set(parts.split()) for parts in CROSSES.get(name, (MODEL, MODEL, "")))
    exchanges = {exchange.name for stage in run.simulation.setup.stages for exchange in stage.exchanges}
    for direction, expected in (("down", down), ("up", up)):
        sent = [names_sent(run.simulation, exchange, direction) for exchange in exchanges]
        assert {part_of(tensor) for tensor in chain(*sent)} == expected
    assert {part_of(tensor) for _, state in states(run.simulation) for tensor in state.tensors} == stays
    personal = stays - {"discriminator", "dual", "local_loss", "own_variate", "previous", "statistics"}
    # What chooses and what is reported is one model, that of a client that never trained.
    scored = {row["model"] for row in run.records[-1]["environments"]}
    assert scored == {"unseen" if personal and name != "fedpac" else "global"}


@pytest.mark.parametrize("name", ARCHETYPES)
def test_the_order_of_clients_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    run, in_order = reference(name), simulation_module.make_federated

    def reversed_clients(experiment: Experiment, notify: Embedding) -> FederatedData:
        federation = in_order(experiment, notify)
        return dataclasses.replace(federation, clients=federation.clients[::-1])

    monkeypatch.setattr(simulation_module, "make_federated", reversed_clients)
    assert_same(run.simulation, simulate(run.experiment))


WITHOUT_ITS_TERMS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.0},
    "fediir": {"lam": 0.0},
    "moon": {"mu": 0.0, "projection": "none"},
    "fedfa": {"probability": 0.0},
    "fedlc": {"tau": 0.0},  # every class is present
    "fedl2r": {"l2r": 0.0},
    "fedgen": {"alpha": 0, "beta": 0, "generator_steps": 2},
    "fedavgm": {"server": {"beta": 0.0}},
    "irm": {"lam": 0.0},
    "vrex": {"beta": 0.0},
    "groupdro": {"eta": 0.0},
    "coral": {"gamma": 0.0},
    "fedper": {"personal": "none"},
    "lg-fedavg": {"personal": "none"},
    "fpl": {"contrast": 0.0, "consistency": 0.0},
}


@pytest.mark.parametrize("name", WITHOUT_ITS_TERMS)
def test_without_its_terms_a_method_is_fedavg_to_the_bit(make: Make, name: str):
    changes = {"train.rounds": 3} | CNN_WITH_BN
    plain = simulate(make(changes)).coordinator.state.shared
    ours = simulate(make(changes | {"method": {"name": name, **WITHOUT_ITS_TERMS[name]}})).coordinator.state.shared
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_fedprox_pulls_towards_the_global_model(make: Make):
    """By hand: at w = w_t the term and its gradient are 0; after moving every weight by 1 it is mu/2 * count."""
    method = METHODS.get("fedprox")(mu=0.5)
    simulation = Simulation(make({"method.name": "fedprox"}))
    net, samples = net_of(simulation), simulation.federated.clients[0].train
    batch = Batch(samples.x, samples.y)
    received = {name: parameter.detach().clone() for name, parameter in net.parameters()}
    count = sum(tensor.numel() for tensor in received.values())
    objective, context = method.objective("train"), at(received=received)
    assert objective.evaluate(net, batch, context)["proximal"].item() == 0
    with torch.no_grad():
        for _, parameter in net.parameters():
            parameter.add_(1.0)
    term = objective.evaluate(net, batch, context)["proximal"]
    assert term.item() == pytest.approx(0.25 * count, rel=1e-5)


# The single client takes the steps of a cohort of one.
ONE_STEP = {"method.name": "centralised", "train.participation": 0.5, "train.steps": 1, "train.lr": 0.05}


def test_one_client_and_one_step_a_round_is_plain_sgd(make: Make):
    """With a single client the mean is its model, so rounds of one step are steps of SGD without momentum."""
    experiment = make({**ONE_STEP, "train.rounds": 7, "train.momentum": 0.0})
    simulation = simulate(experiment)
    fresh = Simulation(experiment)
    (client,) = fresh.federated.clients
    encoder, head = net_of(fresh).encoder, net_of(fresh).head
    parameters = [*encoder.parameters(), *head.parameters()]
    order = BatchOrder(Streams(0), client.id, len(client.train), 4)
    for indices in islice(order.from_number(0), 7):
        loss = F.cross_entropy(head(encoder(client.train.x[indices])), client.train.y[indices])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(0.05 * gradient)
    for name, parameter in net_of(fresh).parameters():
        torch.testing.assert_close(simulation.coordinator.state.shared[name], parameter.detach(), rtol=1e-6, atol=1e-7)


def test_kept_moments_make_rounds_of_one_step_plain_momentum_sgd(make: Make):
    """One client, one step a round: with kept momentum the rounds are one unbroken run of momentum SGD."""
    changes = {**ONE_STEP, "train.rounds": 6}
    kept = simulate(make({**changes, "method.optimiser_state": "kept"}))
    one_round = simulate(make({**changes, "train.steps": 6, "train.rounds": 1}))
    for name, tensor in kept.coordinator.state.shared.items():
        torch.testing.assert_close(tensor, one_round.coordinator.state.shared[name], rtol=1e-6, atol=1e-7)
    fresh = simulate(make({**changes, "method.optimiser_state": "fresh"}))
    afresh, resumable = (run.coordinator.state.shared["head.weight"] for run in (fresh, kept))
    assert not torch.allclose(afresh, resumable)


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_moments_of_the_server_go_on_whatever_the_clients_do(make: Make, state: str):
    """FedCiR's generator takes two steps of Adam a round: after three rounds its moments have counted six."""
    changes = {"method.name": "fedcir", "method.generator_steps": 2, "method.optimiser_state": state, "train.rounds": 3}
    server = simulate(make(changes)).coordinator.state.optimisers
    assert {kinds["step"].item() for kinds in server["generator.consensus"].values()} == {6}


@pytest.mark.parametrize("bn", ["shared", "local", "reestimate"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcir", "fedpac", "fedpin"])
def test_batch_norm_buffers_are_averaged_unless_local(make: Make, name: str, bn: str):
    """Statistics, and counts of batches to a whole number, as the clients have them after the training of a round."""
    simulation = Simulation(make({**small(name), "method.bn": bn}))
    when = next(when for when in simulation.coordinator.schedule if when.stage.name == "train")
    for exchange in when.stage.exchanges[: when.stage.exchanges.index(when.stage.training) + 1]:
        ups = exchanged(simulation, exchange, when, simulation.federated.clients)
        state = exchange.merge(simulation.coordinator.state, Replies(sorted(ups.items())))
        simulation.coordinator.state = state
    ending = ("running_mean", "running_var", "num_batches_tracked")
    buffers = [name for name in simulation.setup.scopes if part_of(name) == "encoder" and name.endswith(ending)]
    assert len(buffers) == 6
    if bn == "local":
        assert not any(tensors.keys() & set(buffers) for tensors in (*ups.values(), state.shared))
        return
    for buffer in buffers:
        of_each = [up[buffer] for up in ups.values()]
        mean, merged = torch.stack(of_each).double().mean(dim=0), state.shared[buffer]
        assert merged.dtype == of_each[0].dtype
        torch.testing.assert_close(merged, mean.to(merged), rtol=1e-5, atol=1e-6)


def test_samples_are_sent_only_where_they_weigh(make: Make):
    assert "samples" not in first_messages(make())["train", "up"]
    up = first_messages(make({"method.weighting": "samples"}))["train", "up"]
    assert up["samples"].item() == 27  # 3 classes of 10 images, one of each held out


def test_nothing_is_sent_back_in_a_last_stage_that_merges_nothing(make: Make):
    simulation = simulate(make({**small("ftfa"), "method.weighting": "samples"}))
    assert "samples" in names_sent(simulation, "train", "up")
    assert names_sent(simulation, "finetune", "up") == set()


def test_single_sends_nothing_and_a_target_is_scored_with_every_model(make: Make):
    simulation = simulate(make({"method": {"name": "single", "weighting": "samples"}}))
    assert simulation.coordinator.sent == (0, 0)
    record = evaluated(simulation, simulation.coordinator.schedule[-1])
    assert {(row["role"], row["model"], row["models"]) for row in record["environments"]} == {
        ("test", "unseen", 2),
        ("validation", "unseen", 2),
    }


def test_single_equals_a_federation_of_one(make: Make):
    """Each client's model is what centralised training on its data alone gives."""
    simulation = simulate(make({"method.name": "single"}))
    alone = Simulation(make({"method.name": "single"}))
    when, *later = alone.coordinator.schedule
    (exchange,) = when.stage.exchanges
    for each in (when, *later):
        exchanged(alone, exchange, each, [alone.federated.clients[1]])
    mine, theirs = simulation.site.store.get(1), alone.site.store.get(1)
    assert mine and theirs
    assert all(torch.equal(mine.tensors[name], theirs.tensors[name]) for name in mine.tensors)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"train.steps": 3}, 2 * 3),
        ({"train.steps": 3, "train.participation": 0.4}, 3),
        ({"train.steps": 2, "train.unit": "epochs"}, 2 * (6 + 5)),
    ],
)
def test_centralised_takes_the_steps_of_a_cohort_in_a_round(make: Make, changes: dict[str, Any], steps: int):
    """Two clients with 27 and 21 samples, in batches of 4: three steps each, or of one, or two epochs of both.

    A dry run plans as many, as it does for the federation.
    """
    common = {"data.fewer": 2, "train.rounds": 1, "train.batch": 4, **changes}
    simulation = Simulation(make({**common, "method.name": "centralised"}))
    assert simulation.federated.pooled_sizes == (27, 21)
    (stage,) = planned_stages(simulation)
    (job,) = simulation.example()
    assert (stage.steps, steps_of_job(job)) == (steps, steps)
    (federation,) = planned_stages(Simulation(make(common)))
    assert federation.steps == steps


def test_centralised_pools_all_training_data(make: Make):
    pooled = Simulation(make({"method.name": "centralised"})).federated
    apart = Simulation(make()).federated
    (client,) = pooled.clients
    assert len(client.train) == sum(len(c.train) for c in apart.clients)
    assert [e.name for e in pooled.environments] == [e.name for e in apart.environments]


def test_an_unseen_client_gets_the_mean_of_the_clients_batch_norm(make: Make):
    simulation = simulate(make({"method.name": "fedbn"} | CNN_WITH_BN))
    target = next(e for e in simulation.federated.environments if e.client is None)
    (model,) = models_of(simulation, target)
    one, other = (state.tensors["encoder.1.weight"] for _, state in states(simulation))
    torch.testing.assert_close(model["encoder.1.weight"], (one + other) / 2)


@pytest.mark.parametrize("bn", ["reestimate", "shared"])
def test_reestimated_batch_norm_undoes_brightness(make: Make, bn: str):
    """Without padding, a brighter image shifts every channel before batch norm by one number.

    Statistics measured on the bright images take exactly that away; those of training do not.
    """
    simulation = simulate(make({"method.bn": bn} | CNN_WITH_BN))
    when = simulation.coordinator.schedule[0]
    known = simulation.federated.environments[0].samples
    bright = Samples(known.x + 5.0, known.y)
    scores = [
        scored(simulation, simulation.coordinator.state.shared, Environment("x", "test", None, samples), when)
        for samples in (known, bright)
    ]
    undone = scores[0].loss == pytest.approx(scores[1].loss, rel=1e-4)
    assert undone == (bn == "reestimate")


def test_cold_fedbn_reestimates_for_unseen_clients_only(make: Make):
    method = METHODS.get("fedbn")(cold="reestimate")
    assert method.reestimates(unseen=True)
    assert not method.reestimates(unseen=False)


def test_only_the_sampled_clients_take_part_and_all_are_sampled_in_time(make: Make):
    simulation, seen = Simulation(make({"train.participation": 0.5, "train.rounds": 20})), []
    for _ in simulation.coordinator.schedule:
        before = {client: state.drawn["train"] for client, state in states(simulation)}
        go_on(simulation)
        after = {client: state.drawn["train"] for client, state in states(simulation)}
        seen += [client for client in after if after[client] != before.get(client)]
    assert len(seen) == 20
    assert set(seen) == {0, 1}


def test_every_method_sees_the_same_sampling_and_batches(make: Make):
    """FedProx with mu = 0 could not equal FedAvg under partial participation otherwise."""
    changes = {"train.participation": 0.5, "train.rounds": 6}
    assert_same(simulate(make(changes)), simulate(make({**changes, "method.name": "fedprox", "method.mu": 0.0})))


def test_a_method_that_would_send_client_tensors_is_stopped(make: Make):
    class Leaky(FedAvg):
        """Uploads what should stay."""

        def parts(self, spec):
            parts = super().parts(spec)
            return {**parts, "head": Part(parts["head"].module, "client")}

        def exchange(self, name):
            return super().exchange(name, upload=lambda work: {"head.weight": torch.zeros(3, 4)})

    experiment = make().replace(method=Leaky())
    with pytest.raises(FedshiftError, match=r"would send 'head.weight', which never leaves the client"):
        simulate(experiment)


def test_what_the_server_keeps_is_never_sent(make: Make):
    class Telling(FedAvg):
        """Sends a server tensor."""

        def parts(self, spec):
            parts = super().parts(spec)
            return {**parts, "secret": Part(torch.nn.Linear(2, 2), "server")}

        def exchange(self, name):
            return super().exchange(name, send=lambda state, client: state.server)

    with pytest.raises(FedshiftError, match=r"would send 'secret.bias', which never leaves the server"):
        simulate(make().replace(method=Telling()))


def test_what_a_merge_makes_is_finite(make: Make):
    class Dividing(FedAvg):
        """Divides 0 by 0."""

        def parts(self, model):
            return {**super().parts(model), "ratio": Part.state(torch.zeros(1), "server")}

        def merge(self, state, replies):
            return super().merge(state, replies).updated({"ratio.value": torch.zeros(1) / 0})

    with pytest.raises(FedshiftError, match=r"The aggregate of round 1 is not finite, though every client's reply is"):
        simulate(make().replace(method=Dividing()))


def test_objectives_in_turn_move_only_their_own_parts(make: Make):
    """An inner game on one batch: each objective moves its parts; the fixed part is in evaluation mode."""
    modes = []

    class Alternating(FedAvg):
        """First the head, then the encoder."""

        def phases(self):
            def watched(net: Net, batch, context):
                modes.append((net.encoder.training, net.head.training))
                return self.risk(net, batch, context)

            head = self.objective("head", terms={"cross_entropy": Term(watched)}, moves=("head",))
            return (Phase("game", (head, self.objective("encoder", moves=("encoder",)))),)

    experiment = make({"train.steps": 2, "train.rounds": 1})
    simulation = simulate(experiment.replace(method=Alternating(optimiser_state="kept")))
    assert modes == [(False, True)] * 4
    for _, state in states(simulation):
        assert set(state.optimisers["game.head"]) == {"head.weight", "head.bias"}
        assert all(name.startswith("encoder.") for name in state.optimisers["game.encoder"])


def test_a_new_epoch_is_a_new_order_without_repeats():
    order = BatchOrder(Streams(0), client=3, samples=10, size=3)
    batches = [batch.tolist() for batch in islice(order.from_number(0), 6)]
    first, second = (list(chain(*batches[start : start + 3])) for start in (0, 3))
    assert len(set(first)) == len(set(second)) == 9
    assert first != second
    for number in range(6):  # any place can be found from its number alone
        assert next(order.from_number(number)).tolist() == batches[number]


def test_epochs_count_whole_batches(make: Make):
    simulation = simulate(make({"train.unit": "epochs", "train.steps": 2}), rounds=1)
    assert [state.drawn for _, state in states(simulation)] == [{"train": 2 * (27 // 4)}] * 2
