"""What can be known before a run: its cost, its data, the fastest engine, an index of its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from fedshift.errors import FedshiftError
from fedshift.experiments import NAMED, Experiment
from fedshift.methods import INDEXING
from fedshift.reporting.live import display
from fedshift.runs.events import Progress
from fedshift.study.asked import DEFAULT, Options, Source, experiment, grid
from fedshift.study.execute import forecast
from fedshift.study.study_plan import Forecast, rows_of

if TYPE_CHECKING:
    from fedshift.core.method import Prepared
    from fedshift.engines.calibration import Calibration
    from fedshift.reporting.data_report.report import DataReport


def estimate(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Forecast]:
    """What a comparison would cost; nothing is written, and no more is trained than a few steps that are timed.

    Raises:
        FedshiftError: something in the experiments is wrong, or no row can run.
    """
    return forecast(rows_of(grid(source, **options)), lambda cell: len(cell.experiments))


def inspect_data(
    source: Source | Sequence[Source] = DEFAULT,
    *,
    test: bool = False,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> DataReport:
    """What a data set holds, who would have it and what is odd about it, before anything is trained or written.

    Args:
        source: the experiment; of several runs the data and division of the first are looked at.
        test: whether test samples, those of a held-out domain among them, are judged as well; by default
            nothing of them is looked at but their labels, and whether they are equal to others.
        progress: hears of the progress; by default a live display.
        options: what differs from the source, see :class:`Options`.

    Raises:
        FedshiftError: something in the experiment is wrong, or its data cannot be read or divided.
    """
    from fedshift.reporting.data_report.report import look_at
    from fedshift.runs.simulation import read_federated

    experiments = grid(source, **options)
    asked = experiments[0]
    divisions = {repr((e.seed_of_data, e.data, e.partition, e.protocol)) for e in experiments}
    notes = []
    if len(divisions) > 1:
        held_out = [f"'{asked.held_out}' held out"] if asked.held_out is not None else []
        words = [f"seed {asked.seed_of_data}", *held_out]
        notes.append(f"These runs divide data in {len(divisions)} ways; this is the first: {', '.join(words)}.")
    inputs, refused = asked.data.inputs(), list[FedshiftError]()
    try:
        asked.model.check(inputs)
    except FedshiftError as error:
        refused.append(error)
    with display(progress, 1) as shown:
        data, federation = read_federated(asked)
        try:
            federation = federation.checked()
        except FedshiftError as error:
            refused.append(error)
        return look_at(
            data,
            federation,
            inputs,
            seed=asked.seed_of_data,
            experiment=asked.name,
            dataset=NAMED["data"].name_of(asked.data),
            test=test,
            refused=refused,
            notes=notes,
            tell=shown.inspected,
        )


def bench(
    source: Source = DEFAULT, *, tell: Callable[[str], None] = lambda text: None, **options: Unpack[Options]
) -> Calibration:
    """Measure which engine is fastest for a run on this machine now, as ``run.engine = "auto"`` does before a run.

    Args:
        source: exactly one run, as for :func:`run`.
        tell: hears what is measured.
        options: what differs from the source.

    Raises:
        FedshiftError: it describes several runs, or they cannot be carried out.
    """
    from fedshift.engines.calibration import calibrate
    from fedshift.runs.simulation import Simulation

    asked = experiment(source, **options)
    return calibrate(Simulation(asked).example(), asked.run, tell)


def index(source: Source = DEFAULT, *, progress: Progress | None = None, **options: Unpack[Options]) -> Prepared:
    """What a method makes of the clients of one run before any training, such as a vector of each.

    It is that of :data:`~fedshift.methods.INDEXING` unless another method is given.

    Raises:
        FedshiftError: it describes several runs, the method makes no index, or it cannot be carried out.
    """
    from fedshift.runs.lockstep import prepare

    if not isinstance(source, Experiment) and options.get("method") is None:
        options["method"] = INDEXING
    asked = experiment(source, **options)
    with display(progress, 1) as shown:
        done = prepare(asked, "index", shown)
    assert asked.method.prepares is not None
    return asked.method.prepares.prepared(done.federated, done.coordinator.state, done.coordinator.ledger.declaration())
