"""What bfloat16 costs in accuracy: RotatedMNIST, one angle held out, FedAvg and FedSR, three seeds, both precisions.

The runs lie in --out and are not repeated; the ones that were interrupted go on.

    python benchmarks/precision.py --out runs/precision
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

import fedshift
from fedshift.errors import FedshiftError
from fedshift.runs.run import Run

PRECISIONS = ("float32", "bfloat16")
METHODS = ("fedavg", "fedsr")
Accuracies = Mapping[tuple[str, str, int], tuple[float, float]]


def accuracies(runs: Sequence[Run]) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Target and validation accuracy at the last round, in percent, by method, precision and seed."""
    found = {}
    for run in runs:
        last = run.records[-1]["environments"]
        target, validation = (
            100 * mean(row["accuracy"] for row in last if row["role"] == role) for role in ("test", "validation")
        )
        settings = run.table
        found[settings["method"]["name"], settings["train"]["precision"], settings["seed"]] = target, validation
    return found


def as_markdown(found: Accuracies, command: str) -> str:
    """The page."""
    lines = [
        "# What bfloat16 costs",
        "",
        "RotatedMNIST, 0 degrees held out; accuracy at the last round in percent, mean ± standard deviation over "
        "seeds. The difference is bfloat16 minus float32 of the same seed.",
        "",
        f"    {command}",
        "",
        "| method | seeds | float32 | bfloat16 | difference | sources: float32 | bfloat16 | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(method for method, _, _ in found):
        seeds = sorted({seed for name, _, seed in found if name == method})
        both = [seed for seed in seeds if all((method, precision, seed) in found for precision in PRECISIONS)]
        cells = [method, ", ".join(map(str, both)) or "none finished in both"]
        for place in (0, 1):
            values = [[found[method, precision, seed][place] for seed in both] for precision in PRECISIONS]
            change = [after - before for before, after in zip(*values, strict=True)]
            cells += [_told(values[0]), _told(values[1]), _told(change, signed=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _told(values: Sequence[float], *, signed: bool = False) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):{'+' if signed else ''}.2f}{spread}"


def main() -> None:
    """Carry out the runs and write the table."""
    head, _, example = __doc__.partition("    python ")
    parser = argparse.ArgumentParser(
        description=head,
        epilog=f"example:\n    python {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--rounds", type=int, default=300, help="rounds of each run (default 300)")
    parser.add_argument("--engine", default="auto", help="fedshift's engine (default auto)")
    parser.add_argument("--out", default="runs/precision", help="the folder of the runs")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write precision.md there")
    options = parser.parse_args()
    comparison = fedshift.compare(
        name="precision",
        seed=options.seeds,
        method=list(METHODS),
        rounds=options.rounds,
        out=options.out,
        settings={"train.precision": list(PRECISIONS), "run.engine": options.engine},
    )
    for reason in comparison.failed:
        print(f"failed: {reason}", file=sys.stderr)
    page = as_markdown(accuracies(comparison.runs), f"python benchmarks/precision.py {' '.join(sys.argv[1:])}")
    print(page)
    if options.docs:
        options.docs.mkdir(parents=True, exist_ok=True)
        (options.docs / "precision.md").write_text(page)


if __name__ == "__main__":
    try:
        main()
    except FedshiftError as error:
        sys.exit(str(error))
