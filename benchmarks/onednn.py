"""What oneDNN's product, a private function of PyTorch, gains over ``F.linear``, which multiplies by MKL.

A linear layer's forward and backward on one thread in float32. Both take turns, so that a change of the machine's
speed meets both; told are medians, and the median (smallest to largest) of the ratios of the turns. On AMD processors
MKL uses AVX2 only; limited to that, one of Intel's can stand in for them:

    python benchmarks/onednn.py
    MKL_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/onednn.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.engines import kernels

SIZES = ((16, 256, 256), (128, 784, 100), (64, 784, 390), (200, 392, 390), (64, 3136, 128))
Linear = Callable[[Tensor, Tensor, Tensor], Tensor]


def turn(linear: Linear, tensors: tuple[Tensor, Tensor, Tensor], gradient: Tensor, seconds: float) -> float:
    """Microseconds of a forward and a backward."""
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        torch.autograd.grad(linear(*tensors), tensors, gradient)
        count += 1
    return 1e6 * took / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a turn takes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.SMALLEST_PRODUCT = 0  # so that oneDNN takes the small ones, too
    print(f"torch {torch.__version__}, MKL limited to {os.environ.get('MKL_ENABLE_INSTRUCTIONS', 'nothing')}\n")
    print("| batch x inputs x outputs | F.linear | oneDNN | times as fast |\n|---|---|---|---|")
    for batch, inputs, outputs in SIZES:
        tensors = tuple(
            torch.randn(shape, requires_grad=True) for shape in ((batch, inputs), (outputs, inputs), outputs)
        )
        gradient = torch.randn(batch, outputs)
        times = [
            [turn(linear, tensors, gradient, options.seconds) for linear in (F.linear, kernels.onednn_linear)]
            for _ in range(options.turns + 1)
        ][1:]  # the first warms up
        ratios = [theirs / ours for theirs, ours in times]
        theirs, ours = (median(column) for column in zip(*times, strict=True))
        spread = f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {batch}x{inputs}x{outputs} | {theirs:.0f} µs | {ours:.0f} µs | {spread} |", flush=True)


if __name__ == "__main__":
    main()
