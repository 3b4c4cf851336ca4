"""The commands of a federation across machines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join as typed
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshift.cli.console import interruptible
from fedshift.cli.options import (
    Commands,
    DataOption,
    ExperimentArgument,
    MethodOption,
    ModelOption,
    PluginOption,
    RoundsOption,
    SeedOption,
    SetOption,
    folder_names,
    names_of,
)

if TYPE_CHECKING:
    from fedshift.deployment.supervisor import ChildProcess

federation = typer.Typer(
    cls=Commands,
    name="federation",
    help="A federation of institutions, on Flower.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _examples(*commands: str) -> str:
    return "\n\n".join(["Examples:", *(f"  fedshift federation {command}" for command in commands)])


def _named(flag: str, help: str) -> Any:
    return typer.Option(flag, help=help)


SiteArgument = Annotated[Path, typer.Argument(help="The site's folder.", autocompletion=folder_names)]
CoordinatorArgument = Annotated[Path, typer.Argument(help="The coordinator's folder.", autocompletion=folder_names)]
DryRunOption = Annotated[bool, _named("--dry-run", "Print the commands that would be started; do nothing.")]


@federation.command(
    epilog=_examples(
        "init trial --sites a,b,c --method fedsr --hold-out c",
        "init out/trial --sites a,b,c --method fedavg --dry-run",
        "init lungs my-experiment.toml --sites berlin,oslo,rome --hold-out rome --address fl.example.org:8000",
    )
    + "\n\nWithout data on this machine, describe a sample:\n\n"
    "  fedshift federation init pets --sites a,b,c --data folder --set data.path=data --set data.size=64 "
    "--classes cat,dog --method fedavg --hold-out c"
)
def init(
    name: Annotated[str, typer.Argument(help="The federation's folder, whose name is the federation's.")],
    experiment: ExperimentArgument = "rotated-mnist",
    sites: Annotated[
        str, typer.Option("--sites", help="The institutions' names: a,b,c. Each is a client.", show_default=False)
    ] = ...,  # type: ignore[assignment]  # typer's word for an option that has to be given
    method: MethodOption = None,
    data: DataOption = None,
    model: ModelOption = None,
    hold_out: Annotated[
        str | None,
        _named(
            "--hold-out",
            "The site that is only scored; by default the domain that the experiment holds out, if it is a site.",
        ),
    ] = None,
    seed: SeedOption = None,
    rounds: RoundsOption = None,
    plugin: PluginOption = None,
    set_: SetOption = None,
    address: Annotated[
        str, _named("--address", "Host and port at which sites reach the coordinator.")
    ] = "127.0.0.1:8000",
    classes: Annotated[str, _named("--classes", "The classes' names, in the order of their labels: cat,dog.")] = "",
    shape: Annotated[str, _named("--shape", "The shape of a sample: 3,64,64.")] = "",
    columns: Annotated[
        str, _named("--columns", "Of a table that is prepared, its columns, and categories: 'age,sex=f|m'.")
    ] = "",
    environments: Annotated[
        str, _named("--environments", "The names of environments, if the data define them: p=0.1,p=0.9.")
    ] = "",
    to: Annotated[Path, _named("--to", "The folder in which the federation's folder is created.")] = Path(),
    dry_run: Annotated[bool, _named("--dry-run", "Show what would be created; write nothing.")] = False,
) -> None:
    """Create a folder for the coordinator and for each site: settings, keys, certificates, and READMEs to follow."""
    from fedshift.cli.federation_make import init
    from fedshift.written import parse_value, parse_words

    options: dict[str, Any] = {
        "method": None if method is None else parse_words(method),
        "data": data,
        "model": model,
        "hold_out": hold_out,
        "seed": None if seed is None else parse_value(seed),
        "rounds": rounds,
        "plugins": plugin or None,
    }
    sample = {"classes": classes, "shape": shape, "columns": columns, "environments": environments}
    init(to.expanduser() / Path(name).expanduser(), sites, experiment, options, set_ or [], address, sample, dry_run)


@federation.command(epilog=_examples("check", "check sites/a"))
def check(folder: SiteArgument = Path()) -> None:
    """At a site: check its folder and data against the agreement, and show what will leave the site."""
    from fedshift.cli.federation_make import check

    check(folder)


@federation.command(
    epilog=_examples("serve", "serve lungs/coordinator --control-port 9000", "serve lungs/coordinator --dry-run")
)
def serve(
    folder: CoordinatorArgument = Path(),
    control_port: Annotated[
        int | None,
        typer.Option(
            "--control-port", help="The SuperLink's port; by default that after the address's.", min=1, max=65535
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """At the coordinator: start the SuperLink and accept sites, until Ctrl-C."""
    from fedshift.deployment import shell
    from fedshift.deployment.federation_toml import read_federation
    from fedshift.deployment.serving import inner_port, parts_of_coordinator, serve

    if dry_run:
        address = read_federation(folder, shell.OF_COORDINATOR).address
        _print_parts(folder, parts_of_coordinator(inner_port(address, control_port)))
        return
    with _serving():
        serve(folder, control_port, typer.echo)


@federation.command(epilog=_examples("join", "join lungs/sites/berlin", "join lungs/sites/berlin --dry-run"))
def join(
    folder: SiteArgument = Path(),
    address: Annotated[
        str | None, _named("--address", "Host and port of the coordinator; by default those in federation.toml.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """At a site: connect to the coordinator, and answer its requests, until Ctrl-C."""
    from fedshift.deployment import shell
    from fedshift.deployment.federation_toml import read_federation
    from fedshift.deployment.serving import join, parts_of_site
    from fedshift.deployment.supervisor import free_port

    if dry_run:
        reached = address or read_federation(folder, shell.OF_SITE).address
        _print_parts(folder, parts_of_site(reached, free_port()))
        return
    with _serving():
        join(folder, address, typer.echo)


@federation.command(epilog=_examples("run", "run lungs/coordinator --dry-run"))
def run(folder: CoordinatorArgument = Path(), dry_run: DryRunOption = False) -> None:
    """At the coordinator, while `serve` runs: start or resume the run, and show its progress."""
    from fedshift.deployment import shell
    from fedshift.deployment.federation_toml import read_federation
    from fedshift.deployment.flower import APP
    from fedshift.deployment.serving import run

    if dry_run:
        federation = read_federation(folder, (shell.AUTHORITY,)).name
        typer.echo(
            f"In '{folder.resolve()}', with what `fedshift federation serve` writes there, this would be started:"
        )
        typer.echo(f"  {typed(shell.start_run(str(APP), federation))}")
        return
    with interruptible("; the run continues. The same command shows it again, and `flwr stop` ends it."):
        code = run(folder)
    if code:
        raise typer.Exit(code)


@federation.command(epilog=_examples("demo", "demo --to elsewhere --method fedavg --sites 5", "demo --rounds 3"))
def demo(
    to: Annotated[Path, typer.Option("--to", help="The folder to create.", autocompletion=folder_names)] = Path(
        "federation-demo"
    ),
    method: Annotated[
        str, typer.Option("--method", "-m", help="The method.", autocompletion=names_of("METHODS"))
    ] = "fedsr",
    rounds: Annotated[int, typer.Option("--rounds", help="Communication rounds.", min=1)] = 8,
    sites: Annotated[int, typer.Option("--sites", help="How many institutions take part.", min=2, max=6)] = 3,
) -> None:
    """On one laptop: create a federation, start all its processes, run it, and show the result."""
    from fedshift.cli.federation_make import demo

    demo(to, method, rounds, sites)


@federation.command(epilog=_examples("rehearse federation-demo", "rehearse"))
def rehearse(
    folder: Annotated[
        Path, typer.Argument(help="The federation's folder, with all sites' in it.", autocompletion=folder_names)
    ] = Path(),
) -> None:
    """With all sites' folders at hand: run a federation as a simulation in this process."""
    from fedshift.cli.federation_make import rehearse

    rehearse(folder)


@federation.command(epilog=_examples("sent", "sent sites/a --full | less"))
def sent(
    folder: SiteArgument = Path(),
    full: Annotated[bool, _named("--full", "Every message, and every tensor in it.")] = False,
) -> None:
    """At a site: show what has left it so far, from its tamper-evident sent.jsonl."""
    from fedshift.cli.federation_make import sent

    sent(folder, full)


@federation.command(epilog=_examples("confirm berlin", "confirm berlin lungs/coordinator"))
def confirm(
    site: Annotated[str, typer.Argument(help="The site's name.")], folder: CoordinatorArgument = Path()
) -> None:
    """At the coordinator: release a site from quarantine, after confirming that its key was not stolen."""
    from fedshift.deployment.members import confirm

    why = confirm(folder, site)
    typer.echo(f"'{site}' takes part again from the next round on. It was in quarantine as it {why.partition(';')[0]}.")


@contextmanager
def _serving() -> Iterator[None]:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        typer.echo(
            "You are root. Better start this as a user who can read this folder and nothing else that is private."
        )
    with interruptible("; every process has ended. The same command resumes."):
        yield


def _print_parts(folder: Path, parts: Sequence[ChildProcess]) -> None:
    typer.echo(f"These commands would be started in '{folder.resolve()}', and started again when one ends:")
    for part in parts:
        typer.echo(f"  {typed(part.command if part.command[0] != '-m' else ['python', *part.command])}")
