"""The commands of a federation across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
    + "\n\nWithout data on this machine, say what a sample is:\n\n"
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
        _named("--hold-out", "The site that is only scored; by default the experiment's, if it is one."),
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
        str, _named("--environments", "Where the data bring environments of their own, their names: p=0.1,p=0.9.")
    ] = "",
    to: Annotated[Path, _named("--to", "The folder in which the federation's is made.")] = Path(),
    dry_run: Annotated[bool, _named("--dry-run", "Show what would be made; write nothing.")] = False,
) -> None:
    """Make a ready folder for the coordinator and each site: settings, keys, certificates, and READMEs to follow."""
    from fedshift.cli.federation_init import init
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


@federation.command(epilog=_examples("check", "check sites/a --json > found.json"))
def check(
    folder: SiteArgument = Path(), json: Annotated[bool, _named("--json", "Print what was found as JSON.")] = False
) -> None:
    """At a site: hold its folder and its data against what was agreed, and show what will leave it."""
    from fedshift.cli.federation_check import check

    check(folder, json)


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
    """At the coordinator: start the SuperLink, and let sites connect, until Ctrl-C."""
    from fedshift.cli.federation_serve import serve

    serve(folder, control_port, dry_run)


@federation.command(epilog=_examples("join", "join lungs/sites/berlin", "join lungs/sites/berlin --dry-run"))
def join(
    folder: SiteArgument = Path(),
    address: Annotated[
        str | None, _named("--address", "Host and port of the coordinator; by default as federation.toml says.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """At a site: connect to the coordinator, and answer its requests, until Ctrl-C."""
    from fedshift.cli.federation_serve import join

    join(folder, address, dry_run)


@federation.command(epilog=_examples("run", "run lungs/coordinator --dry-run"))
def run(folder: CoordinatorArgument = Path(), dry_run: DryRunOption = False) -> None:
    """At the coordinator, while `serve` runs: start the run or carry it on, and show its progress."""
    from fedshift.cli.federation_serve import run

    run(folder, dry_run)


@federation.command(
    epilog=_examples("demo", "demo --to elsewhere --method fedavg --sites 5", "demo --rounds 3 --dry-run")
)
def demo(
    to: Annotated[Path, typer.Option("--to", help="The folder that is made.", autocompletion=folder_names)] = Path(
        "federation-demo"
    ),
    method: Annotated[
        str, typer.Option("--method", "-m", help="The method.", autocompletion=names_of("METHODS"))
    ] = "fedsr",
    rounds: Annotated[int, typer.Option("--rounds", help="Communication rounds.", min=1)] = 8,
    sites: Annotated[int, typer.Option("--sites", help="How many institutions take part.", min=2, max=6)] = 3,
    dry_run: Annotated[bool, _named("--dry-run", "Say what would be done; do nothing.")] = False,
) -> None:
    """On one laptop: make a federation, start all its processes, carry out its run, and show what came of it."""
    from fedshift.cli.federation_demo import demo

    demo(to, method, rounds, sites, dry_run)


@federation.command(epilog=_examples("rehearse federation-demo", "rehearse"))
def rehearse(
    folder: Annotated[
        Path, typer.Argument(help="The federation's folder, with all sites' in it.", autocompletion=folder_names)
    ] = Path(),
) -> None:
    """Where all sites' folders are: carry out a federation's run as a simulation, in this process."""
    from fedshift.cli.federation_demo import rehearse

    rehearse(folder)


@federation.command(epilog=_examples("sent", "sent sites/a --full | less", "sent sites/a --json > sent.json"))
def sent(
    folder: SiteArgument = Path(),
    full: Annotated[bool, _named("--full", "Every message, and every tensor in it.")] = False,
    json: Annotated[bool, _named("--json", "Print it as JSON.")] = False,
) -> None:
    """At a site: what has left it so far, from its sent.jsonl, in which no line may have been changed."""
    from fedshift.cli.federation_sent import sent

    sent(folder, full, json)


@federation.command(epilog=_examples("confirm berlin", "confirm berlin lungs/coordinator"))
def confirm(
    site: Annotated[str, typer.Argument(help="The site's name.")], folder: CoordinatorArgument = Path()
) -> None:
    """At the coordinator: take a site out of quarantine, once you know that it is the site and no thief of its key."""
    from fedshift.cli.federation_serve import confirm

    confirm(site, folder)
