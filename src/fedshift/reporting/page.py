"""A self-contained HTML report of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fedshift.clients import PROTOCOLS
from fedshift.reporting.analyses.analysed import existing
from fedshift.reporting.cautions import cautions, class_counts
from fedshift.reporting.charts import Chart, inline
from fedshift.reporting.comparison_tables import ROLES
from fedshift.reporting.curves import by_place, by_round, by_term, colours, losses_drawn, scores_drawn
from fedshift.reporting.intervals import Interval, paired
from fedshift.reporting.results import Merged, Row, merged
from fedshift.reporting.table import Table, render, write_page_to
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import by_environment
from fedshift.written import bytes_text, clock

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_NAMED = 6  # things that are listed one by one
MOST_SWITCHED = 40  # rows that can be shown and hidden
POOLED = {"all"}  # the domain of a client that holds everybody's data
BASE = "fedavg"  # the row that others are compared with, if it is there
SHADED = "one standard deviation over seeds to either side, within 0 and 100 %."
WHOSE = {"global": "the global model", "own": "the client's own", "unseen": "an unseen client's"}


def write_report(comparison: Comparison, path: Path) -> Path:
    """Write the report: tables, curves, cost, what left each site, and the runs' settings.

    Args:
        comparison: the runs.
        path: the file, or a folder for a report.html; folders that are missing are made.

    Returns:
        The file.

    Raises:
        FedshiftError: it cannot be written.
    """
    return write_page_to(path, "report.html", page(comparison, datetime.now().astimezone()))


def page(comparison: Comparison, now: datetime) -> str:
    """The report as HTML."""
    rows, place = comparison.rows(), by_place(comparison)
    rounds, alt = by_round(comparison), f"{comparison.metric.heading} in %"
    settings = merged([[run.table for run in row.runs] for row in rows])
    machine = merged([[run.environment for run in row.runs] for row in rows])
    numbers = count()

    def shown(charts: Iterable[Chart]) -> list[tuple[Chart, Markup]]:
        """Each chart with its element, whose identifiers no other has."""
        return [(chart, inline(chart, next(numbers))) for chart in charts]

    return render(
        "report.html.jinja",
        title=title(comparison),
        question=question(comparison),
        facts=facts(comparison, now),
        cautions=cautions(comparison),
        tables=comparison.tables(),
        differences=differences(comparison),
        scored=scored(comparison),
        notes=comparison.notes(),
        keys=list(zip([row.label for row in rows], colours(len(rows)), strict=True)),
        switched=1 < len(rows) <= MOST_SWITCHED,
        metric=comparison.metric,
        test=comparison.label("test"),
        validation=comparison.label("validation") if comparison.environments("validation") else "",
        shaded=SHADED if any(line.edge(-1) != line.edge(1) for panel in rounds for line in panel.lines) else "",
        by_place=shown(scores_drawn([place] if place else [], "by-environment", alt)),
        by_round=shown(scores_drawn(rounds, "by-round", f"{alt} by training round")),
        by_term=shown(losses_drawn(by_term(comparison), "by-term", "Loss term by training round")),
        analyses=[(found, shown(found.charts())) for found in existing(comparison)],
        stages=_on_stages(rows),
        messages=[(row.label, row.runs[0].messages) for row in rows],
        runs=_runs(comparison.runs),
        several=len(comparison.runs) > 1,
        common=settings.common,
        differing=_differing("For each row of the tables above; several values are those of its runs.", rows, settings),
        machine=machine.common,
        machines=_differing("What differs between the rows of the tables above, or between their runs", rows, machine),
    )


def question(comparison: Comparison) -> str:
    """What the scores answer, in a sentence."""
    protocol = comparison.runs[0].table["protocol"]
    asked = PROTOCOLS.get(protocol["name"]).question if protocol["name"] in PROTOCOLS else ""
    held_out = sorted({str(run.table["protocol"].get("hold_out", "")) for run in comparison.runs} - {""})
    in_turn = ", each in turn" if len(held_out) > 1 else ""
    where = f" Held out{in_turn}: {_listed(held_out, 'domains')}." if held_out else ""
    return f"{asked}{where}".strip()


def differences(comparison: Comparison) -> Table | None:
    """Every row less a base, paired by seed, with 95 % intervals; None of a single row."""
    rows = {row.label: row for row in comparison.rows()}
    if len(rows) < 2:
        return None
    base = BASE if BASE in rows else next(iter(rows))
    metric, by_seed = comparison.metric, dict[str, dict[int, float]]()
    for label, row in rows.items():
        by_seed[label] = row.by_seed(lambda run: by_environment(run.records[-1], "test", metric.name).values())
    cells = []
    for label, values in by_seed.items():
        found = Interval.of([100 * value for value in paired(values, by_seed[base]).values()])
        if label != base and found:
            half = "" if found.half is None else f"{found.mean - found.half:+.1f} to {found.mean + found.half:+.1f}"
            better = metric.merit(found.mean) > 0
            reading = ("better" if better else "worse") if found.clear else "not clear"
            reading = reading if found.half is not None else "one seed: unknown"
            cells.append([label, f"{found.mean:+.1f}", half, str(found.count), reading])
    about = f"Test {metric.title} less that of {base} in points, paired by seed, last round; Student's t over seeds"
    return Table(about, ["method", "difference", "95 % interval", "seeds", "reading"], cells) if cells else None


def scored(comparison: Comparison) -> Table:
    """Of every environment the samples, how many a class has, and whose model is scored on it."""
    counts: dict[tuple[str, str], list[list[int]]] = {}
    for run in comparison.runs:
        for role, name, its in class_counts(run):
            counts.setdefault((role, name), []).append(its)
    sizes: dict[tuple[str, str], set[int]] = {}
    whose: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in comparison.rows():
        for run in row.runs:
            of_run: dict[tuple[str, str], int] = {}
            for one in run.records[-1]["environments"]:
                key = one["role"], one["environment"]
                of_run[key] = of_run.get(key, 0) + (one.get("n") or 0)
                labels = whose.setdefault(key, {}).setdefault(WHOSE.get(one["model"], one["model"]), [])
                labels += [row.label] * (row.label not in labels)
            for key, size in of_run.items():
                sizes.setdefault(key, set()).add(size)
    cells = [
        [
            comparison.heading(*key),
            _range(sizes[key]),
            _range([each for its in counts.get(key, []) for each in its]) or "not recorded",
            "; ".join(
                model if len(whose[key]) == 1 else f"{_listed(its, 'rows')}: {model}"
                for model, its in whose[key].items()
            ),
        ]
        for key in sorted(sizes, key=lambda key: ROLES.index(key[0]))
    ]
    title = "What is scored: samples in a run, samples of a class, and with whose model"
    return Table(title, ["environment", "n", "of a class", "scored with"], cells)


def _on_stages(rows: Sequence[Row]) -> list[str]:
    """What the axis of rounds means for methods with more stages than one."""
    texts = []
    for row in rows:
        words = in_words(max((run.records for run in row.runs), key=lambda records: records[-1]["position"]))
        if "+" in words:
            texts.append(f"{row.label}, rounds by stage: {words}. The axis begins with the first stage that is scored.")
    return texts


def _runs(runs: Sequence[Run]) -> Table:
    columns = ["run", "rounds", "sent to clients", "sent by clients", "training", "evaluation", "engine"]
    about = (
        "Bytes are totals over all clients and rounds. The time of runs that went on together is divided equally among "
        "them."
    )
    return Table(about, columns, [_run(run) for run in runs])


def _run(run: Run) -> list[str]:
    last, times = run.records[-1], run.times
    spent = [clock(times.training), clock(times.evaluation)] if times.engines else ["", ""]
    sent = [bytes_text(last["bytes_down"]), bytes_text(last["bytes_up"])]
    return [run.path.name, in_words(run.records), *sent, *spent, ", then ".join(times.engines)]


def _differing(about: str, rows: Sequence[Row], found: Merged) -> Table:
    columns = ["setting", *(row.label for row in rows)]
    return Table(about, columns, [[name, *texts] for name, texts in found.differing.items()])


def in_words(records: Sequence[Record]) -> str:
    """The rounds done: "8", or by stage where there are several: "2 not scored + 8 train + 1 finetune"."""
    scored = {record["stage"]: record["round"] for record in records}
    others = records[-1]["position"] - sum(scored.values())
    if len(scored) == 1 and not others:
        return str(records[-1]["position"])
    words = [f"{others} not scored"] if others else []
    return " + ".join(words + [f"{rounds} {stage}" for stage, rounds in scored.items()])


# What is known of the runs beside any number ---------------------------------------------------------


def title(comparison: Comparison) -> str:
    """Which methods on which data."""
    tables = [run.table for run in comparison.runs]
    methods, data = ([table[kind]["name"] for table in tables] for kind in ("method", "data"))
    return f"{_listed(methods, 'methods')} on {_listed(data, 'data sets')}"


def facts(comparison: Comparison, now: datetime) -> dict[str, str]:
    """What is known, by what it is; what no file of the runs says is left out."""
    runs, tables = comparison.runs, [run.table for run in comparison.runs]
    federations = [run.data_facts for run in runs]
    samples = [list(federation.get("samples", {}).values()) for federation in federations]
    unfinished = sum(not run.finished for run in runs)
    found = {
        "Experiment": _listed([table["name"] for table in tables], "experiments"),
        "Data": _listed([_data(table["data"]) for table in tables], "data sets"),
        "Domains": _range([max(map(_domains, tables, federations))]),
        "Held out": _listed([str(table["protocol"].get("hold_out", "")) for table in tables], "domains in turn"),
        "Protocol": _listed([table["protocol"]["name"] for table in tables], "protocols"),
        "Classes": _range(len(federation.get("classes", ())) for federation in federations),
        "Clients": _range(len(federation.get("clients", ())) for federation in federations),
        "Training samples": _range(map(sum, samples)),
        "Samples of a client": _range(size for sizes in samples for size in sizes),
        "Scored on": _scored(comparison),
        "Model": _listed([table["model"]["name"] for table in tables], "models"),
        "Rounds": _range(table["train"]["rounds"] for table in tables),
        "Seeds": _listed([str(seed) for seed in comparison.seeds], "seeds"),
        "Runs": f"{len(runs)}, of which {unfinished} not finished" if unfinished else str(len(runs)),
        "Written": now.strftime("%Y-%m-%d %H:%M %Z"),
    }
    return {name: text for name, text in found.items() if text}


def _listed(words: Sequence[str], kind: str) -> str:
    """Words that differ, in the order they come; how many they are where there are too many of them."""
    every = list(dict.fromkeys(filter(None, words)))
    if len(every) > MOST_NAMED:
        return f"{len(every)} {kind} ({', '.join(every[:MOST_NAMED])}, ...)"
    *others, last = every or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _range(numbers: Iterable[int]) -> str:
    """Numbers as their least and greatest; 0 is one that nobody knows."""
    known = [number for number in numbers if number]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _data(table: Mapping[str, Any]) -> str:
    return f"{table['name']} ({table['path']})" if table.get("path") else str(table["name"])


def _domains(table: Mapping[str, Any], federation: Mapping[str, Any]) -> int:
    """How many domains a run has, the one that is held out included; 0 where nobody knows."""
    training = set(federation.get("domains", {}).values()) - POOLED
    held_out = {table["protocol"]["hold_out"]} if "hold_out" in table["protocol"] else set()
    return len(training | held_out) if training else 0


def _scored(comparison: Comparison) -> str:
    """The samples and environments of each role."""
    words = []
    for role in ("test", "validation"):
        sizes = [_scored_samples(run, role) for run in comparison.runs]
        if any(sizes):
            count = len(comparison.environments(role))
            where = f"{count} environments" if count > 1 else "1 environment"
            words.append(f"{comparison.label(role)}: {_range(sizes)} samples a run, {where}")
    return "; ".join(words)


def _scored_samples(run: Run, role: str) -> int:
    return sum(row.get("n", 0) for row in run.records[-1]["environments"] if row["role"] == role)
