"""Facts about the runs of a comparison besides scores: settings, data and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fedshift.clients import PROTOCOLS
from fedshift.reporting.comparison_tables import scored_samples, spanned
from fedshift.reporting.results import Merged, Row
from fedshift.reporting.table import Table
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.written import bytes_text, clock

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_NAMED = 6  # things that are listed one by one
POOLED = {"all"}  # the domain of a client that contains everybody's data


def title(comparison: Comparison) -> str:
    tables = [run.table for run in comparison.runs]
    methods, data = ([table[kind]["name"] for table in tables] for kind in ("method", "data"))
    return f"{_listed(methods, 'methods')} on {_listed(data, 'data sets')}"


def question(comparison: Comparison) -> str:
    names = dict.fromkeys(run.table["protocol"]["name"] for run in comparison.runs)
    requested = [PROTOCOLS.get(name).question for name in names if name in PROTOCOLS]
    held_out = _held_out(comparison)
    rounds = spanned(run.table["train"]["rounds"] for run in comparison.runs)
    seeds = comparison.seeds
    over = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    several = " and " in held_out or "(" in held_out
    held = f", domain{'s' * several} {held_out} held out{' in turn' * several}" if held_out else ""
    return " ".join([*requested, f"{title(comparison)}{held}: {rounds} rounds, {over}."])


def facts(comparison: Comparison, now: datetime) -> dict[str, str]:
    """Facts by name; facts that no file of the runs contains are excluded."""
    runs, tables = comparison.runs, [run.table for run in comparison.runs]
    federations = [run.data_facts for run in runs]
    samples = [list(federation.get("samples", {}).values()) for federation in federations]
    unfinished = sum(not run.finished for run in runs)
    found = {
        "Experiment": _listed([table["name"] for table in tables], "experiments"),
        "Data": _listed([_data(table["data"]) for table in tables], "data sets"),
        "Domains": spanned([max(map(_domains, tables, federations))]),
        "Held out": _held_out(comparison),
        "Protocol": _listed([table["protocol"]["name"] for table in tables], "protocols"),
        "Classes": spanned(len(federation.get("classes", ())) for federation in federations),
        "Clients": spanned(len(federation.get("clients", ())) for federation in federations),
        "Training samples": spanned(map(sum, samples)),
        "Samples of a client": spanned(size for sizes in samples for size in sizes),
        "Scored on": _scored(comparison),
        "Model": _listed([table["model"]["name"] for table in tables], "models"),
        "Rounds": spanned(table["train"]["rounds"] for table in tables),
        "Seeds": _listed([str(seed) for seed in comparison.seeds], "seeds"),
        "Runs": f"{len(runs)}, of which {unfinished} not finished" if unfinished else str(len(runs)),
        "Written": now.strftime("%Y-%m-%d %H:%M %Z"),
    }
    return {name: text for name, text in found.items() if text}


def _held_out(comparison: Comparison) -> str:
    return _listed([str(run.table["protocol"].get("hold_out", "")) for run in comparison.runs], "domains in turn")


def _listed(words: Sequence[str], kind: str) -> str:
    every = list(dict.fromkeys(filter(None, words)))
    if len(every) > MOST_NAMED:
        return f"{len(every)} {kind} ({', '.join(every[:MOST_NAMED])}, ...)"
    *others, last = every or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _data(table: Mapping[str, Any]) -> str:
    return f"{table['name']} ({table['path']})" if table.get("path") else str(table["name"])


def _domains(table: Mapping[str, Any], federation: Mapping[str, Any]) -> int:
    training = set(federation.get("domains", {}).values()) - POOLED
    held_out = {table["protocol"]["hold_out"]} if "hold_out" in table["protocol"] else set()
    return len(training | held_out) if training else 0


def _scored(comparison: Comparison) -> str:
    """The samples and environments of each role."""
    words = []
    for role in ("test", "validation"):
        sizes = [scored_samples(run, role) for run in comparison.runs]
        if any(sizes):
            count = len(comparison.environments(role))
            where = f"{count} environments" if count > 1 else "1 environment"
            words.append(f"{comparison.label(role)}: {spanned(sizes)} samples a run, {where}")
    return "; ".join(words)


# What they took ----------------------------------------------------------------------------------------


def taken(runs: Sequence[Run]) -> Table:
    """Of each run the rounds, bytes and seconds."""
    columns = ["run", "rounds", "sent to clients", "sent by clients", "training", "evaluation", "engine"]
    about = (
        "Bytes are totals over all clients and rounds. The time of runs that advanced together is divided equally "
        "among them."
    )
    return Table(about, columns, [_run(run) for run in runs])


def _run(run: Run) -> list[str]:
    last, times = run.records[-1], run.times
    spent = [clock(times.training), clock(times.evaluation)] if times.engines else ["", ""]
    sent = [bytes_text(last["bytes_down"]), bytes_text(last["bytes_up"])]
    return [run.path.name, in_words(run.records), *sent, *spent, ", then ".join(times.engines)]


def in_words(records: Sequence[Record]) -> str:
    """The rounds done: "8", or by stage where there are several: "2 not scored + 8 train + 1 finetune"."""
    scored = {record["stage"]: record["round"] for record in records}
    others = records[-1]["position"] - sum(scored.values())
    if len(scored) == 1 and not others:
        return str(records[-1]["position"])
    words = [f"{others} not scored"] if others else []
    return " + ".join(words + [f"{rounds} {stage}" for stage, rounds in scored.items()])


def on_stages(rows: Sequence[Row]) -> list[str]:
    """What the axis of rounds means for methods with more stages than one."""
    texts = []
    for row in rows:
        words = in_words(max((run.records for run in row.runs), key=lambda records: records[-1]["position"]))
        if "+" in words:
            texts.append(f"{row.label}, rounds by stage: {words}. The axis begins with the first stage that is scored.")
    return texts


def differing(about: str, rows: Sequence[Row], found: Merged) -> Table:
    columns = ["setting", *(row.label for row in rows)]
    return Table(about, columns, [[name, *texts] for name, texts in found.differing.items()])
