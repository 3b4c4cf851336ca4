"""What a reader of a comparison must know: why numbers may not be trusted, and how they came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from fedshift.clients import PROTOCOLS
from fedshift.core.metrics import ACCURACY, AUROC, Metric
from fedshift.methods import METHODS
from fedshift.reporting.results import Row, held_out
from fedshift.runs.run import Run
from fedshift.runs.schema import Record
from fedshift.runs.selection import endings, mean_score, selects, source_validation, value_of

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

MOST_ENVIRONMENTS = 48  # environments of a role that are shown one by one
MOST_NAMED = 4  # environments, metrics or runs that a note names
MOST_COUNTED = 8  # environments of which a note shows how many samples they have
ROLES = ("test", "validation")
ENOUGH = 50  # test samples, of which a perfect score is no chance
FEW = 20  # samples of a class that an accuracy should rest on
CHANCE, LUCKY = 0.02, 0.1  # above 1 / classes, up to which a model may have learned nothing: in the mean, at best
FALLEN = 0.05  # below the best validation score, from which the last round is no longer the method's best


@dataclass(frozen=True)
class Caution:
    """Why a number should not be trusted as it stands."""

    kind: str  # in a few words, such as "one seed"
    text: str  # a sentence that names the run or row, and the value
    remedy: str = ""  # what to do; empty where the text states it, or nothing can be done


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the tables must know, once each: what the records state is wrong, then how to read them."""
    perfect = [f"{each.text} {each.remedy}" for each in _perfect(comparison)]
    return [*dict.fromkeys([*(each.text for each in recorded(comparison)), *perfect, *explanations(comparison)])]


def cautions(comparison: Comparison) -> list[Caution]:
    """Why numbers should not be trusted, the gravest first, once each."""
    return [*dict.fromkeys([*recorded(comparison), *doubts(comparison)])]


# What the runs state themselves ------------------------------------------------------------------------


def recorded(comparison: Comparison) -> Iterator[Caution]:
    """What failed, is lacking, damaged, not finished or noted in the runs' folders."""
    again = "It is in no mean; `fedshift resume` tries again."
    yield from (Caution("failed", f"{name}: {reason}", again) for name, reason in comparison.lacking.items())
    yield from (Caution("excluded", note) for note in comparison.missing)
    yield from _judged_on_the_test(comparison)
    judged = {_protocol_caution(run) for run in comparison.runs}
    odd = next((oddity for run in comparison.runs if (oddity := run.data_facts.get("oddity"))), None)
    yield from (Caution("data", oddity) for oddity in [odd] if oddity)
    its = dict.fromkeys(note for run in comparison.runs for note in run.notes if note not in judged)
    yield from (Caution("noted by a run", note) for note in its)
    yield from _unfinished(comparison)
    yield from _uneven(comparison)
    yield from _absent(comparison)


def _judged_on_the_test(comparison: Comparison) -> Iterator[Caution]:
    remedy = "Do not choose settings or rounds by it; read the last round."
    texts = dict.fromkeys(filter(None, (_protocol_caution(run) for run in comparison.runs)))
    yield from (Caution("selected on the test", text, remedy) for text in texts)


def _protocol_caution(run: Run) -> str:
    table = run.table["protocol"]
    return PROTOCOLS.build(table).caution if table["name"] in PROTOCOLS else ""


def _unfinished(comparison: Comparison) -> Iterator[Caution]:
    for run in (each for each in comparison.runs if not each.finished):
        last, rounds = run.records[-1], run.table["train"]["rounds"]
        yield Caution(
            "not finished",
            f"{run.path.name} is not finished: it was last scored after round {last['round']} of its "
            f"stage '{last['stage']}' (train.rounds = {rounds}).",
            f"It was given up: {run.given_up}" if run.given_up else f"{run.resume_command} carries it on.",
        )


def _uneven(comparison: Comparison) -> Iterator[Caution]:
    rows = [row.compared for row in comparison.rows()]
    every = {case for row in rows for case in _cases(row.runs)}
    for row in rows:
        if lacking := sorted(every - _cases(row.runs)):
            words = (f"seed {seed}" + (f" with {domain} held out" if domain else "") for seed, domain in lacking)
            yield Caution(
                "uneven seeds",
                f"{row.label} has no run for {', '.join(words)}; its means are over fewer runs than others.",
                "Read the paired differences, which use only what both rows have.",
            )


def _cases(runs: Sequence[Run]) -> set[tuple[int, str]]:
    return {(run.table["seed"], held_out(run)) for run in runs}


def _absent(comparison: Comparison) -> Iterator[Caution]:
    if missing := sum(len(record.get("missing", ())) for run in comparison.runs for record in run.records):
        yield Caution(
            "absent clients",
            f"{missing} answers of clients are missing from rounds; records.jsonl states whose, and why.",
            "Models were merged without them.",
        )
    if unscored := sum(len(run.records[-1].get("unscored", ())) for run in comparison.runs):
        yield Caution(
            "not scored",
            f"{unscored} environments of sites were not scored in the last round; records.jsonl names which, and why.",
            "Means leave them out.",
        )


# What a reader may doubt -----------------------------------------------------------------------------


def doubts(comparison: Comparison) -> Iterator[Caution]:
    """Numbers that are as recorded, and that still should not be relied on."""
    yield from (Caution("failed", problem) for problem in comparison.failed if not comparison.lacking)
    yield from _perfect(comparison)
    yield from _one_seed(comparison)
    yield from _untrained(comparison)
    yield from _fallen(comparison)
    yield from _few_samples(comparison)


def _perfect(comparison: Comparison) -> Iterator[Caution]:
    """Rows of which a run is perfect on enough test samples of several classes."""
    found: dict[str, dict[str, int]] = {}
    for row in comparison.rows():
        its = max((_perfected(run) for run in row.runs), key=lambda sizes: sum(sizes.values()))
        if sum(its.values()) >= ENOUGH:
            found[row.label] = its
    if found:
        its = next(iter(found.values()))
        places = shortened([comparison.heading("test", name) for name in its], "environments")
        yield Caution(
            "perfect",
            f"The score of {shortened([*found], 'rows')} is perfect on {places} ({sum(its.values()):,} samples), which "
            "real data hardly ever allow.",
            "Look for a column or a mark that reveals the label, and for test samples that are trained on as well: "
            "`fedshift data` with the same options names them.",
        )


def _perfected(run: Run) -> dict[str, int]:
    """The test environments of several classes, with their samples, on which every model of a run is perfect."""
    rows: dict[str, list[Record]] = {}
    for row in run.records[-1]["environments"]:
        if row["role"] == "test":
            rows.setdefault(row["environment"], []).append(row)
    counts = run.data_facts.get("scored_classes", {}).get("test", {})
    return {
        name: sum(row.get("n") or 0 for row in its)
        for name, its in rows.items()
        if sum(count > 0 for count in counts.get(name, (1, 1))) > 1
        and any(all({**row, **row.get("metrics", {})}.get(metric) == 1 for row in its) for metric in (ACCURACY, AUROC))
    }


def _one_seed(comparison: Comparison) -> Iterator[Caution]:
    if len(comparison.seeds) == 2:
        yield Caution("two seeds", "An interval over two numbers is very wide.", "Five seeds or more are usual.")
    single = [(row.label, row.runs[0].table["seed"]) for row in comparison.rows() if len(_seeds(row)) == 1]
    if single:
        named = shortened([f"{label} (seed {seed})" for label, seed in single], "rows")
        yield Caution(
            "one seed",
            f"One seed stands behind {named}: nothing shows how far another would be from it.",
            "Run several: `--seed 0,1,2`.",
        )


def _seeds(row: Row) -> set[int]:
    return {run.table["seed"] for run in row.runs}


def _untrained(comparison: Comparison) -> Iterator[Caution]:
    for row in comparison.rows():
        classes = max(len(run.data_facts.get("classes", ())) for run in row.runs)
        reached, best = (row.score("test", metric=ACCURACY, of_seed=of_seed) for of_seed in (mean, max))
        guessed = classes > 1 and reached is not None and best is not None and best.mean <= 1 / classes + LUCKY
        if guessed and reached is not None and reached.mean <= 1 / classes + CHANCE:
            yield Caution(
                "did not train",
                f"{row.label} has a mean test accuracy of {100 * reached.mean:.1f} %, and guessing one of {classes} "
                f"classes {100 / classes:.1f} %.",
                "Inspect its loss below; try another train.lr, more rounds, or another client split.",
            )


def _fallen(comparison: Comparison) -> Iterator[Caution]:
    for row in comparison.rows():
        found = [(run, drop) for run in row.runs if (drop := _drop(run, row.metric)) > FALLEN]
        if not found:
            continue
        run, drop = max(found, key=lambda one: one[1])
        best = source_validation(run.records)["round"]
        yield Caution(
            "past its best",
            f"{len(found)} of {len(row.runs)} runs of {row.label} end below their best validation {row.metric.title}, "
            f"by up to {100 * drop:.1f} points ({run.path.name}, best after round {best} of "
            f"{run.records[-1]['round']}).",
            "Compare the column at the round that validation selects, or end training early with train.patience.",
        )


def _drop(run: Run, metric: Metric) -> float:
    best, last = (
        mean_score(one, "validation", metric.name) for one in (source_validation(run.records), run.records[-1])
    )
    return 0.0 if best is None or last is None else metric.merit(best) - metric.merit(last)


def _few_samples(comparison: Comparison) -> Iterator[Caution]:
    for role in ROLES:
        rarest: dict[str, int] = {}
        for run in comparison.runs:
            for name, counts in run.data_facts.get("scored_classes", {}).get(role, {}).items():
                if few := [count for count in counts if 0 < count < FEW]:
                    rarest[name] = min(*few, rarest.get(name, FEW))
        if rarest:
            named = [comparison.heading(role, name) for name in rarest]
            yield Caution(
                "few samples",
                f"The accuracy of a class rests on as few as {min(rarest.values())} samples on "
                f"{shortened(named, 'environments')}.",
                "Hold out more, or run several seeds.",
            )


def shortened(words: Sequence[str], kind: str) -> str:
    more = f" and {len(words) - MOST_NAMED} more {kind}" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more


# How to read the tables ------------------------------------------------------------------------------


def explanations(comparison: Comparison) -> Iterator[str]:
    """How the numbers came about, where that is not the same for all runs or not plain to see."""
    yield from _of_our_form(comparison.runs)
    yield from _of_runs(comparison.runs)
    yield from _of_targets(comparison)
    yield from _of_metrics(comparison)
    yield from _support(comparison.runs)
    for role in ROLES:
        if (count := len(comparison.environments(role))) > MOST_ENVIRONMENTS:
            yield f"The {count} {role} environments are not shown one by one; records.jsonl contains them."


def _of_our_form(runs: Sequence[Run]) -> Iterator[str]:
    for name in dict.fromkeys(run.table["method"]["name"] for run in runs):
        if name in METHODS and METHODS.get(name).our_form:
            yield f"{name} is in our form, as its paper has no public code and leaves open what decides its results."


def _support(runs: Sequence[Run]) -> Iterator[str]:
    """How many test samples scores rest on, and how many of the rarest class; the least of several splits."""
    found: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, counts in run.data_facts.get("scored_classes", {}).get("test", {}).items():
            found[name] = min(found.get(name, (sum(counts), min(counts))), (sum(counts), min(counts)))
    if 0 < len(found) <= MOST_COUNTED:
        each = (f"{name} {n:,} ({rarest:,})" for name, (n, rarest) in found.items())
        yield f"Test samples (of the rarest class): {', '.join(each)}."
    elif found:
        (least, most), (rarest, _) = ((min(its), max(its)) for its in zip(*found.values(), strict=True))
        yield f"An environment has {least:,} to {most:,} test samples, of the rarest class {rarest:,} at least."


def _of_runs(runs: Sequence[Run]) -> Iterator[str]:
    early = [found for run in runs if (found := endings(run.records))]
    if len(runs) == 1:
        yield from (f"The stage '{stage}' ended early {why}." for found in early for stage, why in found.items())
    elif early:
        yield (
            f"{len(early)} of {len(runs)} runs ended a stage early, as train.patience requests; their records state "
            "where and why."
        )
    if any(record.get("only_in_simulation") for run in runs for record in run.records):
        yield (
            "The model of a client that never trained is made from what other clients keep, which only a "
            "simulation can see."
        )
    if any(row["models"] > 1 for run in runs for row in run.records[-1]["environments"]):
        yield "A domain that no client has seen is scored with each client's own model; the mean is shown."


def _of_targets(comparison: Comparison) -> Iterator[str]:
    """Over which held-out domains means are, where rows have different ones."""
    rows = comparison.rows()
    targets = {row.label: sorted(set(map(held_out, row.runs))) for row in rows}
    if common := rows[0].common:
        own = {label: [name for name in names if name not in common] for label, names in targets.items()}
        others = [f"{label} ({', '.join(names[:MOST_NAMED])})" for label, names in own.items() if names]
        yield (
            f"Means, and worst scores, are over the targets that all rows have: {', '.join(sorted(common))}; they "
            f"exclude others of {shortened(others, 'rows')}."
        )
    elif len({*map(tuple, targets.values())}) > 1:
        yield "Rows have no target in common, so their means are over different ones and cannot be compared."


def _of_metrics(comparison: Comparison) -> Iterator[str]:
    """By what runs select where that is not the same, and which means leave environments out."""
    selecting = dict.fromkeys(selects(run.records[-1]).title for run in comparison.runs)
    if len(selecting) > 1:
        yield f"The runs select by different metrics ({', '.join(selecting)}); {comparison.metric.title} is shown."
    for metric in dict.fromkeys(selects(run.records[-1]) for run in comparison.runs if _chooses_nothing(run)):
        yield (
            f"{metric.heading} is undefined on every validation environment ({metric.lacks}), so no round is "
            "chosen by it: the last one stands in its place."
        )
    for role in ROLES:
        lacking: dict[tuple[str, ...], list[Metric]] = {}
        for metric in comparison.metrics:
            lacking.setdefault(_without(comparison, role, metric), []).append(metric)
        lacking.pop((), None)
        for places, metrics in lacking.items():
            named = ", ".join(places[:MOST_NAMED]) + ", ..." * (len(places) > MOST_NAMED)
            why = [f"{metric.title} ({metric.lacks})" for metric in metrics]
            more = f" and {len(why) - MOST_NAMED} more" if len(why) > MOST_NAMED else ""
            yield (
                f"Means exclude {len(places)} of {len(comparison.environments(role))} {role} environments ({named}) "
                f"where a metric is undefined: {', '.join(why[:MOST_NAMED])}{more}."
            )


def _without(comparison: Comparison, role: str, metric: Metric) -> tuple[str, ...]:
    rows = (row for run in comparison.runs for row in run.records[-1]["environments"] if row["role"] == role)
    return tuple(dict.fromkeys(row["environment"] for row in rows if value_of(row, metric.name) is None))


def _chooses_nothing(run: Run) -> bool:
    of_stage = [record for record in run.records if record["stage"] == run.records[-1]["stage"]]
    validated = any(row["role"] == "validation" for record in of_stage for row in record["environments"])
    return validated and all(mean_score(record, "validation") is None for record in of_stage)
