"""fedshift's engines, other simulators and a hand-written loop on the same work, taking turns.

Every contestant is a process of its own with an interpreter of its own, set up and warmed up before anything is timed.
In each repeat all take a turn of about --seconds, one after the other; the order moves on by one each time. The figure
is the median over repeats of: the hand-written loop's seconds a round over the contestant's, in the same repeat.

What is checked besides: how many steps and samples each has done against what was asked for, that its global weights
are finite and have moved, its loss after the same few rounds, and that fedshift's engines end at the same weights.

    python benchmarks/engines.py --repeats 5 --seconds 3 --docs runs/engines \
        --python pfl=/tmp/venv-pfl/bin/python --python fluke=/tmp/venv-fluke/bin/python \
        --python flower=/tmp/venv-flower/bin/python
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from turns import Child, ChildError, Player, ratios, say, take_turns
from workloads import WORKLOADS, Workload

HAND = "hand-written loop"
OTHERS = {"pfl": "pfl", "fluke": "fluke", "flower": "Flower"}
ENGINES = ("sequential", "vectorised", "workers", "auto")
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
# Largest relative difference of a parameter from the sequential engine's after the warm-up, in the max norm of its
# layer: float32 sums in another order, and training amplifies what differs; bfloat16 rounds at 2^-9.
TOLERANCE = {"fp32": 2e-3, "bf16": 5e-2}


@dataclass(frozen=True)
class Entrant:
    """Who takes part: a name of the contestants', and for fedshift an engine and a precision."""

    label: str
    name: str
    engine: str = ""
    precision: str = "fp32"


def entrants() -> list[Entrant]:
    """All, the reference first."""
    ours = [
        Entrant(f"fedshift {engine} {precision}", "fedshift", engine, precision)
        for precision in PRECISIONS
        for engine in ENGINES
    ]
    before = [Entrant(f"before: {one.label}", "before", one.engine, one.precision) for one in ours]
    return [Entrant(HAND, "hand"), *ours, *before, *(Entrant(label, name) for name, label in OTHERS.items())]


@dataclass
class Outcome:
    """What came of one contestant on one workload."""

    label: str
    precision: str
    failed: str = ""
    turns: dict[int, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def measure(workload: Workload, chosen: Sequence[Entrant], options: argparse.Namespace) -> list[Outcome]:
    """Set everybody up, check them, and let them take turns."""
    interpreters = dict(pair.split("=", 1) for pair in options.python)
    players = [_player(entrant, workload, interpreters, options) for entrant in chosen]
    precision = {entrant.label: entrant.precision for entrant in chosen}
    problems: dict[str, list[str]] = {player.label: [] for player in players}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for player in players:
                player.attempt(lambda child, player=player: _warm_up(player, child, workload, Path(folder)))
                player.settle(options.seconds)
            _compare(players, precision, problems)
        take_turns([player for player in players if not player.failed], options.repeats)
        for player in players:
            player.attempt(lambda child, player=player: _check(player, child, workload, problems[player.label]))
    finally:
        for player in players:
            player.close()
    reference = players[0]
    return [
        Outcome(
            player.label,
            precision[player.label],
            player.failed,
            player.turns,
            [] if player.failed else ratios(player, reference),
            player.about,
            problems[player.label],
        )
        for player in players
    ]


def _player(
    entrant: Entrant, workload: Workload, interpreters: Mapping[str, str], options: argparse.Namespace
) -> Player:
    told = {
        "name": "fedshift" if entrant.name == "before" else entrant.name,
        "workload": workload.name,
        "threads": options.threads,
        "engine": entrant.engine,
        "precision": PRECISIONS[entrant.precision],
    }
    python, script = interpreters.get(entrant.name, sys.executable), "contestants.py"
    if entrant.name == "before":
        python = str(options.before / ".venv" / "bin" / "python")
        script = str(options.before / "benchmarks" / script)

    def start() -> Child:
        say(f"{entrant.label}: starting")
        environment = dict(os.environ)
        environment.pop("OMP_WAIT_POLICY", None)
        if entrant.name in ("fedshift", "before"):  # as `import fedshift` does, where it comes before torch
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        return Child(entrant.label, python, script, json.dumps(told), options.timeout, environment)

    return Player(entrant.label, start)


def _warm_up(player: Player, child: Child, workload: Workload, folder: Path) -> None:
    """The first rounds, after which losses and weights are compared."""
    child.ask(f"go {workload.warm_up}")
    told = child.ask("check")
    player.about |= {"loss": told["loss"], "note": told["note"], "warm": told}
    if "fedshift" in player.about["versions"]:
        path = folder / f"{player.label}.pt"
        child.ask(f"weights {path.as_posix().replace(' ', '_')}")
        player.about["weights"] = torch.load(path.as_posix().replace(" ", "_"))
    say(f"{player.label}: loss {told['loss']:.4f} after {workload.warm_up} round(s)")


def _compare(players: Sequence[Player], precision: Mapping[str, str], problems: Mapping[str, list[str]]) -> None:
    """Fedshift's engines against its sequential one; everybody's loss against the hand-written loop's."""
    by_label = {player.label: player for player in players}
    for player in players:
        weights = player.about.pop("weights", None)
        kind = precision[player.label]
        reference = by_label.get(f"fedshift sequential {kind}")
        if player is reference:
            player.about["reference"] = weights
        elif weights is not None and reference is not None and "reference" in reference.about:
            apart = max(
                float((ours - theirs).abs().max() / theirs.abs().max())
                for ours, theirs in zip(weights, reference.about["reference"], strict=True)
            )
            player.about["apart"] = apart
            say(f"{player.label}: weights {apart:.1e} from the sequential engine's")
            if not apart <= TOLERANCE[kind]:
                problems[player.label].append(f"weights {apart:.1e} from the sequential engine's")
    for player in players:
        player.about.pop("reference", None)
        loss, expected = player.about.get("loss"), players[0].about.get("loss")
        if loss is not None and expected is not None and not abs(loss - expected) <= 0.1 * abs(expected) + 0.01:
            problems[player.label].append(f"loss {loss:.3f} where the loop's is {expected:.3f}")


def _check(player: Player, child: Child, workload: Workload, problems: list[str]) -> None:
    """What was done since the warm-up against what was asked for."""
    before, after = player.about.pop("warm"), child.ask("check")
    rounds = player.about["settled"] + player.rounds * len(player.turns)
    steps = after["steps"] - before["steps"]
    if steps != rounds * workload.steps_a_round:
        problems.append(f"{steps} steps where {rounds * workload.steps_a_round} were asked for")
    if after["samples"] is not None and after["samples"] - before["samples"] != steps * workload.batch:
        problems.append(f"{after['samples'] - before['samples']} samples in {steps} steps of {workload.batch}")
    if not after["finite"]:
        problems.append("weights that are not finite")
    if not after["moved"] > 0:
        problems.append("weights that have not moved")
    player.about |= {"steps": after["steps"], "samples": after["samples"], "moved": after["moved"]}
    player.about["note"] = after["note"]
    if problems:
        say(f"{player.label}: {'; '.join(problems)}")


# Tables and plots -----------------------------------------------------------------------------------------------------


def machine() -> str:
    """The machine, in words."""
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [
            line.partition(":")[2].strip() for line in information.read_text().splitlines() if "model name" in line
        ]
        name = models[0] if models else name
    return f"{os.cpu_count()} cores ({name}), {platform.system()}, Python {platform.python_version()}"


def as_markdown(results: Mapping[str, Sequence[Mapping[str, Any]]], about: Mapping[str, Any]) -> str:
    """The page: how it was measured, and a table for each workload."""
    text = f"""\
        # Engines and other simulators on the same work

        FedAvg without evaluation, SGD with momentum, made data from a fixed seed, the same for everybody. Each
        contestant runs in a process of its own; in each of {about["repeats"]} repeats all took a turn of about
        {about["seconds"]:g} s, the order moving on by one each time. *Times as fast*: the hand-written PyTorch loop's
        seconds a round ({about["threads"]} threads) over the contestant's, in the same repeat; median (smallest to
        largest). *Loss*: of the global model on the training data after the same few rounds from the same start, in
        nats. Steps and samples were counted and agree with what was asked for unless a line says otherwise.

        Machine: {about["machine"]}. {about["date"]}.

            {about["command"]}

        ![Times as fast as the hand-written loop](engines.png)
        """
    lines = [textwrap.dedent(text)]
    for name, outcomes in results.items():
        lines += [f"## {WORKLOADS[name].title}", ""]
        lines += ["| contestant | ms a round | times as fast | loss | remarks |", "|---|---|---|---|---|"]
        lines += [_row(outcome) for outcome in outcomes]
        lines.append("")
    return "\n".join(lines)


def _row(outcome: Mapping[str, Any]) -> str:
    remarks = [*outcome["problems"], outcome["about"].get("note", "")]
    versions = outcome["about"].get("versions", {})
    remarks.append(", ".join(f"{package} {version}" for package, version in versions.items()))
    if "apart" in outcome["about"]:
        remarks.append(f"weights {outcome['about']['apart']:.0e} from the sequential engine's")
    if outcome["failed"]:
        return f"| {outcome['label']} | | | | **did not run**: {outcome['failed']} |"
    ms = 1000 * median(outcome["turns"].values())
    low, high = min(outcome["ratios"]), max(outcome["ratios"])
    ratio = f"**{median(outcome['ratios']):.2f}** ({low:.2f} to {high:.2f})"
    told = "; ".join(remark for remark in remarks if remark)
    return f"| {outcome['label']} | {ms:.1f} | {ratio} | {outcome['about']['loss']:.4f} | {told} |"


def plot(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Horizontal bars of the ratio, a panel each workload."""
    import matplotlib as mpl  # noqa: PLC0415  # a table alone needs none

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    heights = [len(outcomes) for outcomes in results.values()]
    figure, panels = plt.subplots(
        len(results),
        figsize=(8, 0.27 * sum(heights) + 0.9 * len(results)),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axes, (name, outcomes) in zip(panels[:, 0], results.items(), strict=True):
        for place, outcome in enumerate(outcomes):
            _bar(axes, place, outcome)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(outcomes)), [outcome["label"] for outcome in outcomes], fontsize=8)
        axes.set_ylim(len(outcomes) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_title(WORKLOADS[name].title, fontsize=9, loc="left")
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel(
        "times as fast as the hand-written loop (median; whiskers: smallest and largest)", fontsize=8
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(32).save(path, optimize=True)  # a third of the bytes


def _bar(axes: Any, place: int, outcome: Mapping[str, Any]) -> None:
    if outcome["failed"]:
        axes.text(0.02, place, "did not run", va="center", fontsize=8, style="italic", color="gray")
        return
    middle, low, high = (f(outcome["ratios"]) for f in (median, min, max))
    ours = outcome["label"].startswith("fedshift")
    colour = "#2b6cb0" if ours and outcome["precision"] == "fp32" else "#90cdf4" if ours else "#a0aec0"
    axes.barh(place, middle, color=colour, height=0.7)
    axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], color="black", capsize=2, linewidth=0.8)
    axes.text(high, place, f"  {middle:.2f}", va="center", fontsize=8)


# The command ----------------------------------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    head, _, example = __doc__.partition("    python ")
    parser = argparse.ArgumentParser(
        description=head,
        epilog=f"example:\n    python {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [entrant.label for entrant in entrants()]
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="which (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a turn takes (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="of what is one process; not of auto (default 2)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds an answer may take (default 300)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="WORD",
        help=f"contestants whose name has this in it (the loop is always there): {', '.join(names)}",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the interpreter of pfl, fluke, flower",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="another checkout with an environment in .venv, whose engines take their turns as well",
    )
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write engines.md, .png and .json there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there as well")
    parser.add_argument(
        "--read", type=Path, action="append", metavar="FILE", help="measure nothing; make the page from such files"
    )
    return parser.parse_args()


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    import datetime  # noqa: PLC0415

    chosen = [e for e in entrants() if e.label == HAND or not options.only or any(w in e.label for w in options.only)]
    chosen = [e for e in chosen if options.before or e.name != "before"]
    about = {
        "repeats": options.repeats,
        "seconds": options.seconds,
        "threads": options.threads,
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python benchmarks/engines.py {' '.join(sys.argv[1:])}",
    }
    results = {}
    for name in options.workload or list(WORKLOADS):
        say(WORKLOADS[name].title)
        results[name] = [vars(outcome) for outcome in measure(WORKLOADS[name], chosen, options)]
    return {"about": about, "results": results}


def _read(paths: Sequence[Path]) -> dict[str, Any]:
    """Several files as one; of a workload that several hold, the last counts."""
    held = [json.loads(path.read_text()) for path in paths]
    return {
        "about": held[-1]["about"],
        "results": {name: rows for one in held for name, rows in one["results"].items()},
    }


def _files(options: argparse.Namespace) -> Iterator[Path]:
    if options.json:
        yield options.json
    if options.docs:
        yield options.docs / "engines.json"


def main() -> None:
    """Measure, print the page, and write it."""
    options = _arguments()
    made = _read(options.read) if options.read else _measured(options)
    page = as_markdown(made["results"], made["about"])
    print(page)
    for path in _files(options):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made, indent=1) + "\n")
    if options.docs:
        (options.docs / "engines.md").write_text(page)
        plot(made["results"], options.docs / "engines.png")
        say(f"wrote {options.docs}/engines.md")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no child is left behind
    try:
        main()
    except (ChildError, KeyboardInterrupt) as error:
        sys.exit(f"ended: {error}")
