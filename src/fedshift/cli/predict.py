"""The command ``fedshift predict``: what a trained model says of new files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli.console import interruptible
from fedshift.cli.options import TrustOption, complete, folder_names

STDOUT = "-"


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=folder_names)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of the kind that the run was trained on (images, .npz, CSV, Parquet), or folders of them."
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", help="The name or number of the client whose model predicts; by default the global."),
    ] = None,
    round_: Annotated[
        str,
        typer.Option(
            "--round",
            help="last, or selected: the round that validation picks.",
            autocompletion=complete(lambda: ["last", "selected"]),
        ),
    ] = "last",
    out: Annotated[str, typer.Option("--out", help="The CSV file; - prints it.")] = "predictions.csv",
    trust: TrustOption = False,
) -> None:
    """Predict for new files: a CSV with the class and the probability of each, for every file or row.

    What can be read is predicted for; files that cannot be read are named at the end, and the exit code is 2.
    """
    from typing import cast

    from fedshift.reporting.live import LiveProgress
    from fedshift.runs.run import Picked, Run
    from fedshift.study import api

    names = Run.open(run, trust).data_facts.get("clients", {})
    numbered = client is not None and client not in names.values() and client.isdecimal()
    whose = int(client) if client is not None and numbered else client
    with interruptible(". Nothing was written."), LiveProgress(0) as progress:
        tell = partial(progress.inspected, "Reading files")
        found = api.predict(run, files, client=whose, round=cast(Picked, round_), trust=trust, tell=tell)
    for note in found.notes:
        typer.echo(f"Note: {note}", err=True)
    if out == STDOUT:
        typer.echo(found.csv(), nl=False)
    else:
        typer.echo(f"Written: {found.write(out)} ({len(found.files)} samples)", err=True)
    found.check()
