"""Dropout from the streams: what it drops, that engines agree on it, and that a resumed run is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import Make, simulate
from fedshift.core.contract import Part, Term
from fedshift.core.dropout import NOISE, Dropout, dropping, from_streams
from fedshift.core.model import Model
from fedshift.core.net import Net
from fedshift.experiments import Experiment
from fedshift.methods.fedavg import FedAvg
from fedshift.models import MODELS
from refusal import refuses
from test_engines import ENGINES, engine_named
from test_methods import tensors_of


def dropped(layer: nn.Module, x: torch.Tensor, key: int = 1) -> torch.Tensor:
    """What a net of one layer, in training mode, gives in one step."""
    net = Net({"part": nn.Sequential(layer).train()})
    with dropping(net.dropouts, {NOISE: torch.tensor(key)}):
        return net.part(x)


# What it drops ------------------------------------------------------------------------------------


def test_so_many_values_are_dropped_and_the_others_scaled():
    """Of 40,000 ones 0.3 are dropped, give or take 0.0023 (one sigma), and the others become 1 / 0.7."""
    out = dropped(Dropout(0.3), torch.ones(200, 200))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    for axis in (0, 1):  # no row or column is special: a sigma is 0.032
        assert (out == 0).float().mean(dim=axis).sub(0.3).abs().max() < 0.16


def test_what_is_dropped_is_pinned():
    """A changed mask would change runs that are resumed: splitmix64 by Python's whole numbers, place by place."""

    def mixed(x: int) -> int:
        x = x * 0x9E3779B97F4A7C15 % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    key = 2**61 + 12345
    base = mixed(mixed(key) + 1)  # of the first layer, in its first call
    kept = [(mixed((base + place) % 2**64) >> 40) / 2**24 >= 0.4 for place in range(64)]
    out = dropped(Dropout(0.4), torch.ones(8, 8), key=key)
    assert (out.flatten() > 0).tolist() == kept


def test_channels_are_dropped_together():
    module = nn.Sequential(nn.Dropout2d(0.5))
    from_streams(module, "encoder")
    rows = dropped(module, torch.ones(30, 20, 3, 3)).view(600, -1)
    assert ((rows == 0).all(dim=1) | (rows == 2).all(dim=1)).all()
    assert 200 < (rows[:, 0] == 0).sum() < 400


def test_nothing_is_dropped_in_evaluation_mode_and_no_generator_is_asked():
    x, before = torch.ones(9, 9), torch.get_rng_state()
    assert torch.equal(Dropout(0.5).eval()(x), x)
    dropped(Dropout(0.5), x)
    assert torch.equal(torch.get_rng_state(), before)
    with refuses("Dropout", "module.eval()"):
        Dropout(0.5).train()(x)


def test_another_kind_of_dropout_is_refused():
    for module, path in ((nn.Sequential(nn.AlphaDropout(0.1)), "0"), (nn.AlphaDropout(0.1), "")):
        with refuses(f"Layer '{path}'", "encoder", "nn.Dropout"):
            from_streams(module, "encoder")


# In a run -----------------------------------------------------------------------------------------


class Dropping(Model):
    """Two layers, each with dropout before it."""

    p: float = 0.4

    def encoder(self, shape, out):
        return nn.Sequential(
            nn.Dropout2d(self.p), nn.Flatten(), nn.Linear(100, 6), nn.ReLU(), nn.Dropout(self.p), nn.Linear(6, out)
        )


class Twice(FedAvg):
    """A loss that encodes a batch twice, as the consistency of two passes does, with a part made plainly."""

    def parts(self, model):
        return {**super().parts(model), "own": Part(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "client")}

    def moves(self):
        return (*super().moves(), "own")

    def terms(self):
        return super().terms() | {"consistency": Term(self.consistency)}

    def consistency(self, net, batch, context):
        return F.mse_loss(batch.z, net.own(self.encode(net, batch, {}).z))


def experiment_of(make: Make, method: FedAvg | None = None, p: float = 0.4) -> Experiment:
    document = {"train.precision": "float64", "train.rounds": 3, "method.optimiser_state": "kept"}
    experiment = make(document).replace(model=Dropping(dim=4, p=p))
    return experiment if method is None else experiment.replace(method=method)


@pytest.mark.parametrize("kind", [name for name in ENGINES if name != "sequential"])
def test_engines_agree(make: Make, kind: str):
    told: list[str] = []
    experiment = experiment_of(make, Twice())
    one = tensors_of(simulate(experiment))
    with engine_named(kind, told) as engine:
        other = tensors_of(simulate(experiment, engine=engine))
    assert not told
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    plain = tensors_of(simulate(experiment_of(make, Twice(), p=0.0)))
    assert any(not torch.allclose(tensor, plain[name]) for name, tensor in one.items())


def test_a_resumed_run_drops_what_an_undisturbed_one_does(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS._listed, "dropping", Dropping)  # as a checkpoint names it
    whole = simulate(experiment_of(make))
    simulate(experiment_of(make), rounds=1, folder=tmp_path)
    resumed = simulate(experiment_of(make), folder=tmp_path)
    assert all(torch.equal(tensor, tensors_of(resumed)[name]) for name, tensor in tensors_of(whole).items())
