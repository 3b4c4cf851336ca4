"""What ``fedshift federation demo`` and ``rehearse`` do and print."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from shlex import join, quote

from fedshift.cli.console import interruptible, open_console, print_report
from fedshift.cli.federation_serve import say
from fedshift.deployment import shell
from fedshift.deployment.demo import IMAGES_PER_CLASS, carry_out, experiment, members, planned_demo
from fedshift.deployment.folders import COORDINATOR, SITES, make
from fedshift.deployment.rehearsal import carried_out, difference
from fedshift.deployment.rehearsal import rehearse as simulate
from fedshift.deployment.sent import SENT, summary
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.reporting.live import LiveProgress
from fedshift.reporting.table import Table
from fedshift.reporting.units import bytes_text, clock
from fedshift.runs.run import Run
from fedshift.study import api


def demo(to: Path, method: str, rounds: int, sites: int, dry_run: bool) -> None:
    """Make a federation, carry out its run with real processes, and print what came of it.

    Args:
        to: the folder that is made.
        method: its method.
        rounds: its rounds.
        sites: how many take part.
        dry_run: say what would be done instead.

    Raises:
        FedshiftError: the folder exists, or something that was started ends too early.
    """
    folder = to.expanduser().resolve()
    if folder.exists() or folder.is_symlink():
        raise FedshiftError(
            f"'{folder}' exists. Give another folder with --to, or remove it. What is in it goes on by the commands of "
            "its README.md."
        )
    chosen, named, console = experiment(method, rounds), members(sites), open_console()

    if dry_run:
        say("\n".join(_plan(folder, chosen, named)))
        return
    began = time.monotonic()
    say(f"Making '{folder}': a coordinator, and {', '.join(named)} with {10 * IMAGES_PER_CLASS} digits each ...")
    with interruptible("; nothing is left."):
        make(folder, planned_demo(folder, chosen, named))
    readme = folder / "README.md"
    with interruptible(f", and every process is ended. The run goes on by the commands in '{readme}'."):
        run = carry_out(folder, say, console)
    took = time.monotonic() - began
    print_report(api.load(run.path), run.path)
    console.print(_left(folder, named).rich())
    say(f"All of it took {clock(took)} minutes. Every process is ended. What to look at next:")
    for line in (
        f"  {readme}: the same by hand, in {sites + 2} terminals or on several machines",
        f"  {folder / SITES / next(iter(named))}: all that a site has; what-leaves.md says what may leave it",
        f"  fedshift federation sent {quote(str(folder / SITES / next(iter(named))))}",
        f"  fedshift federation rehearse {quote(str(folder))}",
    ):
        say(line)


def rehearse(folder: Path) -> None:
    """Carry out a federation's run as a simulation, print its report, and hold its weights against the federation's.

    Args:
        folder: the federation's.

    Raises:
        FedshiftError: it cannot be carried out.
    """
    again = f". `fedshift federation rehearse {quote(str(folder))}` goes on from the last checkpoint."
    with interruptible(again), LiveProgress(1) as progress:
        run = simulate(folder, progress)
    print_report(api.load(run.path), run.path)
    say(compared(run, carried_out(folder)))


def compared(run: Run, theirs: Run) -> str:
    """How the weights compare with those of the federation's run."""
    if not theirs.finished:
        return f"The federation's own run, '{theirs.path}', is not finished: there are no weights to compare yet."
    apart = difference(run, theirs)
    if not apart:
        return "Compared with the federation's own run: equal weights, bit for bit."
    return (
        f"Compared with the federation's own run: weights differ by {apart:.2g} at most. Sites that were away, other "
        "numbers of threads and other machines make such differences."
    )


def _left(folder: Path, sites: Mapping[str, float]) -> Table:
    """What has left each site."""
    rows = []
    for site in sites:
        totals = summary(folder / SITES / site / SENT)
        for category in dict.fromkeys(total.category for total in totals):
            of_it = [total for total in totals if total.category == category]
            size = bytes_text(sum(total.bytes for total in of_it))
            rows.append([site, category, str(sum(total.messages for total in of_it)), size])
    return Table("What left each site", ["site", "category", "messages", "bytes"], rows)


def _plan(folder: Path, chosen: Experiment, sites: Mapping[str, float]) -> list[str]:
    """What would be done."""
    train = chosen.train
    who = [f"{site} (turned by {angle:g} degrees)" for site, angle in sites.items()]
    started = [[*shell.SERVE, str(folder / COORDINATOR)]]
    started += [[*shell.JOIN, str(folder / SITES / site)] for site in sites]
    started += [[*shell.RUN, str(folder / COORDINATOR)]]
    return [
        f"'{folder}' would be made, for a coordinator and {len(sites)} sites.",
        f"Sites, with {10 * IMAGES_PER_CLASS} digits of its own each: {', '.join(who)}.",
        f"Rounds of {chosen.method_name}: {train.rounds}, with {train.steps} steps at each site.",
        "These commands would be started, at ports that are free, and ended after the run:",
        *(f"  {join(command)}" for command in started),
        f"The report would be in '{folder / COORDINATOR / 'runs'}'. Nothing was written.",
    ]
