"""What a round costs on Flower: a SuperLink and three SuperNodes on this machine, against the same run in one process.

Both carry out the same rounds with the same bits: FedAvg on three sites of RotatedMNIST, few steps, every round scored.
On Flower the round is followed at its slowest site. Its clock is that of this machine, so the coordinator's events and
the site's log stand on one line of time.

    python benchmarks/federation.py --rounds 12 --docs runs/federation
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from fedshift.deployment.agreement import Agreement
from fedshift.deployment.demo import carried_out, rehearse
from fedshift.deployment.supervisor import Processes, free_port
from fedshift.errors import FedshiftError
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.written import bytes_text, seconds_of

SITES = ("0", "15", "30")
MODELS: Mapping[str, Sequence[str]] = {
    "mlp": ("--model", "mlp", "--set", "model.hidden=[12]", "--set", "model.dim=32"),
    "resnet18": ("--model", "resnet18"),
}
SETTINGS = (
    "protocol.name=in-domain",
    "data.images_per_class=10",
    "train.steps=2",
    "train.batch=10",
    "evaluate.every=1",
)
PARTS = {
    "to the site": "Flower: until the site's SuperNode has asked for the message, and the site's executor has it",
    "request": "the request is read",
    "setup": "settings, the model and the client's state are read",
    "data": "the samples are read",
    "score": "the model of the round before is scored",
    "order": "training",
    "reply": "the reply is written",
    "sent.jsonl": "it is put on record, with its digests",
    "rest": "the rest at the site",
    "back": "Flower: until the coordinator has the reply",
    "coordinator": "the coordinator: merging, records, a checkpoint",
}
Rows = list[dict[str, float]]


# On Flower ------------------------------------------------------------------------------------------------------------


def on_flower(folder: Path) -> tuple[Rows, dict[str, float]]:
    """Carry out a federation's run; the seconds of each round's parts at its slowest site, and bytes a message."""
    with Processes(folder) as started:
        started.start_coordinator()
        for site in started.federation.sites:
            started.start_site(site)
        code = started.start_run().wait()
        run = carried_out(folder)
        if code or not run.finished:
            raise FedshiftError(f"The run on Flower has failed: see '{started.log('run')}'.")
        return measured(started, run)


def measured(started: Processes, run: Run) -> tuple[Rows, dict[str, float]]:
    """What log files say of a run on Flower; the first round, which scores nothing, is left out."""
    events = [line for line in lines(run.path / "events.jsonl") if line.get("what") == "answered"]
    logs = {site: lines(started.folder / "sites" / site / "log.jsonl") for site in SITES}
    rows, sizes = list[dict[str, float]](), defaultdict[str, list[float]](list)
    for timed in lines(run.path / "timings.jsonl")[:-1]:  # the last line closes the file
        of_round = [event for event in events if event["round"] == timed["stop"]]
        if timed["stop"] == 1:
            continue
        last = max(of_round, key=lambda event: event["seconds"])
        site = last["who"]
        (log,) = [line for line in logs[site] if line["what"] == "answer" and line["round"] == timed["stop"]]
        parts = log["seconds"]
        arrived, left = seconds_of(last["when"]), seconds_of(log["when"])
        begun = left - parts["all"]
        rows.append(
            {
                "to the site": begun - (arrived - last["seconds"]),
                **{name: parts[name] for name in PARTS if name in parts},
                "rest": 2 * parts["all"] - sum(parts.values()),
                "back": arrived - left,
                "coordinator": timed["seconds"] - last["seconds"],
            }
        )
        for way in ("bytes_down", "bytes_up"):
            sizes[way] += [event[way] for event in of_round]
    return rows, {way: mean(values) for way, values in sizes.items()}


def lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# In one process, and alone --------------------------------------------------------------------------------------------


def in_process(folder: Path) -> list[float]:
    """The seconds of each round but the first, scoring included, by the sequential engine in this process."""
    run = rehearse(folder, Progress())
    return [line["seconds"] + line["evaluation"] for line in lines(run.path / "timings.jsonl")[1:-1]]


def parameters(folder: Path) -> int:
    """How many numbers the model has."""
    tensors = Agreement.read(folder / "coordinator").setup(torch.device("cpu")).initial("shared")
    return sum(tensor.numel() for tensor in tensors.values())


# The page -------------------------------------------------------------------------------------------------------------


def measure(model: str, rounds: int, place: Path) -> dict[str, Any]:
    """Both runs of a model."""
    say(f"{model}: folders")
    command = ["federation", "init", model, "--sites", ",".join(SITES), "--method", "fedavg", *MODELS[model]]
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    address = ["--rounds", str(rounds), "--address", f"127.0.0.1:{free_port()}", "--to", str(place)]
    done = subprocess.run(
        [sys.executable, "-m", "fedshift", *command, *options, *address], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FedshiftError(done.stderr)
    folder = place / model
    say(f"{model}: in one process")
    alone = in_process(folder)
    say(f"{model}: on Flower")
    rows, sizes = on_flower(folder)
    return {"model": model, "parameters": parameters(folder), "in process": alone, "rounds": rows, **sizes}


def as_markdown(found: Sequence[dict[str, Any]], about: Mapping[str, Any]) -> str:
    """The page."""
    names = [f"{each['model']}, {each['parameters']:,} parameters" for each in found]
    flower = [[sum(row.values()) for row in each["rounds"]] for each in found]
    alone = [each["in process"] for each in found]
    page = [
        "# A round on Flower",
        "",
        f"FedAvg on {len(SITES)} sites, 2 steps of 10 samples a round, every round scored; a SuperLink with TLS and "
        f"{len(SITES)} SuperNodes on one machine with {os.cpu_count()} cores, {about['rounds']} rounds without the "
        "first. In one process: `fedshift federation rehearse`, the sequential engine. Both end with the same bits.",
        "",
        f"    {about['command']}",
        "",
        _row("", names),
        _row("---", ["---"] * len(found)),
        _row("a round in one process, median (smallest to largest)", [_spread(each) for each in alone]),
        _row("a round on Flower", [_spread(each) for each in flower]),
        _row("a message to a site", [bytes_text(round(each["bytes_down"])) for each in found]),
        _row("a reply", [bytes_text(round(each["bytes_up"])) for each in found]),
        "",
        "Where the seconds of a round on Flower go, at its slowest site, mean over rounds:",
        "",
        _row("", names),
        _row("---", ["---"] * len(found)),
        *(
            _row(PARTS[part], [f"{mean(row.get(part, 0.0) for row in each['rounds']):.2f}" for each in found])
            for part in PARTS
        ),
        _row("**all**", [f"**{mean(each):.2f}**" for each in flower]),
        "",
    ]
    return "\n".join(page)


def _row(head: str, cells: Sequence[str]) -> str:
    return f"| {head} | {' | '.join(cells)} |"


def _spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.3g} s ({min(seconds):.3g} to {max(seconds):.3g})"


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print the tables, and write them."""
    head, _, example = __doc__.partition("    python ")
    parser = argparse.ArgumentParser(
        description=head,
        epilog=f"example:\n    python {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", choices=[*MODELS], help="which (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=12, help="rounds of each run, one of them not counted (default 12)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the federations' folders there")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write federation.md and data.json there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        found = [measure(model, options.rounds, place.resolve()) for model in options.model or MODELS]
    about = {
        "rounds": options.rounds,
        "command": f"python benchmarks/federation.py {' '.join(sys.argv[1:])}".strip(),
    }
    page = as_markdown(found, about)
    print(page)
    if options.docs:
        options.docs.mkdir(parents=True, exist_ok=True)
        (options.docs / "federation.md").write_text(page)
        (options.docs / "data.json").write_text(json.dumps({"about": about, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except FedshiftError as error:
        sys.exit(str(error))
