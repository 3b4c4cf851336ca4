"""The game that FedPIN prints, a plugin beside its results: its signs by hand, and what becomes of omega_a."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import at, linear
from fedshift.content import module_of
from fedshift.core.contract import Batch, ServerState
from fedshift.core.net import Net
from fedshift.core.tensors import Replies, Tensors, part_of

PLUGIN = Path(__file__).parent.parent / "docs" / "results" / "fedpin_game.py"
GAME: Any = module_of(PLUGIN)


def game_net() -> Net:
    """One dimension, z = w x with w = 1; omega_g's logits (z, -z); omega_a's logits (2z, -2z)."""
    return Net({"encoder": linear(1.0), "head": linear(1.0, -1.0), "auxiliary": linear(2.0, -2.0)})


ONE = Batch(torch.tensor([[1.0]]), torch.tensor([0]))


@pytest.mark.parametrize("auxiliary", ["minimise", "literal"])
def test_the_game_and_its_signs_by_hand(auxiliary: str):
    """One image x = 1 of y = 0, alpha = 3, q_g = sigmoid(-2) = 0.1192029, q_a = sigmoid(-4) = 0.0179862.

    R_g = log(1 + e^-2) = 0.1269280, R_a = log(1 + e^-4) = 0.0181499, 3 (R_g - R_a) = 0.3263343.
    d/dw: R_g gives -2 q_g = -0.2384058, R_a gives -4 q_a = -0.0719448, so
      4 * -0.2384058 - 3 * -0.0719448 = -0.7377888: the encoder descends on R_g and ascends on R_a.
    d/dh of the head's first row: 4 * -q_g = -0.4768117.
    d/da of omega_a's first row, in R_a: -q_a = -0.0179862, so a step down R_a raises it; in the global loss:
      -3 * -0.0179862 = +0.0539586, so a step down that loss lowers it and R_a rises.
    """
    method, net = GAME.GlobalGame(alpha=3, auxiliary=auxiliary, auxiliary_head="per_client"), game_net()
    objectives = {objective.name: objective for objective in method.game()}
    terms = objectives["global"].evaluate(net, ONE, at())
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"cross_entropy": 0.1269280, "invariance": 0.3263343}, abs=1e-6
    )
    parameters = dict(net.parameters())
    moved = [p for name, p in parameters.items() if part_of(name) in objectives["global"].moves]
    torch.autograd.backward(sum(terms.values()), inputs=moved)
    assert parameters["encoder.weight"].grad.item() == pytest.approx(-0.7377888, abs=1e-6)
    assert parameters["head.weight"].grad.flatten().tolist() == pytest.approx([-0.4768117, 0.4768117], abs=1e-6)
    if auxiliary == "literal":
        assert list(objectives) == ["global"]
        expected = [0.0539586, -0.0539586]
    else:
        assert list(objectives) == ["auxiliary", "global"]
        assert parameters["auxiliary.weight"].grad is None
        before = parameters["encoder.weight"].grad.clone()
        own = objectives["auxiliary"].evaluate(net, ONE, at())["auxiliary"]
        assert own.item() == pytest.approx(0.0181499, abs=1e-6)
        own.backward()
        assert torch.equal(parameters["encoder.weight"].grad, before)  # stop gradient
        expected = [-0.0179862, 0.0179862]
    assert parameters["auxiliary.weight"].grad.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_the_mlps_one_hot_columns_are_merged_by_owner():
    """One dimension, three clients, clients 0 and 2 took part.

    First layer, columns (z | 0, 1, 2): the server has (0 | 1, 2, 3), client 0 sends (2 | 10, 20, 30), client 2
    (4 | 100, 200, 300). z's column and the bias are means; column 0 is client 0's, 2 client 2's, 1 the server's.
    """

    def sent(*columns: float) -> Tensors:
        return Tensors({"weight": torch.tensor([columns]), "bias": torch.tensor([columns[0]])}).under("auxiliary.first")

    state = ServerState(sent(0.0, 1.0, 2.0, 3.0), clients=3)
    replies = Replies([(0, sent(2.0, 10.0, 20.0, 30.0)), (2, sent(4.0, 100.0, 200.0, 300.0))])
    merged = GAME.GlobalGame(auxiliary_head="mlp").merge(state, replies).shared
    assert merged["auxiliary.first.weight"].tolist() == [[3, 10, 2, 300]]
    assert merged["auxiliary.first.bias"].tolist() == [3]
    assert state.shared["auxiliary.first.weight"].tolist() == [[0, 1, 2, 3]]  # a merge changes no state
