"""The audit of replies finds copies of what must stay, and no method of the catalogue alarms it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import Make, go_on, simulate
from fedshift.clients.inputs import Inputs
from fedshift.clients.samples import Samples
from fedshift.core.contract import Exchange, LocalWork, Part, Upload
from fedshift.core.tensors import Tensors
from fedshift.methods.fedavg import FedAvg
from fedshift.rounds.site import _of_samples, find_copy
from fedshift.runs.simulation import Simulation
from reference import BUILT_IN, reference, small
from refusal import refuses

AUDIT = {"run.audit": True}


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_method_of_the_catalogue_alarms_it(name: str):
    """Its reference run, which the audit would end, has three rounds and layers large enough to be distinguished."""
    run = reference(name)
    assert run.experiment.run.audit
    assert run.simulation.coordinator.position == run.simulation.rounds


@pytest.mark.parametrize("name", ["moon", "ditto", "fedpin", "feddyn", "fedbn"])
def test_small_steps_do_not_alarm_it(make: Make, name: str):
    """Private models then hardly differ from those that are sent."""
    simulate(make({**small(name), "train.rounds": 3, "train.lr": 1e-8, **AUDIT}))


def test_an_upload_may_hold_only_the_private_part_that_it_reveals(make: Make):
    class Telling(FedAvg):
        """Keeps two rows of numbers, and uploads one that it kept."""

        carried: str = "own_a"

        def parts(self, model):
            own = {name: Part.state(torch.zeros(40), "client") for name in ("own_a", "own_b")}
            return {**super().parts(model), **own}

        def keep(self, work: LocalWork):
            numbers = torch.arange(40.0) + work.trained["head.bias"].sum().detach()
            return {"own_a.value": numbers.sin(), "own_b.value": (numbers * 2).cos()}

        def exchange(self, name):
            told = lambda work: {"told": work.private[f"{self.carried}.value"]}  # noqa: E731
            return super().exchange(name, uploads=(Upload("told", (40,), reveals="own_a"),), upload=told)

    experiment = make({**AUDIT, "train.rounds": 2})
    simulate(experiment.replace(method=Telling()))
    with refuses("round 2 ", "'told' contains its private tensor 'own_b.value' as it was"):
        simulate(experiment.replace(method=Telling(carried="own_b")))


# Where a copy may be -------------------------------------------------------------------------------

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def among_others(row: Tensor, form: str) -> Tensor:
    """A row of numbers among random ones."""
    before, after, more = torch.randn(3, len(row), generator=torch.Generator().manual_seed(17)).to(row.dtype)
    if form == "within":
        return torch.cat([before[:17], row, after, more])
    return torch.stack([before, row, after], dim=1 if form == "columns" else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["within", "stacked", "columns"])
def test_a_copy_of_a_sample_is_found_in_any_type(dtype: torch.dtype, form: str):
    """Colour images of uint8 as they are stored, or as a network reads them, by channel."""
    images = torch.randint(256, (10, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    inputs = Inputs(normalise=True)
    for read in (False, True):
        row = (inputs.evaluation(images) if read else images)[4].flatten().to(dtype)
        found = [find_copy(among_others(row, form), secret) for secret in _of_samples(samples_of(images), inputs)]
        assert 4 in found


def samples_of(x: Tensor) -> Samples:
    return Samples(x, torch.arange(len(x)) % 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_no_samples(dtype: torch.dtype):
    """Random numbers, constants and whole numbers in order; a blank image is no secret."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, 1, 6, 6), dtype=torch.uint8, generator=generator)
    images[7] = 0
    weights = [torch.randn((3, 300), generator=generator), torch.ones(5000), torch.zeros(5000), torch.arange(100.0)]
    for secret in _of_samples(samples_of(images), Inputs()):
        assert [find_copy(weight.to(dtype), secret) for weight in weights] == [None] * 4


# Within a run -------------------------------------------------------------------------------------


class Leaking(FedAvg):
    """Client 1 sends something else from round 2 on, under a harmless name or within the encoder."""

    what: str = "sample"
    where: str = "upload"

    def parts(self, model):
        mine = Part.state(torch.linspace(0, 1, 40).cos().unsqueeze(0), "client")
        return {**super().parts(model), "mine": mine, "rounds": Part.state(torch.zeros(1), "shared")}

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
            return {"statistics": torch.cat([torch.ones(3), secret]), **counted}
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
]
SETTINGS = {"data.per_class": 16, "protocol": {"name": "in-domain"}, "train.rounds": 3}


@pytest.mark.parametrize(("what", "where", "words"), LEAKS)
def test_what_one_client_sends_from_round_two_on_is_refused(make: Make, what: str, where: str, words: str):
    simulation = Simulation(make({**SETTINGS, **AUDIT}).replace(method=Leaking(what=what, where=where)))
    go_on(simulation)
    kept = dict(simulation.site.store.items())
    with refuses("client 'light', round 2", "exchange 'train'", words):
        go_on(simulation)
    assert simulation.site.store.get(2) is kept[2], "a client that is refused keeps what it had"
    simulate(make(SETTINGS).replace(method=Leaking(what=what, where=where)))  # nothing is inspected


def test_it_is_silent_where_nothing_leaks_and_a_refused_client_is_missing(make: Make):
    simulate(make({**SETTINGS, **AUDIT}).replace(method=Leaking(what="nothing")))
    some = {**SETTINGS, **AUDIT, "train.min_answers": 0.5}
    simulation = simulate(make(some).replace(method=Leaking()))
    missing = [(entry["round"], entry["client"]) for entry in simulation.coordinator.missing]
    assert missing == [(2, "light"), (3, "light")]
