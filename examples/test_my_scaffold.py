"""The equations of SCAFFOLD, checked by hand on examples/my_scaffold.py."""

from pathlib import Path

import pytest
from my_scaffold import MyScaffold

import fedshift
from fedshift import FedAvg
from fedshift.page import *


def one(**numbers: float) -> Tensors:
    return Tensors({name.replace("__", "."): torch.tensor(value) for name, value in numbers.items()})


def test_the_hooks_by_hand() -> None:
    nothing, samples = Tensors(), Samples(torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64))
    received, trained, private = Down(one(head__w=1.0, c__head__w=0.2)), one(head__w=0.4), one(c_k__head__w=0.5)
    work = LocalWork(received, nothing, torch.tensor([8]), trained, private, samples, steps=3, lr=0.1)
    assert MyScaffold().keep(work)["c_k.head.w"].item() == pytest.approx(2.3)
    assert MyScaffold().upload(work)["change.head.w"].item() == pytest.approx(1.8)

    state = ServerState(shared=one(head__w=1.0), down=one(c__head__w=0.2), clients=4)
    answers = [(0, Up(one(head__w=0.4, change__head__w=1.8))), (3, Up(one(head__w=0.8, change__head__w=0.2)))]
    merged = MyScaffold().merge(state, Replies(answers))
    assert merged.shared["head.w"].item() == pytest.approx(0.6)
    assert merged.down["c.head.w"].item() == pytest.approx(0.7)


FEW = {"name": "rotated-mnist", "images_per_class": 10}
STEPS = {"train.steps": 4, "train.batch": 8, "train.lr": 0.1, "train.momentum": 0.0}
FIXED = {"run.engine": "sequential", "run.threads": 1, "run.device": "cpu", "train.precision": "float64"}
SMALL = {"name": "mlp", "dim": 4, "hidden": [8]}


def weights(method: FedAvg, rounds: int, out: Path) -> Tensors:
    """The final tensors of a run on few images of five clients."""
    settings = STEPS | FIXED | {"evaluate.every": 1000}
    options = {"method": method, "model": SMALL, "hold_out": "0", "rounds": rounds, "out": out, "settings": settings}
    return Tensors(fedshift.run({"data": FEW}, **options).weights)


def test_with_zero_variates_it_is_fedavg(tmp_path: Path) -> None:
    plain, ours = (weights(method, 1, tmp_path) for method in (FedAvg(), MyScaffold()))
    assert all(torch.equal(ours[name], tensor) for name, tensor in plain.items())


@fedshift.METHODS.register("quadratic")
class Quadratic(FedAvg):
    """Client k has (k + 1)/2 * |b - k|^2, where b is the head's bias."""

    def terms(self) -> dict[str, Term]:
        return {"quadratic": Term(self.quadratic)}

    def quadratic(self, net: Net, batch: Batch, context: Context) -> Tensor:
        k = context.client
        return (k + 1) / 2 * (net.of("head")["bias"] - k).square().sum()


@fedshift.METHODS.register("quadratic-scaffold")
class QuadraticScaffold(MyScaffold, Quadratic):
    """SCAFFOLD on the same objectives."""


def test_it_reaches_the_optimum_of_all_and_fedavg_does_not(tmp_path: Path) -> None:
    left = [(1 - 0.1 * (k + 1)) ** 4 for k in range(5)]
    drifted = sum(k * (1 - q) for k, q in enumerate(left)) / sum(1 - q for q in left)
    plain = weights(Quadratic(), 20, tmp_path)["head.bias"]
    torch.testing.assert_close(plain, torch.full_like(plain, drifted), rtol=0, atol=1e-6)

    ours = weights(QuadraticScaffold(), 20, tmp_path)
    optimum = torch.full_like(plain, 40 / 15)
    torch.testing.assert_close(ours["head.bias"], optimum, rtol=0, atol=1e-6)
    for k in range(5):
        torch.testing.assert_close(ours[f"client.{k}.c_k.head.bias"], (k + 1) * (optimum - k), rtol=0, atol=1e-5)
