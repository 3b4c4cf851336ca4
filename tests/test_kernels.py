"""Prepared modules against plain ones: values, first and second gradients, copies, and what precision changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from fedshift.core.model import Model, ModelBuilder
from fedshift.engines import onednn
from fedshift.engines.kernels import Kernels, Precision, prepare
from fedshift.engines.onednn import OneDNNLinear, onednn_available, onednn_linear
from fedshift.models.small import CNN, MLP
from fedshift.streams import Streams

ONEDNN = Kernels(linear="onednn")
ALL = Kernels(channels_last=True, linear="onednn")
needs_onednn = pytest.mark.skipif(not onednn_available(), reason="this build of PyTorch cannot multiply by oneDNN")

# Sums of up to 300 products of numbers of size 1, in another order: a relative error of 300 * 2^-24 at worst of sums
# whose size is 17; second-order terms add up as many again.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def normal(*shape: int, dtype: torch.dtype = torch.float32, name: str = "x") -> Tensor:
    return torch.randn(*shape, generator=Streams(0).generator(name), dtype=torch.float64).to(dtype)


def encoder(model: Model, shape: tuple[int, ...] = (1, 12, 12)) -> nn.Module:
    return ModelBuilder(model, shape, 10, Streams(0), clients=2).encoder()


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """OneDNN multiplies matrices of every size."""
    monkeypatch.setattr(onednn, "SMALLEST_PRODUCT", 0)
    monkeypatch.setattr(onednn, "NARROWEST_PRODUCT", 1)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What oneDNN multiplied: (rows, in, out) of each product."""
    seen: list[tuple[int, ...]] = []
    multiply = onednn._multiply

    def spy(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append((len(rows), *reversed(weight.shape)))
        return multiply(rows, weight, bias)

    monkeypatch.setattr(onednn, "_multiply", spy)
    return seen


# The product --------------------------------------------------------------------------------------


def strided(x: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return torch.stack([x, x + 1], dim=-1)[..., 0]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaps": strided,
    "one row for all": lambda x: x[..., :1, :].expand_as(x),
}


@needs_onednn
@pytest.mark.parametrize("shape", [(300, 20), (5, 60, 20), (2, 3, 50, 20)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_product_and_gradients_are_those_of_f_linear(
    every_size: None, products: list[tuple[int, ...]], shape: tuple[int, ...], bias: bool, layout: str
):
    given = [LAYOUTS[layout](normal(*shape)), LAYOUTS[layout](normal(7, 20, name="w"))]
    given += [strided(normal(7, name="b"))] if bias else []
    results = []
    for linear in (onednn_linear, F.linear):
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        y = linear(*leaves)
        results.append([y.detach(), *torch.autograd.grad((y * normal(*y.shape, name="g")).sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert products == [(300, 20, 7), (300, 7, 20), (7, 300, 20)]


@needs_onednn
def test_a_gradient_can_be_differentiated(every_size: None, products: list[tuple[int, ...]]):
    """The squared norm of the gradient of a non-linear loss, as in FedIIR, for every tensor that moves."""
    results = []
    for linear in (onednn_linear, F.linear):
        leaves = [normal(30, 20), normal(9, 20, name="w") / 4, normal(9, name="b"), normal(5, 9, name="v") / 4]
        x, w, b, v = (leaf.requires_grad_() for leaf in leaves)
        loss = linear(linear(x, w, b).tanh(), v).logsumexp(dim=1).sum()
        first = torch.autograd.grad(loss, (x, w, b, v), create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), (x, w, b, v))
        results.append([*first, *second])
    assert len(products) > 2 + 4
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@needs_onednn
def test_other_numbers_and_small_matrices_are_f_linears(products: list[tuple[int, ...]]):
    """A product of 300x200x100 is 6 million multiplications; one of 100x200x100 is 2.0 million, below the limit."""
    x, w = normal(300, 200), normal(100, 200, name="w")
    for rows, weight in [(x[:100], w), (x[0], w), (x.double(), w.double()), (x[:0], w)]:
        assert torch.equal(onednn_linear(rows, weight), F.linear(rows, weight))
    assert products == []
    onednn_linear(x, w)
    assert products == [(300, 200, 100)]


# Preparation --------------------------------------------------------------------------------------

MODELS = {"mlp": MLP(hidden=(30,), norm="batch"), "cnn": CNN(channels=(4, 6), norm="batch")}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def trained(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, the gradients of a loss and the buffers after it."""
    module.train().zero_grad()
    z = module(x)
    (z * normal(*z.shape, name="g")).sum().backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert len(gradients) == len(list(module.parameters()))
    return [z.detach(), *gradients, *(buffer.clone() for buffer in module.buffers())]


def test_channels_last_reaches_every_convolution():
    """Also a first one of one channel, for whose weight both layouts are contiguous; its output shows which it has."""
    module, images = encoder(CNN(channels=(4, 6))), normal(2, 1, 12, 12)
    for kernels_now, expected in [(Kernels(), False), (ALL, True)]:
        prepare(module, kernels_now, "float32")
        assert [out.stride(1) == 1 for out in (module[0](images), module[:4](images))] == [expected, expected]


@needs_onednn
def test_only_linear_layers_of_float32_change():
    def classes(precision: Precision) -> list[type[nn.Module]]:
        module = nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2))
        prepare(module, ONEDNN, precision)
        return [type(layer) for layer in module]

    assert classes("float32") == [OneDNNLinear, nn.Bilinear]
    assert classes("float64") == classes("bfloat16") == [nn.Linear, nn.Bilinear]


def test_without_a_private_function_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """As with a PyTorch that was built without oneDNN, or that names its functions otherwise."""
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    onednn_available.cache_clear()
    try:
        head = nn.Linear(2, 2)
        prepare(head, ONEDNN, "float32")
        assert type(head) is nn.Linear
    finally:
        onednn_available.cache_clear()


# bfloat16 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_in_bfloat16_all_that_leaves_is_float32(model: str):
    """Values are rounded to 8 bits on the way and a ReLU may take another side, so results differ, and by little.

    A bias before batch norm has no gradient but what rounding leaves.
    """
    plain, ready = encoder(MODELS[model]), encoder(MODELS[model])
    prepare(ready, ALL, "bfloat16")
    x = normal(16, 1, 12, 12)
    for ours, theirs in zip(trained(ready, x), trained(plain, x), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.dtype is not torch.bfloat16
        if ours.is_floating_point():
            assert (ours - theirs).norm() <= 0.2 * theirs.norm() + 0.1
    assert not torch.equal(ready(x), plain(x))
    assert not torch.is_autocast_enabled("cpu")


# Copies and transforms ----------------------------------------------------------------------------

PREPARED = [(ALL, "float32"), (ALL, "bfloat16")]


@pytest.mark.parametrize(("settings", "precision"), PREPARED)
@pytest.mark.parametrize("model", MODELS)
def test_clients_can_be_stacked(every_size: None, settings: Kernels, precision: Any, model: str):
    """Outputs under vmap, gradients of one loss of all, and buffers are those of each client alone."""
    clients = [ModelBuilder(MODELS[model], (1, 12, 12), 10, Streams(seed), clients=2).encoder() for seed in (0, 1)]
    for client in clients:
        prepare(client, settings, precision)
    parameters, buffers = stack_module_state(clients)
    x = normal(2, 16, 1, 12, 12)

    def forward(tensors: dict[str, Tensor], batch: Tensor) -> Tensor:
        z: Tensor = functional_call(clients[0], tensors, (batch,))
        return z

    z = vmap(forward)({**parameters, **buffers}, x)
    assert z.dtype is torch.float32
    (z * normal(16, 64, name="g")).sum().backward()
    share, rest = (1e-4, 1e-4) if precision == "float32" else (0.2, 0.1)
    for index, client in enumerate(clients):
        stacked = [z[index], *(p.grad[index] for p in parameters.values()), *(b[index] for b in buffers.values())]
        for ours, theirs in zip(stacked, trained(client, x[index]), strict=True):
            assert ours.dtype == theirs.dtype
            assert (ours - theirs).double().norm() <= share * theirs.double().norm() + rest
