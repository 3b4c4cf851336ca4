"""A search of every method's settings, with one budget for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from fedshift.api.display import display
from fedshift.api.experiments import grid, sources
from fedshift.api.options import DEFAULT, Options, Source
from fedshift.errors import FedshiftError
from fedshift.runs.progress import Progress
from fedshift.settings.grid import SEARCH, read

if TYPE_CHECKING:
    from fedshift.study.search import Sampler
    from fedshift.study.tune import Budget
    from fedshift.study.tuning import Tuning


def tune(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    trials: int = 20,
    sampler: Sampler = "tpe",
    parallel: int = 4,
    search: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Tuning:
    """Search the settings of every method that a source describes, on validation data and with one budget for all.

    What is searched is what the methods' pages and [train] declare, the source's table [search], and ``search``; not
    what ``settings`` give. Called again, it goes on where it was, with more trials if more are asked for.

    Args:
        source: what to tune; each method and held-out domain is a study of its own, over all seeds.
        trials: how many choices each study tries.
        sampler: "tpe" (Optuna's tree-structured Parzen estimator) or "random".
        parallel: how many trials are chosen, and carried out, side by side; it decides what is tried.
        search: where to look, by dotted setting: ``{"train.lr": "0.001..0.1", "method.mu": [0.1, 0.5]}``.
        progress: callback for the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Returns:
        The best settings and all trials; its ``path`` is what the option ``tuned`` takes.

    Warns:
        FedshiftWarning: a setting in ``search`` is of no method that is tuned, or what another search of the same
            experiment found is replaced.

    Raises:
        FedshiftError: something in it is wrong, validation looks at the test, or no study has a trial that was carried
            to its end; the message names it and the fix.
    """
    from fedshift.study.tune import search_all

    budget = search_budget(source, trials, sampler, parallel, search, options.get("settings"))
    experiments = grid(source, **options)
    with display(progress, trials * len(experiments)) as shown:
        return search_all(experiments, budget, shown)


def search_budget(
    source: Source | Sequence[Source],
    trials: int,
    sampler: Sampler,
    parallel: int,
    search: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Budget:
    """The budget and the ranges of :func:`tune`.

    Raises:
        FedshiftError: something in it is wrong.
    """
    from fedshift.study.space import flat_ranges
    from fedshift.study.tune import Budget

    settings = settings or {}
    if search is not None and not isinstance(search, Mapping):
        raise FedshiftError(f'search = {search!r}: give ranges by setting, as in {{"train.lr": "0.001..0.1"}}.')
    for key in search or {}:
        if key in settings:
            raise FedshiftError(f"{key} is searched and given a value; give it once.")
    ranges: dict[str, Any] = {}
    for item in sources(source):
        document = item if isinstance(item, Mapping) else read(item) if isinstance(item, str) else {}
        table = document.get(SEARCH, {})
        if not isinstance(table, Mapping):
            raise FedshiftError(f'search = {table!r} is a value where a table belongs; write [search] "train.lr" = ...')
        ranges |= flat_ranges(table)
    asked = dict(search or {})
    return Budget(trials, sampler, parallel, ranges | asked, frozenset(settings), frozenset(asked))
