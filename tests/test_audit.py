"""What the audit of replies finds, wherever it hides, and that no method of the catalogue alarms it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import Make, go_on, simulate
from fedshift.core.contract import Exchange, LocalWork, Part, Upload
from fedshift.core.tensors import Tensors
from fedshift.errors import FedshiftError
from fedshift.federation.inputs import Inputs
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.rows import Rows
from fedshift.simulation.simulation import Simulation
from fedshift.site.audit import Secret, _found, _of_samples
from reference import BUILT_IN, reference, small

AUDIT = {"run.audit": True}


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_method_of_the_catalogue_alarms_it(name: str):
    """Its reference run, which the audit would end, has three rounds and layers large enough to be told apart."""
    run = reference(name)
    assert run.experiment.run.audit
    assert run.simulation.coordinator.position == run.simulation.rounds


def test_it_changes_no_number(make: Make):
    changes = {**small("moon"), "train.rounds": 3}
    ours, theirs = (simulate(make(one)).coordinator.state.tensors for one in ({**changes, **AUDIT}, changes))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("lr", [1e-8, 1e-3])
@pytest.mark.parametrize("name", ["moon", "ditto", "fedpin", "feddyn", "fedbn"])
def test_small_steps_do_not_alarm_it(make: Make, name: str, lr: float):
    """Private models then hardly differ from those that are sent."""
    simulate(make({**small(name), "train.rounds": 3, "train.lr": lr, **AUDIT}))


@pytest.mark.parametrize(("told", "carried", "refused"), [("own_a", "own_a", False), ("own_a", "own_b", True)])
def test_an_upload_may_hold_only_the_private_part_that_it_reveals(make: Make, told: str, carried: str, refused: bool):
    @dataclass(frozen=True, kw_only=True)
    class Telling(FedAvg):
        """Keeps two rows of numbers, and uploads one that it kept."""

        def parts(self, model):
            return {**super().parts(model), "own_a": Part(Rows(40), "client"), "own_b": Part(Rows(40), "client")}

        def keep(self, work: LocalWork):
            numbers = torch.arange(40.0) + work.trained["head.bias"].sum().detach()
            return {"own_a.value": numbers.sin(), "own_b.value": (numbers * 2).cos()}

        def exchange(self, name):
            upload = Upload("told", (40,), reveals=told)
            carries = lambda work: {"told": work.private[f"{carried}.value"]}  # noqa: E731
            return super().exchange(name, uploads=(upload,), upload=carries)

    experiment = replace(make({**AUDIT, "train.rounds": 2}), method=Telling())
    if not refused:
        simulate(experiment)
        return
    with pytest.raises(FedshiftError, match=r"round 2 .*'told' contains its private tensor 'own_b\.value' as it was"):
        simulate(experiment)


# Ways to hide a row of numbers ---------------------------------------------------------------------

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
HIDDEN = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPES),
        "scale": st.sampled_from([1.0, -1.0, 0.37, -5.0]),
        "shift": st.sampled_from([0.0, 1.0, -0.25]),
        "offset": st.integers(0, 300),
        "after": st.integers(0, 300),
        "seed": st.integers(0, 2**16),
        "form": st.sampled_from(["within", "stacked", "columns", "turned", "shuffled"]),
    }
)


def hidden(row: Tensor, how: dict[str, Any]) -> Tensor:
    """A row of numbers among others, in one of several forms."""
    generator = torch.Generator().manual_seed(how["seed"])
    row = (how["scale"] * row.flatten().double() + how["shift"]).to(how["dtype"])

    def noise(count: int) -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(how["dtype"])

    match how["form"]:
        case "within":
            return torch.cat([noise(how["offset"]), row, noise(how["after"])])
        case "turned":
            return torch.cat([noise(len(row)), row.view(2, -1).T.flatten(), noise(len(row))]).view(3, 2, -1)
        case "shuffled":
            return torch.stack([noise(len(row)), row[torch.randperm(len(row), generator=generator)]])
        case form:
            return torch.stack([noise(len(row)), row, noise(len(row))], dim=1 if form == "columns" else 0)


@settings(deadline=None, max_examples=150)
@given(HIDDEN, st.sampled_from(["stored", "read"]), st.integers(0, 9))
def test_a_sample_is_found_wherever_it_hides(how: dict[str, Any], form: str, number: int):
    """Colour images of uint8 as they are stored, or as a network reads them, by channel."""
    images = torch.randint(256, (10, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    samples = simulation_samples(images)
    inputs = Inputs(normalise=True)
    row = (inputs.evaluation(images) if form == "read" else images)[number]
    found = [_found(hidden(row, how), secret) for secret in _of_samples(samples, inputs)]
    assert number in found


def simulation_samples(x: Tensor) -> Any:
    from fedshift.federation.samples import Samples

    return Samples(x, torch.arange(len(x)) % 3)


@settings(deadline=None, max_examples=100)
@given(HIDDEN.filter(lambda how: how["form"] in ("within", "stacked", "columns")), st.integers(32, 90))
def test_a_private_tensor_is_found_wherever_it_hides(how: dict[str, Any], length: int):
    row = torch.randn(length, generator=torch.Generator().manual_seed(length))
    assert _found(hidden(row, how), Secret("it", row.double()[None])) == 0


@settings(deadline=None, max_examples=100)
@given(st.integers(8, 31), st.sampled_from(DTYPES), st.integers(0, 50))
def test_short_rows_are_found_as_they_are(length: int, dtype: torch.dtype, offset: int):
    row = torch.randn(length, generator=torch.Generator().manual_seed(length))
    among = torch.cat([torch.randn(offset, generator=torch.Generator().manual_seed(3)), row]).to(dtype)
    assert _found(among, Secret("it", row.double()[None])) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**16), st.sampled_from(DTYPES), st.sampled_from([(64, 36), (3, 300), (5000,), (8, 3, 5, 5)]))
def test_weights_are_no_samples(seed: int, dtype: torch.dtype, shape: tuple[int, ...]):
    """Random numbers, uniform as layers start and normal, constants and whole numbers in order."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (50, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    weights = [torch.rand(shape, generator=generator) - 0.5, torch.randn(shape, generator=generator)]
    weights += [torch.ones(shape), torch.zeros(shape), torch.arange(100.0)]
    for secret in _of_samples(simulation_samples(images), Inputs()):
        assert [_found(weight.to(dtype), secret) for weight in weights] == [None] * 5


# Within a run -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Leaking(FedAvg):
    """Client 1 sends something else from round 2 on, under a harmless name or within the encoder."""

    what: str = "sample"
    where: str = "upload"

    def parts(self, model):
        mine = Rows(1, 40)
        mine.value += torch.linspace(0, 1, 40).cos()
        return {**super().parts(model), "mine": Part(mine, "client"), "rounds": Part(Rows(1), "shared")}

    def exchange(self, name: str, **changes: Any) -> Exchange:
        uploads = (Upload("statistics", (None,)),) if self.where == "upload" else ()
        return super().exchange(name, uploads=uploads, upload=self.upload, **changes)

    def keep(self, work: LocalWork) -> Tensors:
        return Tensors({"mine.value": (work.private["mine.value"] + work.train.x.mean()).sin()})

    def upload(self, work: LocalWork) -> dict[str, Tensor]:
        leaks = work.received["rounds.value"].item() >= 1 and work.train.x.mean() > 0.5
        secret = {
            "sample": work.train.x[3].flatten(),
            "labels": work.train.y.float(),
            "private": work.private["mine.value"].flatten(),
            "new private": self.keep(work)["mine.value"].flatten(),
            "nothing": torch.zeros(5),
        }[self.what if leaks else "nothing"]
        counted = {"rounds.value": work.trained["rounds.value"] + 1}
        if self.where == "upload":
            return {"statistics": 2 * secret + 1, **counted}
        weight = work.trained["encoder.1.weight"].clone()
        if leaks:
            weight.view(-1)[17 : 17 + len(secret)] = secret
        return {"encoder.1.weight": weight, **counted}


LEAKS = [
    ("sample", "upload", "'statistics' contains its sample 3"),
    ("labels", "upload", "'statistics' contains its labels, in order"),
    ("private", "upload", "'statistics' contains its private tensor 'mine.value' as it was before"),
    ("new private", "upload", "'statistics' contains its private tensor 'mine.value' as it is now"),
    ("sample", "encoder", "'encoder.1.weight' contains its sample 3"),
    ("private", "encoder", "'encoder.1.weight' contains its private tensor 'mine.value' as it was before"),
]
SETTINGS = {"data.per_class": 16, "protocol": {"name": "in-domain"}, "train.rounds": 3}


@pytest.mark.parametrize(("what", "where", "words"), LEAKS)
def test_what_one_client_sends_from_round_two_on_is_refused(make: Make, what: str, where: str, words: str):
    simulation = Simulation(replace(make({**SETTINGS, **AUDIT}), method=Leaking(what=what, where=where)))
    go_on(simulation)
    kept = dict(simulation.site.store.items())
    with pytest.raises(FedshiftError) as caught:
        go_on(simulation)
    for word in ("client 'light', round 2", "exchange 'train'", words):
        assert word in str(caught.value)
    assert simulation.site.store.get(2) is kept[2], "a client that is refused keeps what it had"
    simulate(replace(make(SETTINGS), method=Leaking(what=what, where=where)))  # nothing is looked at


def test_it_is_silent_where_nothing_leaks_and_a_refused_client_is_missing(make: Make):
    simulate(replace(make({**SETTINGS, **AUDIT}), method=Leaking(what="nothing")))
    some = {**SETTINGS, **AUDIT, "train.min_answers": 0.5}
    simulation = simulate(replace(make(some), method=Leaking()))
    missing = [(entry["round"], entry["client"]) for entry in simulation.coordinator.missing]
    assert missing == [(2, "light"), (3, "light")]
