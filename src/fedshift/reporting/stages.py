"""A run's stages as its records have them, so that methods with more of them can be compared by round."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.runs.schema import Record


def unscored_before(records: Sequence[Record]) -> int:
    """The rounds before the first stage that is scored, such as those in which Client2Vec makes its index.

    A method's training rounds are counted from there, so that those of several methods can be compared.
    """
    first: int = records[0]["position"] - records[0]["round"]
    return first


def rounds_of(records: Sequence[Record]) -> dict[str, int]:
    """The rounds done of each stage that is scored, by its name, in order."""
    return {record["stage"]: record["round"] for record in records}


def in_words(records: Sequence[Record]) -> str:
    """The rounds done: "8", or by stage where there are several: "2 not scored + 8 train + 1 finetune"."""
    scored = rounds_of(records)
    others = records[-1]["position"] - sum(scored.values())
    if len(scored) == 1 and not others:
        return str(records[-1]["position"])
    words = [f"{others} not scored"] if others else []
    return " + ".join(words + [f"{rounds} {stage}" for stage, rounds in scored.items()])


def spans(records: Sequence[Record]) -> str:
    """Which training rounds are of which stage: "1 to 8 are 'train', 9 is 'finetune'"; empty of a single stage."""
    before = unscored_before(records)
    ends = {record["stage"]: (record["round"], record["position"] - before) for record in records}
    words = [
        f"{end - rounds + 1} to {end} are '{stage}'" if rounds > 1 else f"{end} is '{stage}'"
        for stage, (rounds, end) in ends.items()
    ]
    return ", ".join(words) if len(words) > 1 else ""
