"""Implementation of ``fedshift federation init``, ``demo``, ``rehearse``, ``check`` and ``sent``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

import typer

from fedshift.cli.console import interruptible, open_console, print_report
from fedshift.cli.options import listed, warnings_as_notes
from fedshift.deployment import shell
from fedshift.deployment.agreement import read_site
from fedshift.deployment.demo import (
    IMAGES_PER_CLASS,
    carried_out,
    carry_out,
    difference,
    experiment,
    members,
    planned_demo,
)
from fedshift.deployment.demo import rehearse as simulate
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.folders import check_new, for_institutions, make, planned
from fedshift.deployment.inspection import SiteSamples, inspect
from fedshift.deployment.sent import SENT, SentMessage, read_sent, totals
from fedshift.deployment.shell import COORDINATOR, SITES
from fedshift.deployment.site_data import schema
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.experiments import Experiment
from fedshift.files import check_folder
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.table import Table
from fedshift.runs.run import Run
from fedshift.study import api
from fedshift.written import bytes_text, clock, parse_assignments, printable

IN_DOMAIN = "in-domain"  # the protocol in which every client trains and is scored on its local samples

NAMES = ("classes", "columns", "environments")
PROTOCOL = ("protocol", "protocol.name", "protocol.hold_out")  # settings that decide which sites train


def init(
    place: Path,
    sites: str,
    experiment: str,
    options: Mapping[str, Any],
    assignments: Sequence[str],
    address: str,
    sample: Mapping[str, str],
    dry_run: bool,
) -> None:
    """Create a federation's folders and print their files.

    Args:
        place: the federation's folder, whose name is the federation's.
        sites: the sites' names, between commas.
        experiment: a TOML file, or the name of an experiment.
        options: changes to the experiment, as :class:`fedshift.study.api.Options`.
        assignments: further changes, such as method.l2r=0.05.
        address: host and port at which sites reach the coordinator.
        sample: the description of a sample, each value between commas, empty if the data define it: ``classes``,
            ``shape``, ``environments``, and ``columns``, each with its categories after "=" and between bars.
        dry_run: write nothing.
    """
    folder = place.parent.resolve() / place.name
    check_new(folder)
    check_folder(folder.parent)
    settings, named = parse_assignments(assignments), tuple(listed(sites))
    with warnings_as_notes():
        told = api.experiment(experiment, settings=settings, **options)
        if options["hold_out"] is None and settings.keys().isdisjoint(PROTOCOL):
            told = _without_target(told, named)
    classes, columns, environments = (listed(sample[name]) if sample[name] else [] for name in NAMES)
    found = schema(told, classes, _numbers(sample["shape"]), list(map(_column, columns)), environments)
    chosen, known = for_institutions(told, found), found._asdict()
    domains = known.pop("domains")
    members = FederationSettings(name=folder.name, sites=named, address=address, **known)
    files = planned(members, chosen, domains)
    if not dry_run:
        make(folder, files)
    for line in [*_made(folder, files, members), *_changes(told, chosen)]:
        typer.echo(line)
    if dry_run:
        typer.echo("Nothing was written.")
        return
    coordinator, site = str(folder / COORDINATOR), str(folder / SITES / named[0])
    typer.echo("\nNext:")
    for command in (["fedshift", "federation", "check", site], [*shell.SERVE, coordinator], [*shell.JOIN, site]):
        typer.echo(f"  {join(command)}")
    typer.echo(f"All commands, in order: {folder / 'README.md'}")


def _without_target(experiment: Experiment, sites: Sequence[str]) -> Experiment:
    """The experiment, changed so that all sites train if the held-out domain is not a site (with a warning)."""
    target = getattr(experiment.protocol, "hold_out", None)
    if target is None or target in sites:
        return experiment
    warnings.warn(
        f"All sites train, and each is scored on its local data: '{target}', which is held out, is no site "
        f"here. --hold-out {sites[-1]} would hold one out.",
        FedshiftWarning,
        stacklevel=2,
    )
    return api.experiment(experiment, protocol=IN_DOMAIN)


def _changes(told: Experiment, chosen: Experiment) -> Iterator[str]:
    if chosen.data != told.data:
        names = ", ".join(chosen.data.table()["columns"])
        yield f"data.columns = {names}: every site's files must have these columns, in any order; others are not read."
    if chosen.train != told.train:
        yield (
            f"train.min_answers = {chosen.train.min_answers:g}: a round continues without sites that fail or are late, "
            "as long as that part of them answers. "
            'With "all" in every experiment.toml, an error at a site ends the run.'
        )


def _column(text: str) -> list[str]:
    name, _, categories = text.partition("=")
    return [name, *(categories.split("|") if categories else [])]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError as error:
        raise FedshiftError(f"--shape {text}: give whole numbers between commas, such as 3,64,64.") from error


def _made(folder: Path, files: Iterable[str], members: FederationSettings) -> Iterator[str]:
    """A line for each folder with its files; sites have the same files."""
    yield f"{folder}/"
    site, inside = f"{SITES}/{members.sites[0]}/", list(files)
    for start in ("authority/", f"{COORDINATOR}/", site):
        names = ", ".join(name.removeprefix(start) for name in inside if name.startswith(start))
        yield f"  {start}: {names}"
    if others := members.sites[1:]:
        yield f"  {', '.join(f'{SITES}/{name}/' for name in others)}: as {site}"
    yield f"  {', '.join(name for name in inside if '/' not in name)}"


# On one machine ---------------------------------------------------------------------------------------


def demo(to: Path, method: str, rounds: int, sites: int) -> None:
    """Create a federation, run it with real processes, and print the result.

    Args:
        to: the folder to create.
        method: its method.
        rounds: its rounds.
        sites: its number of sites.
    """
    folder = to.expanduser().resolve()
    if folder.exists() or folder.is_symlink():
        raise FedshiftError(
            f"'{folder}' exists. Give another folder with --to, or remove it. To resume it, use the commands of "
            "its README.md."
        )
    chosen, named, console = experiment(method, rounds), members(sites), open_console()

    began = time.monotonic()
    typer.echo(f"Making '{folder}': a coordinator, and {', '.join(named)} with {10 * IMAGES_PER_CLASS} digits each ...")
    with interruptible("; nothing is left."):
        make(folder, planned_demo(chosen, named))
    readme = folder / "README.md"
    with interruptible(f", and every process has ended. To resume the run, use the commands in '{readme}'."):
        run = carry_out(folder, typer.echo, console)
    took = time.monotonic() - began
    print_report(api.load(run.path), run.path)
    typer.echo(f"All of it took {clock(took)} minutes. Every process has ended. Read next:")
    for line in (
        f"  {readme}: the same by hand, in {sites + 2} terminals or on several machines",
        f"  {folder / SITES / next(iter(named))}: a site's files; what-leaves.md lists what may leave it",
        f"  fedshift federation sent {quote(str(folder / SITES / next(iter(named))))}",
        f"  fedshift federation rehearse {quote(str(folder))}",
    ):
        typer.echo(line)


def rehearse(folder: Path) -> None:
    """Run a federation as a simulation, print its report, and compare its weights with the federation's."""
    again = f". `fedshift federation rehearse {quote(str(folder))}` continues from the last checkpoint."
    with interruptible(again), LiveProgress(1) as progress:
        run = simulate(folder, progress)
    print_report(api.load(run.path), run.path)
    typer.echo(compared(run, carried_out(folder)))


def compared(run: Run, theirs: Run) -> str:
    """Compare a simulation's weights with the federation's."""
    if not theirs.finished:
        return f"The federation's run, '{theirs.path}', is not finished: there are no weights to compare yet."
    apart = difference(run, theirs)
    if not apart:
        return "Compared with the federation's run: equal weights, bit for bit."
    return (
        f"Compared with the federation's run: weights differ by {apart:.2g} at most. Unavailable sites, other "
        "numbers of threads and other machines make such differences."
    )


def check(folder: Path) -> None:
    """Check a site and print the findings."""
    found = inspect(folder)
    if found.federation and found.site:
        typer.echo(f"Federation '{found.federation}', site '{found.site}'")
    if found.samples is not None:
        _print_samples(found.samples)
    for note in found.notes:
        typer.echo(f"Note: {printable(note)}")
    if found.page:
        typer.echo(f"\n{found.page}")
    found.problems.check()
    typer.echo(f"'{found.site}' can take part. Nothing was written, and nothing left this machine.")


def _print_samples(samples: SiteSamples) -> None:
    typer.echo(f"Samples: {samples.samples}, of shape {list(samples.shape)}, {samples.dtype}")
    parts = list(samples.counts)
    rows = [[name, *(str(samples.counts[part][name]) for part in parts)] for name in samples.counts[parts[0]]]
    lacking = [name for name, *counts in rows if set(counts) == {"0"}]
    rows.append(["all", *(str(sum(samples.counts[part].values())) for part in parts)])
    open_console().print(Table("Samples of each class", ["class", *parts], rows).rich())
    if lacking:
        typer.echo(f"No sample of: {printable(', '.join(lacking))}. Sites may lack classes.")


def sent(folder: Path, full: bool) -> None:
    """Print what has left a site; ``full``: every message and tensor.

    Raises:
        FedshiftError: the folder is not a site's.
        DamagedError: a line of the file was changed.
    """
    site, path = read_site(folder)[0].name, folder / SENT
    messages = read_sent(path)
    if not messages:
        typer.echo(f"Nothing has left '{site}' yet.")
        return
    for message in messages if full else ():
        _print_message(message)
    rows = [
        [
            total.exchange or "(joining, last scores)",
            total.category,
            *(str(total.messages), str(total.tensors), bytes_text(total.bytes)),
            *(_moment(total.first), _moment(total.last)),
        ]
        for total in totals(messages)
    ]
    columns = ["exchange", "category", "messages", "tensors", "bytes", "first", "last"]
    open_console().print(Table(f"What has left {site}", columns, rows).rich())
    bare = sum(not message.tensors for message in messages)
    size = bytes_text(sum(message.bytes for message in messages))
    beside = f", {bare} of them without a tensor (that it takes part, or that it fails)" if bare else ""
    typer.echo(f"Messages: {len(messages)} of {size} in all, names and shapes included{beside}.")
    typer.echo(f"Every line of '{path}' is as it was written.")


def _print_message(message: SentMessage) -> None:
    trip = f" {message.stage}/{message.round} ({message.exchange})" if message.exchange else ""
    lines = [f"{_moment(message.time)}  {message.what}{trip}  {message.bytes} B  sha256 {message.sha256}"]
    lines += [
        f"    {tensor.category:<12}  {tensor.name}  {tensor.type} {tensor.shape}  {tensor.bytes} B  {tensor.sha256}"
        for tensor in message.tensors
    ]
    for line in lines:
        typer.echo(printable(line))


def _moment(time: str) -> str:
    return f"{time.partition('.')[0].partition('+')[0]}Z"
