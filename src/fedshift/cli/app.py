"""The commands; each imports what it needs when it runs, so that help appears at once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.cli.console import interruptible, open_console, print_report, print_tables
from fedshift.cli.federation import federation
from fedshift.cli.options import (
    CommandLine,
    PluginOption,
    RunsArgument,
    SetOption,
    ShardOption,
    SlurmOption,
    TrustOption,
    all_names,
    app,
    command,
    complete,
    folder_names,
    load_plugins,
    on_experiment,
    setting_names,
    warnings_as_notes,
)
from fedshift.cli.studies import analyse, benchmark, export, predict, reproduce, track, validate
from fedshift.errors import FedshiftError
from fedshift.methods import INDEXING

__all__ = ["app"]  # with all commands

SAMPLERS = complete(lambda: ("tpe", "random", "grid"))


def resumable(path: Path) -> str:
    return f". `fedshift resume {path}` continues from the last checkpoint."


@on_experiment(
    "run --method fedsr",
    "run --method fedsr --set method.l2r=0.05 --seed 1",
    "run --data folder --set data.path=photos --hold-out sketch --model resnet18 --method fedsr --dry-run",
    "run --data table --set 'data.path=clinics.csv' --set 'data.sep=;' --protocol in-domain --model mlp",
)
def run(requested: CommandLine) -> None:
    """Run one method (by default the experiment's first) with one seed on one federation."""
    from fedshift.cli.before import print_estimates
    from fedshift.runs.scheduling import run_path
    from fedshift.study import api

    with warnings_as_notes():
        experiment = api.only(requested.experiments, requested.options)
    if requested.dry_run:
        print_estimates([experiment])
        return
    with interruptible(resumable(run_path(experiment))):
        done = api.run(experiment)
    print_report(api.load(done.path), done.path)


@on_experiment(
    "compare",
    "compare --method fedavg,fedprox,fedsr --hold-out 0,75 --seed 0,1,2",
    "compare my-experiment.toml --set train.lr=0.1,0.01 --dry-run",
    "compare --protocol in-domain --method fedavg,fedbn    # every site is scored on its local test samples",
    "compare --method fedavg,fedsr --tuned runs/rotated-mnist/tuned-1a2b3c4d.toml",
    "compare --seed 0,1,2 --shard 1/2    # and on another machine, in the same folder, --shard 2/2",
)
def compare(requested: CommandLine, *, shard: ShardOption = None, slurm: SlurmOption = None) -> None:
    """Run a grid of methods, seeds and held-out domains and print one table; finished runs are not repeated."""
    from fedshift.cli.before import print_estimates, write_slurm
    from fedshift.runs.scheduling import run_path
    from fedshift.study import api

    if requested.dry_run:
        print_estimates(requested.experiments)
        return
    base = run_path(requested.experiments[0]).parent
    if slurm:
        write_slurm(api.estimate(requested.experiments), base, slurm, requested.experiments[0].run)
        return
    with interruptible(resumable(base)):
        comparison = api.compare(requested.experiments, shard=shard)
    print_report(comparison, base)


@on_experiment(
    "tune --method fedavg,fedprox,fedsr --dry-run",
    "tune --method fedsr --trials 40 --sampler random --hold-out 0,75",
    "tune --method fedprox --search train.lr=0.001..0.1 --search method.mu=0.01,0.1,1 --rounds 50",
    "tune --method fedavg,fedsr --cross-validate --hold-out 0",
    more="A setting given by --set is not searched. The same command again resumes the search, or prints its result; "
    "with more --trials it extends the search.",
)
def tune(
    requested: CommandLine,
    *,
    trials: Annotated[int, typer.Option("--trials", help="Choices that are tried for each method.", min=1)] = 20,
    sampler: Annotated[
        str,
        typer.Option(
            help="tpe (learns from earlier trials), random, or grid (every combination).", autocompletion=SAMPLERS
        ),
    ] = "tpe",
    parallel: Annotated[
        int, typer.Option(help="Trials chosen and run in parallel; the number affects which settings are tried.", min=1)
    ] = 4,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Ranges in addition to the declared ones: train.lr=0.001..0.1, or method.mu=0.1,0.5,1.",
            autocompletion=complete(setting_names),
        ),
    ] = None,
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate", help="Validate on each domain that trains, held out in turn (leave-one-domain-out)."
        ),
    ] = False,
    shard: ShardOption = None,
    slurm: SlurmOption = None,
) -> None:
    """Search the settings of methods on validation data with one budget for all; `compare --tuned` uses the best."""
    from fedshift.cli.before import forecasts_of_searches, print_searches, write_slurm
    from fedshift.runs.scheduling import run_path
    from fedshift.study import api
    from fedshift.study.tune import plan_studies
    from fedshift.written import parse_assignments

    ranges = parse_assignments(search or [], "--search")
    how: dict[str, Any] = {
        "trials": trials,
        "sampler": sampler,
        "parallel": parallel,
        "search": ranges,
        "cross_validate": cross_validate,
    }
    if requested.dry_run or slurm:
        with warnings_as_notes():
            budget = api.search_budget(requested.source, settings=requested.options.get("settings"), **how)
            if requested.dry_run:
                print_searches(requested.experiments, budget)
            elif slurm:
                studies, first = plan_studies(requested.experiments, budget)[0], requested.experiments[0]
                write_slurm(forecasts_of_searches(studies), run_path(first).parent, slurm, first.run)
        return
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command resumes without losing a trial: {again}"), warnings_as_notes():
        tuning = api.tune(requested.source, **how, shard=shard, **requested.options)
    page = tuning.report()
    print_tables(tuning.tables(), tuning.notes())
    typer.echo(
        f"Tuned settings: {tuning.path}\nReport: {page}\n`fedshift compare --tuned {tuning.path}`, with the same "
        "experiment and options, compares the methods with them."
    )
    if tuning.failed:
        raise FedshiftError(tuning.failed[0])


@on_experiment("bench", "bench --method fedsr --set train.precision=bfloat16")
def bench(requested: CommandLine) -> None:
    """Measure which engine is fastest for an experiment on this machine, and explain the choice."""
    from fedshift.cli.before import print_engines

    print_engines(requested.experiments, requested.dry_run)


@on_experiment(
    "data",
    "data my-experiment.toml --html data.html",
    "data --data folder --set data.path=photos --hold-out sketch --json",
)
def data(
    requested: CommandLine,
    *,
    html: Annotated[Path | None, typer.Option(help="Also write a page: a file, or a folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Judge test samples as well; by default they are only counted.")
    ] = False,
) -> None:
    """Inspect an experiment's data before a run: counts, duplicates, drift between sites, findings and their fixes."""
    from json import dumps

    from fedshift.study import api
    from fedshift.written import printable

    if requested.dry_run:
        raise FedshiftError("`fedshift data` runs nothing, and writes nothing but --html: remove --dry-run.")
    report = api.inspect_data(requested.experiments, test=test)
    written = None if html is None else report.report(html)
    if as_json:
        typer.echo(dumps(report.table(), indent=2, ensure_ascii=False))
        return
    report.show(open_console())
    if written is not None:
        typer.echo(f"Written: {printable(str(written))}")


@on_experiment(
    "index --data folder --set data.path=photos --set partition.name=iid --set partition.clients=10",
    "index my-experiment.toml --set method.index.strategy=federated",
    "index --set method.index.encoder=clip",
    method=INDEXING,
)
def index(requested: CommandLine) -> None:
    """Describe every client by a vector before any training: Parquet and a similarity heat map."""
    from fedshift.cli.before import print_indices

    print_indices(requested.experiments, requested.dry_run)


command(
    "benchmark --method fedavg,fedprox",
    "benchmark --scale short --data pacs=pacs.parquet --data heart=heart.csv --dry-run",
    "benchmark --scale short --plugin my_method.py --method all,my-method",
    more="The same command again resumes, or prints the result.",
)(benchmark)

command(
    "reproduce --list",
    "reproduce fedsr-table1",
    "reproduce fedpin-table2 --scale short --panel fedpin-cfmnist --dry-run",
    "reproduce fedcir-table1 --scale short --data pacs=pacs.parquet --row FedAvg --row FedCiR",
    more="The same command again resumes, or prints the result.",
)(reproduce)

command(
    "analyse tsne runs/rotated-mnist",
    "analyse calibration runs/rotated-mnist --set bins=10 --to figures",
    more="`fedshift list analyses` lists the analyses, and `fedshift show NAME` the settings of each.",
)(analyse)

command(
    "predict runs/mine/fedsr-0-seed0-1a2b3c4d photos new.png",
    "predict runs/mine/fedbn-seed0-1a2b3c4d new.csv --client north --round selected --out -",
)(predict)

command(
    "validate runs/mine/fedavg-seed0-1a2b3c4d new-hospital.csv --to for-the-coordinator",
    "validate runs/mine/fedavg-seed0-1a2b3c4d new-hospital.csv --by sex --against runs/mine/local-seed0-5e6f7a8b",
    "validate lungs/sites/oslo new-hospital.csv --set data.label=diagnosis --rows stays-here.csv",
    more="The last one scores the model in a site's folder of a federation.",
)(validate)

command(
    "export runs/mine/fedavg-0-seed0-1a2b3c4d",
    "export runs/mine/fedbn-seed0-1a2b3c4d --client north --format onnx,safetensors --to north-model",
    more="The folder's README.md is the model card, and shows in five lines how to run the files.",
)(export)


@command("resume runs/rotated-mnist", "resume runs/mine/fedsr-0-seed0-1a2b3c4d")
def resume(path: RunsArgument, trust: TrustOption = False) -> None:
    """Resume interrupted runs from their last checkpoints, to the same bits; start those that have not started."""
    from fedshift.runs.origin import UntrustedError
    from fedshift.study import api

    with interruptible(resumable(path)):
        try:
            comparison = api.resume(path, trust=trust)
        except UntrustedError as error:
            if not (sys.stdin.isatty() and typer.confirm(f"{error}\nImport it?", err=True)):
                raise
            comparison = api.resume(path, trust=True)
    print_report(comparison, path)


@command("watch runs/rotated-mnist", "watch runs --wait")
def watch(
    path: RunsArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the first run.")] = False,
) -> None:
    """Show the progress of runs from another terminal until all have ended, without affecting them."""
    from fedshift.reporting.follow import follow

    with interruptible("; the runs continue."):
        follow(path, open_console(), wait)


command(
    "track runs/rotated-mnist --to tensorboard",
    "track runs --to mlflow,prometheus --set uri=http://localhost:5000 --wait",
    more="The same command again resumes. `fedshift show tensorboard` lists the settings of a tracker.",
)(track)


@command("report runs/rotated-mnist", "report runs --to all.html", "report runs --files paper/figures")
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.", autocompletion=folder_names)],
    to: Annotated[Path | None, typer.Option(help="The HTML file; by default report.html in the folder.")] = None,
    files: Annotated[
        Path | None,
        typer.Option(help="Folder for every table as LaTeX, Markdown and CSV, and every figure as SVG, PNG and CSV."),
    ] = None,
) -> None:
    """Print the tables of recorded runs and write their HTML report.

    The data of the first finished run are read again for sample images of each domain, which its folder keeps.
    """
    from fedshift.study import api

    print_report(api.load(*paths), paths[0], to, files, images=True)


@command("list", "list methods", name="list")
def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, datasets, partitions, models, protocols, indices, encoders, analyses, trackers or "
            "experiments; by default all."
        ),
    ] = "all",
    plugin: PluginOption = None,
) -> None:
    from fedshift.cli.catalogues import print_list

    load_plugins(plugin)
    print_list(kind)


@command("show fedsr", "show train", "show pacs-features --set train.lr=0.1", "show my-experiment.toml")
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, data set, partition, model, protocol, index or encoder; train, evaluate or run; or an "
            "experiment, by its name or its TOML file.",
            autocompletion=complete(all_names),
        ),
    ],
    plugin: PluginOption = None,
    set_: SetOption = None,
) -> None:
    """Show the settings of a method, data set, model or other entry, or the resolved settings of an experiment."""
    from fedshift.cli.catalogues import print_named
    from fedshift.written import parse_assignments

    load_plugins(plugin)
    print_named(name, parse_assignments(set_ or []))


@command(
    "schema",
    "schema --json > fedshift.schema.json",
    more="An editor with TOML support checks and completes a file that begins with: #:schema ./fedshift.schema.json",
)
def schema(
    json: Annotated[bool, typer.Option("--json", help="As JSON Schema, for editors.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Show every table and setting of an experiment, with its limits and default, on one page."""
    from fedshift.cli.catalogues import print_schema

    load_plugins(plugin)
    print_schema(json)


app.add_typer(federation)


def _version(requested: bool) -> None:
    if requested:
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
    """Options of every command, handled before and around it."""
