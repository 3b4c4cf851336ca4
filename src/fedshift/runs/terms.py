"""What part of what clients minimise each loss term makes up: made from records only."""

from __future__ import annotations

from fedshift.runs.records import Record

SERVER = "server"  # what its own phases minimise is no part of any client's loss


def shares(record: Record) -> dict[str, float]:
    """The share of each loss term in what clients minimised in the round of a record, in 0..1; together 1.

    A term is weighted, as it is minimised, and counts by the absolute value of its mean over a client's steps; clients
    count equally, and the objectives of a method all together. Empty where clients told nothing, or all terms are 0.
    """
    sizes: dict[str, float] = {}
    for who, terms in record["terms"].items():
        if who != SERVER:
            for name, mean in terms.items():
                sizes[name] = sizes.get(name, 0.0) + abs(mean)
    whole = sum(sizes.values())
    return {name: size / whole for name, size in sizes.items()} if whole else {}
