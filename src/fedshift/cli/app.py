"""The commands; what they need is imported when they run, so that help comes at once."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshift import memory
from fedshift.cli.commands import Commands
from fedshift.cli.ending import interruptible, print_report, print_tuning
from fedshift.cli.federation import federation
from fedshift.cli.options import (
    DataOption,
    DeviceOption,
    DryRunOption,
    ExperimentArgument,
    HoldOutOption,
    HtmlOption,
    JsonOption,
    MethodOption,
    ModelOption,
    NameOption,
    OutOption,
    ParallelOption,
    PluginOption,
    RoundsOption,
    SamplerOption,
    SearchOption,
    SeedOption,
    SetOption,
    TestOption,
    TrialsOption,
    TunedOption,
    folder_names,
    warnings_as_notes,
)
from fedshift.cli.predict import predict
from fedshift.cli.studies import benchmark, reproduce
from fedshift.errors import FedshiftError

if TYPE_CHECKING:
    from fedshift.experiments import Experiment


app = typer.Typer(
    name="fedshift",
    cls=Commands,
    help="Federated learning when clients' features differ: run, compare and report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with [bold]fedshift compare[/bold]: FedAvg and FedSR on RotatedMNIST, one angle held out.",
)


def _all_names(incomplete: str) -> list[str]:
    """Tab completion of whatever ``show`` shows."""
    from fedshift.cli.catalogues import shown_names

    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in [*shown_names(), *files] if name.startswith(incomplete)]


@dataclass(frozen=True)
class _CommandLine:
    """What the command line says of experiments.

    Attributes:
        source: the experiment's name or file.
        options: how it differs, as :class:`fedshift.study.api.Options` has them.
        experiments: the runs that this makes.
        dry_run: whether to say what would be done, and not do it.
    """

    source: str
    options: dict[str, Any]
    experiments: list[Experiment]
    dry_run: bool


def _experiment_command(act: Callable[..., None], about: str | None = None) -> Callable[..., None]:
    """A command that reads an experiment with the command line's changes and acts on its runs.

    Args:
        act: is given what was asked, and has as keywords the options of this command alone.
        about: the method that the command is about unless the command line names another.
    """

    def command(
        experiment: ExperimentArgument = "rotated-mnist",
        method: MethodOption = None,
        data: DataOption = None,
        model: ModelOption = None,
        hold_out: HoldOutOption = None,
        seed: SeedOption = None,
        rounds: RoundsOption = None,
        device: DeviceOption = None,
        out: OutOption = None,
        name: NameOption = None,
        plugin: PluginOption = None,
        set_: SetOption = None,
        tuned: TunedOption = None,
        dry_run: DryRunOption = False,
        **own: Any,
    ) -> None:
        from fedshift.study import api
        from fedshift.written import parse_assignments, parse_value, parse_words

        chosen = about if method is None else method
        options: dict[str, Any] = {
            "method": None if chosen is None else parse_words(chosen),
            "data": data,
            "model": model,
            "hold_out": None if hold_out is None else parse_words(hold_out),
            "seed": None if seed is None else parse_value(seed),
            "rounds": rounds,
            "device": device,
            "out": out,
            "name": name,
            "plugins": plugin or None,
            "tuned": tuned,
            "settings": parse_assignments(set_ or []),
        }
        with warnings_as_notes():
            experiments = api.grid(experiment, **options)
        with interruptible("."):
            act(_CommandLine(experiment, options, experiments, dry_run), **own)

    common, own = (inspect.signature(each, eval_str=True) for each in (command, act))
    options = [each for each in own.parameters.values() if each.kind is each.KEYWORD_ONLY]
    shared = [each for each in common.parameters.values() if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = common.replace(parameters=[*shared, *options])  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ |= {each.name: each.annotation for each in options}
    return command


def _going_on(path: Path) -> str:
    return f". `fedshift resume {path}` carries on from the last checkpoint."


def _run_one(asked: _CommandLine) -> None:
    from fedshift.cli.estimates import print_estimates
    from fedshift.runs.runner import run_path
    from fedshift.study import api

    with warnings_as_notes():
        experiment = api.only(asked.experiments, asked.options)
    if asked.dry_run:
        print_estimates([experiment])
        return
    with interruptible(_going_on(run_path(experiment))):
        run = api.run(experiment)
    print_report(api.load(run.path), run.path)


def _run_all(asked: _CommandLine) -> None:
    from fedshift.cli.estimates import print_estimates
    from fedshift.runs.runner import run_path
    from fedshift.study import api

    if asked.dry_run:
        print_estimates(asked.experiments)
        return
    base = run_path(asked.experiments[0]).parent
    with interruptible(_going_on(base)):
        comparison = api.compare(asked.experiments)
    print_report(comparison, base)
    if comparison.failed:
        raise FedshiftError(comparison.failure)


app.command(
    "run",
    help="Carry out one run: one method (by default the experiment's first), one seed, one federation.",
    epilog="Examples:\n\n"
    "  fedshift run --method fedsr\n\n"
    "  fedshift run --method fedsr --set method.l2r=0.05 --seed 1\n\n"
    "  fedshift run --data folder --set data.path=photos --hold-out sketch --model resnet18 --method fedsr --dry-run",
)(_experiment_command(_run_one))

app.command(
    "compare",
    help="Carry out a grid of runs and print one table; finished runs are not repeated.",
    epilog="Examples:\n\n"
    "  fedshift compare\n\n"
    "  fedshift compare --method fedavg,fedprox,fedsr --hold-out 0,75 --seed 0,1,2\n\n"
    "  fedshift compare my-experiment.toml --set train.lr=0.1,0.01 --dry-run\n\n"
    "  fedshift compare --method fedavg,fedsr --tuned runs/rotated-mnist/tuned-1a2b3c4d.toml",
)(_experiment_command(_run_all))


def _tune(
    asked: _CommandLine,
    *,
    trials: TrialsOption = 20,
    sampler: SamplerOption = "tpe",
    parallel: ParallelOption = 4,
    search: SearchOption = None,
) -> None:
    from fedshift.cli.estimates import print_searches
    from fedshift.study import api
    from fedshift.written import parse_assignments

    ranges = parse_assignments(search or [], "--search")
    how: dict[str, Any] = {"trials": trials, "sampler": sampler, "parallel": parallel, "search": ranges}
    if asked.dry_run:
        with warnings_as_notes():
            budget = api.search_budget(asked.source, settings=asked.options["settings"], **how)
            print_searches(asked.experiments, budget)
        return
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command carries on, and no trial is lost: {again}"), warnings_as_notes():
        tuning = api.tune(asked.source, **how, **asked.options)
    print_tuning(tuning)
    if tuning.failed:
        raise FedshiftError(tuning.failed[0])


app.command(
    "tune",
    help="Search the settings of methods on validation data, with one budget for all; compare --tuned takes the best.",
    epilog="Examples:\n\n"
    "  fedshift tune --method fedavg,fedprox,fedsr --dry-run\n\n"
    "  fedshift tune --method fedsr --trials 40 --sampler random --hold-out 0,75\n\n"
    "  fedshift tune --method fedprox --search train.lr=0.001..0.1 --search method.mu=0.01,0.1,1 --rounds 50\n\n"
    "A setting given by --set is not searched. The same command again goes on where it was, or prints what it found; "
    "with more --trials it goes on from those that there are.",
)(_experiment_command(_tune))


app.command(
    "benchmark",
    help="Carry out the published benchmark: methods on a set of federations, tuned alike, with ranks and differences.",
    epilog="Examples:\n\n"
    "  fedshift benchmark --method fedavg,fedprox\n\n"
    "  fedshift benchmark --scale short --data pacs=pacs.parquet --data shakespeare=plays.txt --dry-run\n\n"
    "  fedshift benchmark --scale short --plugin my_method.py --method all,my-method\n\n"
    "The same command again goes on where it was, or prints what came out.",
)(benchmark)


app.command(
    "reproduce",
    help="Carry out a table or curve of the five papers (TABLE, such as fedsr-table1), and put it beside the paper's "
    "numbers.",
    epilog="Examples:\n\n"
    "  fedshift reproduce --list\n\n"
    "  fedshift reproduce fedsr-table1\n\n"
    "  fedshift reproduce fedpin-table2 --scale short --panel fedpin-cfmnist --dry-run\n\n"
    "  fedshift reproduce fedcir-table1 --scale short --data pacs=pacs.parquet --row FedAvg --row FedCiR\n\n"
    "The same command again goes on where it was, or prints what came out.",
)(reproduce)


def _bench(asked: _CommandLine) -> None:
    from fedshift.cli.bench import print_engines

    print_engines(asked.experiments, asked.dry_run)


app.command(
    "bench",
    help="Measure which engine is fastest for an experiment on this machine, and say why it is chosen.",
    epilog="Examples:\n\n  fedshift bench\n\n  fedshift bench --method fedsr --set train.precision=bfloat16",
)(_experiment_command(_bench))


def _data(asked: _CommandLine, *, html: HtmlOption = None, json: JsonOption = False, test: TestOption = False) -> None:
    from fedshift.cli.data import print_data
    from fedshift.study import api

    if asked.dry_run:
        raise FedshiftError("`fedshift data` carries out no run, and writes nothing but --html: leave --dry-run out.")
    print_data(api.inspect_data(asked.experiments, test=test), html, json)


app.command(
    "data",
    help="Look at an experiment's data before a run: counts, duplicates, drift between sites, and what is odd.",
    epilog="Examples:\n\n"
    "  fedshift data\n\n"
    "  fedshift data my-experiment.toml --html data.html\n\n"
    "  fedshift data --data folder --set data.path=photos --hold-out sketch --json",
)(_experiment_command(_data))


def _index(asked: _CommandLine) -> None:
    from fedshift.cli.client_index import print_indices

    print_indices(asked.experiments, asked.dry_run)


app.command(
    "index",
    help="Describe every client by a vector before any training (Client2Vec): Parquet and a similarity heat map.",
    epilog="Examples:\n\n"
    "  fedshift index --data folder --set data.path=photos --set partition.name=iid --set partition.clients=10\n\n"
    "  fedshift index my-experiment.toml --set method.index.strategy=federated\n\n"
    "  fedshift index --set method.index.encoder=clip",
)(_experiment_command(_index, about="client2vec"))


@app.command(
    epilog="Examples:\n\n  fedshift resume runs/rotated-mnist\n\n  fedshift resume runs/mine/fedsr-0-seed0-1a2b3c4d"
)
def resume(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of them.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Import plugins that never ran on this machine; read them first.")
    ] = False,
) -> None:
    """Carry interrupted runs on, from their last checkpoints to the same bits; begin those that have not begun."""
    from fedshift.runs.origin import UntrustedError
    from fedshift.study import api

    with interruptible(_going_on(path)):
        try:
            comparison = api.resume(path, trust=trust)
        except UntrustedError as error:
            if not (sys.stdin.isatty() and typer.confirm(f"{error}\nImport it?", err=True)):
                raise
            comparison = api.resume(path, trust=True)
    print_report(comparison, path)
    if comparison.failed:
        raise FedshiftError(comparison.failure)


@app.command(epilog="Examples:\n\n  fedshift watch runs/rotated-mnist\n\n  fedshift watch runs --wait")
def watch(
    path: Annotated[
        Path,
        typer.Argument(help="A run folder, or a folder of them.", autocompletion=folder_names),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Where there is no run yet, wait for one.")] = False,
) -> None:
    """Show from another terminal what runs under way do, until all are over; the runs do not notice."""
    from fedshift.cli.console import open_console
    from fedshift.reporting.follow import follow

    with interruptible(". Only the watching: the runs go on."):
        follow(path, open_console(), wait)


@app.command(epilog="Examples:\n\n  fedshift report runs/rotated-mnist\n\n  fedshift report runs --to all.html")
def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of them.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="The HTML file; by default report.html in the folder.")
    ] = None,
) -> None:
    """Print the tables of recorded runs and write their HTML report."""
    from fedshift.study import api

    print_report(api.load(path), path, to)


app.command(
    epilog="Examples:\n\n"
    "  fedshift predict runs/mine/fedsr-0-seed0-1a2b3c4d photos new.png\n\n"
    "  fedshift predict runs/mine/fedbn-seed0-1a2b3c4d new.csv --client north --round selected --out -"
)(predict)


@app.command("list", epilog="Examples:\n\n  fedshift list\n\n  fedshift list methods")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, datasets, partitions, models, protocols, indices, encoders or experiments; by default all."
        ),
    ] = "all",
    plugin: PluginOption = None,
) -> None:
    """List what an experiment can name."""
    from fedshift.cli.catalogues import print_list
    from fedshift.experiments import load_plugins

    load_plugins([str(path) for path in plugin or []])
    print_list(kind)


@app.command(
    epilog="Examples:\n\n"
    "  fedshift show fedsr\n\n"
    "  fedshift show train\n\n"
    "  fedshift show pacs-features --set train.lr=0.1\n\n"
    "  fedshift show my-experiment.toml"
)
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, data set, partition, model, protocol, index or encoder; train, evaluate or run; or an "
            "experiment, by its name or its TOML file.",
            autocompletion=_all_names,
        ),
    ],
    plugin: PluginOption = None,
    set_: SetOption = None,
) -> None:
    """Show the settings of a method (or data set, model, ...), or with which settings an experiment would run."""
    from fedshift.cli.catalogues import print_named
    from fedshift.experiments import load_plugins
    from fedshift.written import parse_assignments

    load_plugins([str(path) for path in plugin or []])
    print_named(name, parse_assignments(set_ or []))


@app.command(
    epilog="Examples:\n\n"
    "  fedshift schema\n\n"
    "  fedshift schema --json > fedshift.schema.json\n\n"
    "An editor with TOML support checks and completes a file that begins with: #:schema ./fedshift.schema.json"
)
def schema(
    json: Annotated[bool, typer.Option("--json", help="As JSON Schema, for editors.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Show every table and setting that an experiment can have, with its limits and default, on one page."""
    from fedshift.cli.catalogues import print_schema
    from fedshift.experiments import load_plugins

    load_plugins([str(path) for path in plugin or []])
    print_schema(json)


app.add_typer(federation)


def _version(asked: bool) -> None:
    if asked:
        from fedshift import __version__

        typer.echo(f"fedshift {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Options of every command; they are acted on before and around it."""


def main() -> None:
    """The command ``fedshift``: a user's error is one message and exit code 2; one of the system's exit code 1."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    if isinstance(sys.stdout, TextIOWrapper):  # there is none where it was closed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(arguments)
    except FedshiftError as error:
        if debug:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)
    except Exception as error:
        shortage = memory.is_shortage(error)
        if debug or not (shortage or isinstance(error, OSError)):
            raise
        if not isinstance(error, BrokenPipeError):
            typer.secho(f"Error: {memory.in_words(error) if shortage else error}", fg="red", err=True)
        if not shortage and sys.stdout is not None:
            with suppress(OSError):
                sys.stdout.close()  # or what is left of the output is written again at the end
        sys.exit(1)
