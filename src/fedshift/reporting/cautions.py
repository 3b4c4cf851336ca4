"""Where the numbers of a report should not be trusted, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedshift.core.metrics import ACCURACY
from fedshift.runs.run import Run

if TYPE_CHECKING:
    from fedshift.reporting.comparison import Comparison

CHANCE = 0.02  # accuracy above that of guessing below which a model has learned nothing
FALLS = 0.05  # accuracy that the last round may lie below the best
FEW_SAMPLES, FEW_OF_A_CLASS = 100, 20  # in a test environment
MOST_NAMED = 4


def cautions(comparison: Comparison) -> list[str]:
    """What makes numbers doubtful beside the comparison's notes, the most serious first."""
    return [*comparison.failed, *_untrained(comparison), *_seeds(comparison), *_falling(comparison), *_few(comparison)]


def _untrained(comparison: Comparison) -> Iterator[str]:
    for row in comparison.rows():
        classes = [len(run.data_facts.get("classes", ())) for run in row.runs]
        score = row.score("test", metric=ACCURACY)
        if score and min(classes) > 1 and score.mean < 1 / min(classes) + CHANCE:
            yield (
                f"{row.label} did not learn: its accuracy of {100 * score.mean:.1f} % is about that of guessing among "
                f"{min(classes)} classes. Its place among the rows means nothing; look at its loss and learning rate."
            )


def _seeds(comparison: Comparison) -> Iterator[str]:
    if len(comparison.seeds) == 1:
        yield (
            f"Every number is of a single seed, {comparison.seeds[0]}, so nobody knows how far it would lie with "
            "another. Run it again with --seed 0,1,2 or more."
        )
    elif len(comparison.seeds) == 2:
        yield "There are two seeds: an interval over two numbers is very wide. Five or more are usual."


def _falling(comparison: Comparison) -> Iterator[str]:
    for row in comparison.rows():
        last, best = row.score("test"), row.score("test", "target_best")
        if last and best and best.mean - last.mean > FALLS:
            yield (
                f"{row.label} ends {100 * (best.mean - last.mean):.1f} points below its best round on the test data: "
                "where it stops decides its score. The curves show it."
            )


def _few(comparison: Comparison) -> Iterator[str]:
    small, rare = dict[str, int](), dict[str, str]()
    for run in comparison.runs:
        for one in run.records[-1]["environments"]:
            if one["role"] == "test" and (one.get("n") or FEW_SAMPLES) < FEW_SAMPLES:
                small[one["environment"]] = one["n"]
        for role, name, counts in class_counts(run):
            least = min(counts, default=FEW_OF_A_CLASS)
            if role == "test" and least < FEW_OF_A_CLASS:
                label = run.data_facts["classes"][counts.index(least)]
                rare[name] = f"{least} of class '{label}' in {name}"
    if small:
        named = ", ".join(f"{name} has {count}" for name, count in [*small.items()][:MOST_NAMED])
        yield f"{len(small)} test environments have fewer than {FEW_SAMPLES} samples: {named}. Each is over a point."
    if rare:
        yield (
            f"{len(rare)} test environments have fewer than {FEW_OF_A_CLASS} samples of a class: "
            f"{', '.join([*rare.values()][:MOST_NAMED])}. What is scored on them says little about that class."
        )


def class_counts(run: Run) -> Iterator[tuple[str, str, list[int]]]:
    """The role, the name and the samples of each class of a run's environments, all clients of one name together."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in run.data_facts.get("support", ()):
        key = one["role"], one["environment"]
        found[key] = [a + b for a, b in zip(found.get(key, [0] * len(one["counts"])), one["counts"], strict=True)]
    for (role, name), counts in found.items():
        yield role, name, counts
