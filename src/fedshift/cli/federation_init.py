"""What ``fedshift federation init`` makes and prints."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from fedshift import api
from fedshift.cli.console import open_console
from fedshift.cli.options import listed, warnings_as_notes
from fedshift.deployment import commands
from fedshift.deployment.agreement import FederationSettings
from fedshift.deployment.folders import check_new, for_institutions, make, planned, schema
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.files import check_folder
from fedshift.settings.experiment import Experiment
from fedshift.settings.written import parse_assignments

IN_DOMAIN = "in-domain"  # the protocol in which every client trains and is scored on samples of its own

PROTOCOL = ("protocol", "protocol.name", "protocol.hold_out")  # settings that say which sites train


def init(
    to: Path,
    name: str,
    sites: str,
    experiment: str,
    options: Mapping[str, Any],
    assignments: Sequence[str],
    address: str,
    classes: str | None,
    shape: str | None,
    columns: str | None,
    environments: str | None,
    dry_run: bool,
) -> None:
    """Make a federation's folders and print what was made.

    Args:
        to: the folder in which the federation's is made.
        name: what the federation and its folder are called, or the path of that folder from ``to``.
        sites: the sites' names, between commas.
        experiment: a TOML file, or the name of an experiment.
        options: what differs from the experiment, as :class:`fedshift.api.Options`.
        assignments: texts such as method.l2r=0.05, for what else differs.
        address: host and port at which sites reach the coordinator.
        classes: the classes' names, between commas; None: the data tell.
        shape: a sample's shape, between commas; None: the settings or the data tell.
        columns: of rows that are prepared, the columns between commas, each with its categories, if it has any, after
            an equals sign and between bars; None: the data tell.
        environments: the names of environments that the data bring, between commas; None: the data tell.
        dry_run: write nothing.

    Raises:
        FedshiftError: it cannot be made; nothing is there then.
    """
    place = to / Path(name).expanduser()
    folder = place.parent.resolve() / place.name
    check_new(folder)
    check_folder(folder.parent)
    settings, named = parse_assignments(assignments), tuple(listed(sites))
    with warnings_as_notes():
        told = api.experiment(experiment, settings=settings, **options)
        if options["hold_out"] is None and settings.keys().isdisjoint(PROTOCOL):
            told = _without_target(told, named)
    written = [_column(text) for text in _names(columns)]
    sample = schema(told, _names(classes), _numbers(shape), written, _names(environments))
    chosen = for_institutions(told, sample)
    members = FederationSettings(
        name=folder.name,
        sites=named,
        shape=sample.shape,
        classes=sample.classes,
        columns=sample.columns,
        environments=sample.environments,
        address=address,
    )
    files = planned(folder, members, chosen, sample.domains)
    console = open_console()
    if not dry_run:
        make(folder, files, chosen.plugins)
    console.print(_tree(folder, files, members.sites), highlight=False)
    for line in _changes(told, chosen):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        console.print("Nothing was written.")
        return
    console.print("\nNext:", highlight=False)
    for line in _next(folder, members):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"All commands, in order: {folder / 'README.md'}", highlight=False, markup=False, soft_wrap=True)


def _without_target(experiment: Experiment, sites: Sequence[str]) -> Experiment:
    """The experiment, in which all sites train if the domain that it holds out is none of them.

    Warns:
        FedshiftWarning: it is none of them.
    """
    target = getattr(experiment.protocol, "hold_out", None)
    if target is None or target in sites:
        return experiment
    warnings.warn(
        f"All sites train, and each is scored on its own data: '{target}', which the experiment holds out, is none of "
        f"them. --hold-out {sites[-1]} would hold one out.",
        FedshiftWarning,
        stacklevel=2,
    )
    return api.experiment(experiment, protocol=IN_DOMAIN)


def _changes(told: Experiment, chosen: Experiment) -> Iterator[str]:
    """What differs from the experiment that was given, and why."""
    if chosen.data != told.data:
        names = ", ".join(chosen.data.table()["columns"])
        yield f"data.columns = {names}: every site's files must have these columns, in any order; others are not read."
    if chosen.train != told.train:
        yield (
            f"train.min_answers = {chosen.train.min_answers:g}: a round goes on without sites that fail or are late, "
            "as long as that part of them answers. "
            'With "all" in every experiment.toml, an error at a site ends the run.'
        )


def _names(text: str | None) -> list[str]:
    """The names between commas; none of None."""
    return [] if text is None else listed(text)


def _column(text: str) -> list[str]:
    """A column's name and its categories."""
    name, _, categories = text.partition("=")
    return [name, *(categories.split("|") if categories else [])]


def _numbers(text: str | None) -> list[int]:
    """The whole numbers between commas."""
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError as error:
        raise FedshiftError(f"--shape {text}: give whole numbers between commas, such as 3,64,64.") from error


def _tree(folder: Path, files: Iterable[str], sites: tuple[str, ...]) -> Tree:
    """The files as a tree; of sites, which have the same, one in full."""
    root = Tree(escape(f"{folder}/"))
    branches = {"": root}

    def branch(name: str) -> Tree:
        if name not in branches:
            above, _, last = name.rpartition("/")
            branches[name] = branch(above).add(escape(f"{last}/"))
        return branches[name]

    others = tuple(f"sites/{site}/" for site in sites[1:])
    for file in sorted(files, key=lambda file: (file.count("/") > 0, file)):
        if file.startswith(others):
            continue
        above, _, last = file.rpartition("/")
        if last:
            branch(above).add(escape(last))
        else:
            branch(above)
    if others:
        branch("sites").add(escape(f"{', '.join(f'{site}/' for site in sites[1:])}: as {sites[0]}/"))
    return root


def _next(folder: Path, members: FederationSettings) -> list[str]:
    """The next three commands, as they are typed."""
    coordinator, site = str(folder / "coordinator"), str(folder / "sites" / members.sites[0])
    return [
        f"fedshift federation check {quote(site)}",
        join([*commands.SERVE, coordinator]),
        join([*commands.JOIN, site]),
    ]
