"""The commands ``fedshift benchmark``, ``reproduce``, ``analyse``, ``predict``, ``validate``, ``export``, ``track``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedshift.cli.console import interruptible, print_tables
from fedshift.cli.options import (
    DryRunOption,
    PluginOption,
    RunsArgument,
    ShardOption,
    SlurmOption,
    TrustOption,
    complete,
    folder_names,
    listed,
    load_plugins,
    names_known_to,
    names_of,
    paths_of,
)
from fedshift.errors import FedshiftError

if TYPE_CHECKING:
    from fedshift.runs.run import Run
    from fedshift.runs.trained import Trained
    from fedshift.study.study_plan import StudyPlan
    from fedshift.study.study_tables import StudyResults

R = TypeVar("R", bound="StudyResults")

RoundOption = Annotated[
    str,
    typer.Option(
        "--round",
        help="last, or selected: the round that validation picks.",
        autocompletion=complete(lambda: ["last", "selected"]),
    ),
]
NAME_ONE = (
    "`fedshift reproduce fedsr --list`, of one paper, or of one table, lists what is needed, how to get it, the "
    "command and its cost."
)
TABLES = names_known_to("fedshift.study.papers", "exhibits")
SCALES = names_known_to("fedshift.study.scenarios", "scales", "papers")
PANELS = names_known_to("fedshift.study.scenarios", "scenarios", "papers")
BENCHMARK_SCALES = names_known_to("fedshift.study.scenarios", "scales", "benchmark")
FEDERATIONS = names_known_to("fedshift.study.scenarios", "scenarios", "benchmark")


def benchmark(
    scale: Annotated[
        str, typer.Option("--scale", help="smoke, short or paper: how large.", autocompletion=BENCHMARK_SCALES)
    ] = "smoke",
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="Rows; all: every published method.", autocompletion=names_of("METHODS")),
    ] = "all",
    federation: Annotated[
        str | None,
        typer.Option("--federation", help="Columns; by default all of the scale.", autocompletion=FEDERATIONS),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Data files that fedshift cannot download or generate: pacs=FILE, heart=FILE."),
    ] = None,
    plugin: PluginOption = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published", help="Use the published numbers that come with the package; run only what they lack."
        ),
    ] = False,
    out: Annotated[str | None, typer.Option("--out", help="The folder; by default runs/benchmark.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of runs and their estimated time; write nothing.")
    ] = False,
    shard: ShardOption = None,
    slurm: SlurmOption = None,
) -> None:
    """Run the published benchmark: methods on a set of federations, with equal tuning, ranks and differences."""
    from fedshift.runs.shard import Shard
    from fedshift.study.benchmark import Benchmark
    from fedshift.study.benchmark_plan import plan_benchmark

    columns = listed(federation) if federation is not None else None
    data_by_name = paths_of(data or [])
    plan = plan_benchmark(
        scale, listed(method), columns, data=data_by_name, plugins=plugin or [], out=out, published=published
    )
    done = _run_or_estimate(plan, partial(Benchmark.run, shard=Shard.of(shard)), dry_run, slurm)
    if done and done.failed:
        raise typer.Exit(1)


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="A table or curve, such as fedsr-table1; with --list also a paper's, as in fedsr.",
            autocompletion=TABLES,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", help="smoke (the default), short or paper: how large.", autocompletion=SCALES),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the progress of all tables, and which data they lack.")
    ] = False,
    panel: Annotated[
        list[str] | None,
        typer.Option("--panel", help="Of its federations only this, or several: once for each.", autocompletion=PANELS),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="Of its rows only this, as it is printed, or several: once for each."),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Data: pacs=FILE, or another setting: digits.usps=FILE.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help=r"A setting of \[run], which decides no result: run.threads=2.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="The folder; by default runs/reproduce.")] = None,
    dry_run: DryRunOption = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
    shard: ShardOption = None,
    slurm: SlurmOption = None,
) -> None:
    """Reproduce a table or curve of a paper (TABLE, such as fedsr-table1), next to the paper's numbers."""
    from fedshift.runs.shard import Shard
    from fedshift.study.reproduction import Reproduction, plan_table
    from fedshift.study.states import reproductions
    from fedshift.written import parse_assignments

    paths = paths_of(data or [])
    if list_:
        ignored = {"--panel": panel, "--row": row, "--set": set_, "--dry-run": dry_run}
        if given := [name for name, value in ignored.items() if value]:
            raise FedshiftError(f"--list shows the progress of whole tables: remove {', '.join(given)}.")
        found = reproductions([table] if table else None, scale, data=paths, out=out, costs=table is not None)
        if json_:
            typer.echo(found.json())
        else:
            print_tables(found.tables(), found.notes() if table else [NAME_ONE], least=found.WIDTH)
        return
    if json_:
        raise FedshiftError("--json is of --list; a table's folder has TABLE.json.")
    if table is None:
        raise FedshiftError("No table is named; `fedshift reproduce --list` lists them.")
    run = parse_assignments(set_ or [])
    plan = plan_table(
        table, scale or "smoke", panels=panel or None, rows=row or None, data=paths, settings=run, out=out
    )
    _run_or_estimate(plan, partial(Reproduction.run, shard=Shard.of(shard)), dry_run, slurm)


def _run_or_estimate(
    plan: StudyPlan, carry_out: Callable[[StudyPlan], R], dry_run: bool, slurm: int | None
) -> R | None:
    """Run a study and print its tables, or print its cost, or write a cluster's script."""
    from fedshift.cli.before import print_study, write_slurm
    from fedshift.study.execute import forecast, unfinished_runs
    from fedshift.written import printable

    if dry_run:
        with interruptible("."):
            print_study(plan)
        return None
    if slurm:
        available = plan.available
        first = available.cells[0].experiments[0]
        write_slurm(forecast(available, unfinished_runs), plan.folder, slurm, first.run)
        return None
    again = shlex.join(["fedshift", *sys.argv[1:]])
    with interruptible(f". The same command resumes: {again}"):
        done = carry_out(plan)
    print_tables(done.tables(), done.notes(), least=done.WIDTH)
    typer.echo(f"Written: {printable(str(plan.folder))}")
    return done


STDOUT = "-"


def analyse(
    name: Annotated[
        str,
        typer.Argument(help="An analysis of `fedshift list analyses`.", autocompletion=names_of("ANALYSES")),
    ],
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.", autocompletion=folder_names)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the analysis: bins=10; `fedshift show NAME`.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder for the files; by default analyses/ in the first path.")
    ] = None,
    plugin: PluginOption = None,
    trust: TrustOption = False,
) -> None:
    """Analyse finished runs without training: a table, charts as SVG and PNG, and every number as CSV.

    Earlier measurements are read from the run's folder, and `fedshift report` shows them as well.
    """
    from fedshift.study import api
    from fedshift.written import parse_assignments, printable

    load_plugins(plugin)
    settings = {key.removeprefix("analysis."): value for key, value in parse_assignments(set_ or []).items()}
    with interruptible(". What was measured before is kept."):
        found = api.analyse(name, *paths, trust=trust, notify=_report_analyses, **settings)
    print_tables(found.tables(), found.notes())
    written = found.write(to or paths[0] / "analyses")
    typer.echo("Written: " + printable(", ".join(map(str, written))))


def _report_analyses(run: Run) -> None:
    typer.echo(f"Measuring {run.path.name}...", err=True)


ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client",
        help="The name or number of the client whose personalised model predicts; by default the global model.",
    ),
]


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=folder_names)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of the kind that the run was trained on (images, .npz, CSV, Parquet), or folders of them."
        ),
    ],
    client: ClientOption = None,
    round_: RoundOption = "last",
    out: Annotated[str, typer.Option("--out", help="The CSV file; - prints it.")] = "predictions.csv",
    trust: TrustOption = False,
) -> None:
    """Predict for new files: a CSV with the class and class probabilities of every file or row.

    Files that cannot be read are listed at the end, and the exit code is then 2.
    """
    from typing import cast

    from fedshift.reporting.live import LiveProgress
    from fedshift.runs.run import Picked, Run
    from fedshift.study import api

    whose = named_client(Run.open(run, trust), client)
    with interruptible(". Nothing was written."), LiveProgress(0) as progress:
        notify = partial(progress.inspected, "Reading files")
        found = api.predict(run, files, client=whose, round=cast("Picked", round_), trust=trust, notify=notify)
    for note in found.notes:
        typer.echo(f"Note: {note}", err=True)
    if out == STDOUT:
        typer.echo(found.csv(), nl=False)
    else:
        typer.echo(f"Written: {found.write(out)} ({len(found.files)} samples)", err=True)
    found.check()


def validate(
    model: Annotated[
        Path, typer.Argument(help="The folder of a finished run, or of a site.", autocompletion=folder_names)
    ],
    data: Annotated[Path, typer.Argument(help="A labelled file or folder of the kind that the model was trained on.")],
    client: ClientOption = None,
    round_: RoundOption = "last",
    against: Annotated[
        Path | None, typer.Option("--against", help="Another model, to compare with.", autocompletion=folder_names)
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="A metric, as evaluate.metrics names it; or several.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="A column whose values define subgroups; or domain.")] = "",
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder for what may be handed on: JSON, Markdown, HTML, SVG and PNG.")
    ] = None,
    min_count: Annotated[
        int,
        typer.Option(
            "--min-count",
            help="Suppress every number that is based on fewer samples, or from which such a number follows.",
            min=1,
        ),
    ] = 10,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="CSV for every sample, which has to stay at the site.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help=r"A setting of \[data]: data.label=diagnosis.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Score a trained model on labelled data of a site that never joined; only aggregates are printed and written.

    Metrics with intervals, subgroups, calibration, thresholds from validation data, drift, and a paired comparison.
    """
    from typing import cast

    from fedshift.reporting.validation import STAYS
    from fedshift.runs.run import Picked, Run
    from fedshift.study import api
    from fedshift.written import parse_assignments, printable

    whose = client if client is None or _of_a_site(model) else named_client(Run.open(model, trust), client)
    with interruptible(". Nothing was written."):
        found = api.validate(
            _model_in(model),
            data,
            client=whose,
            round=cast("Picked", round_),
            against=None if against is None else _model_in(against),
            metrics=metric or (),
            by=by,
            min_count=min_count,
            settings=parse_assignments(set_ or []),
            trust=trust,
        )
    for note in found.reading:
        typer.echo(f"Note: {printable(note)}", err=True)
    print_tables(found.tables(), found.notes())
    if to is not None:
        typer.echo("Written: " + printable(", ".join(map(str, found.write(to)))))
    if rows is not None:
        typer.echo(f"Written: {printable(str(found.write_rows(rows)))}. {STAYS}")


def _of_a_site(folder: Path) -> bool:
    from fedshift.deployment.agreement import SITE

    return (folder / SITE).is_file()


def _model_in(folder: Path) -> Path | Trained:
    from fedshift.deployment.site_data import site_model

    return site_model(folder) if _of_a_site(folder) else folder


def named_client(run: Run, client: str | None) -> int | str | None:
    """The client that a name or number refers to."""
    names = run.data_facts.get("clients", {})
    numbered = client is not None and client not in names.values() and client.isdecimal()
    return int(client) if client is not None and numbered else client


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=folder_names)],
    client: Annotated[
        str | None,
        typer.Option(
            "--client",
            help="The name or number of the client whose personalised model is exported; by default the global model.",
        ),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx, torch (torch.export) or safetensors (weights, and the model's code); or several: onnx,torch.",
            autocompletion=complete(lambda: ["onnx", "torch", "safetensors"]),
        ),
    ] = "onnx",
    round_: RoundOption = "last",
    to: Annotated[
        Path | None, typer.Option("--to", help="The new folder; by default export in the run's folder.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Export a model for people without fedshift, with a model card; a file whose predictions differ is refused."""
    from typing import Any, cast

    from fedshift.runs.run import Run
    from fedshift.study import api
    from fedshift.written import printable

    opened = Run.open(run, trust)
    with interruptible(". Nothing was written."):
        typer.echo("Writing and executing the model...", err=True)
        done = api.export(
            opened,
            client=named_client(opened, client),
            format=cast("Any", listed(format_)),
            to=to,
            round=cast("Any", round_),
        )
    for name, difference in done.differences.items():
        typer.echo(f"{name}: differs from the run's model by {difference:.1e} at most")
    checked = (
        f"{done.made} generated samples and {done.real} of the data" if done.real else f"{done.made} generated samples"
    )
    typer.echo(f"Checked on {checked}." + (f" Note: none of the data ({done.note})." if done.note else ""))
    typer.echo(f"Written: {printable(str(done.path))}")


def track(
    path: RunsArgument,
    to: Annotated[
        str,
        typer.Option("--to", help="Tracker, or several: tensorboard,prometheus.", autocompletion=names_of("TRACKERS")),
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the trackers: folder=logs; `fedshift show NAME`.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Continue until all runs have ended; wait for the first run.")
    ] = False,
    plugin: PluginOption = None,
) -> None:
    """Copy the evaluations of runs to TensorBoard, MLflow, W&B (offline) or Prometheus, without affecting the runs."""
    from fedshift.reporting.trackers.track import track
    from fedshift.written import parse_assignments

    load_plugins(plugin)
    settings = {key.removeprefix("tracker."): value for key, value in parse_assignments(set_ or []).items()}
    with interruptible(". Logged values are kept, and the same command resumes; the runs continue."):
        logged = track(path, listed(to), wait=wait, **settings)
    runs = "1 run" if len(logged) == 1 else f"{len(logged)} runs"
    typer.echo(f"{runs}, {sum(logged.values())} new evaluations: {to}")
