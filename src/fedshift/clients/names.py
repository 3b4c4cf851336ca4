"""Names of domains and classes: what may be one, and when two are the same name spelled twice."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift.errors import FedshiftError, Problems


def check_names(kind: str, places: Mapping[str, str]) -> None:
    """Refuse names that cannot be printed, and names that differ only in case or white space.

    Args:
        kind: "domain" or "class".
        places: where each name occurs first, by the name.

    Raises:
        FedshiftError: the message names each such name and its place.
    """
    problems = Problems(f"{kind} names cannot be used")
    spelled: dict[str, str] = {}
    for name, place in places.items():
        if not name.strip() or not name.isprintable():
            problems.add(FedshiftError(f"The {kind} name {name!r} ({place}) is empty or cannot be printed; rename it."))
            continue
        other = spelled.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            problems.add(
                FedshiftError(
                    f"The {kind} names {other!r} ({places[other]}) and {name!r} ({place}) differ only in case or white "
                    "space. Spell them alike; if they are two, give them names that differ in more."
                )
            )
    problems.check()
