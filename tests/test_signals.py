"""Signals: windows of recordings, by hand and by property, what is refused, a network for them, and an example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import fedshift
from conftest import Make, simulate
from fedshift.clients.domains import DomainData
from fedshift.core.model import Model, ModelBuilder
from fedshift.datasets import watch
from fedshift.datasets.signals import Signals
from fedshift.datasets.watch import Watch
from fedshift.datasets.windows import standardised
from fedshift.errors import FedshiftError
from fedshift.models import MODELS
from fedshift.models.cct import CCT7
from fedshift.models.small import CNN, LSTM, CNN1d, DigitsCNN, ResNet10
from fedshift.runs.events import Progress
from fedshift.streams import Streams
from refusal import refuses
from test_federation_check import site

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[1]
NAMES = {"recording": ("walk",), "domain": "clinic"}

__all__ = ["site"]  # the fixture of a site's folder


def steps(walk: str, clinic: str, label: str, a: list[Any], **more: list[Any]) -> pd.DataFrame:
    """Rows of a recording of the channels a and b = 10 a."""
    b = [None if value is None else 10 * value for value in a]
    return pd.DataFrame({"walk": walk, "clinic": clinic, "label": label, "a": a, "b": b, **more})


def save(file: Path, *recordings: pd.DataFrame, **settings: Any) -> Signals:
    table = pd.concat(recordings, ignore_index=True)
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file, index=False)
    return Signals(path=str(file), **{"window": 2, **NAMES, **settings})


def load(dataset: Signals) -> DomainData:
    return dataset.load(Streams(0))


def refusal(dataset: Signals) -> str:
    with pytest.raises(FedshiftError) as caught:
        load(dataset)
    return str(caught.value)


TWO = (steps("w2", "rome", "run", [1, 2, 3, 4, 5]), steps("w1", "oslo", "rest", [6, 7, 8]))

# Windows -----------------------------------------------------------------------------------------


def test_windows_are_what_they_are_by_hand(tmp_path: Path):
    """Recordings by name: w1 has the steps 6-7 (8 is left over), w2 has 1-2 and 3-4 (5 is): 2 of 8 steps in none."""
    data = load(save(tmp_path / "x.csv", *TWO))
    assert (data.x.dtype, data.x.tolist()) == (
        torch.float32,
        [[[6, 7], [60, 70]], [[1, 2], [10, 20]], [[3, 4], [30, 40]]],
    )
    assert (data.domains, data.domain.tolist()) == (("oslo", "rome"), [0, 1, 1])
    assert (data.classes, data.y.tolist()) == (("rest", "run"), [0, 1, 1])
    assert data.group.tolist() == [0, 1, 1]
    assert data.notes == ("2 of 8 steps lie in no window.",)


def test_windows_overlap_by_the_stride(tmp_path: Path):
    data = load(save(tmp_path / "x.csv", TWO[0], stride=1))
    assert data.x[:, 0].tolist() == [[1, 2], [2, 3], [3, 4], [4, 5]]
    assert data.notes == ()
    sparse = load(save(tmp_path / "x.csv", TWO[0], stride=3))
    assert sparse.x[:, 0].tolist() == [[1, 2], [4, 5]]
    assert sparse.notes == ("1 of 5 steps lie in no window.",)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    window=st.integers(1, 12),
    stride=st.integers(0, 15),
)
@example(lengths=[1], window=1, stride=0)
def test_every_window_is_a_piece_of_one_recording(lengths: list[int], window: int, stride: int):
    """The values count on through all recordings, so a piece of one is told from any other.

    Windows begin at 0, stride, 2 stride, ... as long as they end in their recording.
    """
    from collections import Counter

    from fedshift.datasets.windows import Recording

    dataset = Watch(window=window, stride=stride, short="drop")
    starts = np.cumsum([0, *lengths[:-1]])
    recordings = [
        Recording("it", np.arange(start, start + length, dtype=np.float64)[:, None], np.zeros(length, np.int64))
        for start, length in zip(starts, lengths, strict=True)
    ]
    windows = dataset.cut(recordings, Counter())
    by = stride or window
    expected = [
        (place, start + step)
        for place, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=True))
        for step in range(0, length - window + 1, by)
    ]
    assert windows.recording.tolist() == [place for place, _ in expected]
    assert windows.x[:, 0].tolist() == [list(range(start, start + window)) for _, start in expected]


def test_csv_parquet_and_a_folder_are_the_same_bits(tmp_path: Path):
    draw = np.random.default_rng(0)
    recordings = [
        steps(f"w{number}", clinic, label, draw.normal(size=7).tolist())
        for number, (clinic, label) in enumerate([("oslo", "run"), ("oslo", "rest"), ("rome", "rest"), ("rome", "run")])
    ]
    csv, parquet = (load(save(tmp_path / f"x{suffix}", *recordings)) for suffix in (".csv", ".parquet"))
    (tmp_path / "folder").mkdir()
    for number, clinic in enumerate(("oslo", "rome")):
        own = [each.drop(columns="clinic") for each in recordings[2 * number : 2 * number + 2]]
        save(tmp_path / "folder" / f"{clinic}.csv", *own)
    folder = load(Signals(path=str(tmp_path / "folder"), window=2, recording="walk"))
    assert csv.domains == folder.domains == ("oslo", "rome")
    for other in (parquet, folder):
        assert csv.classes == other.classes
        assert all(torch.equal(getattr(csv, name), getattr(other, name)) for name in ("x", "y", "domain", "group"))


CHANGING = [1, 1, 1, 2, 2, 1, 2, 2]  # windows of 4: 1 1 1 2 and 2 1 2 2


def test_a_window_in_which_the_label_changes(tmp_path: Path):
    recording = steps("w", "oslo", "-", list(range(8))).assign(label=CHANGING)
    calm = steps("v", "rome", "-", list(range(4))).assign(label=1)
    dropped = load(save(tmp_path / "x.csv", recording, calm, window=4))
    assert (dropped.domain.tolist(), dropped.domains, dropped.classes) == ([1], ("oslo", "rome"), ("1", "2"))
    assert dropped.notes == (
        "2 windows in which the label changes are left out.",
        "8 of 12 steps lie in no window.",
        "No window is left of the sites oslo.",
    )
    kept = load(save(tmp_path / "x.csv", recording, calm, window=4, mixed="majority"))
    assert [kept.classes[y] for y in kept.y.tolist()] == ["1", "1", "2"]  # v, then w's two
    assert kept.notes == ("2 windows in which the label changes have the label of most of their steps.",)
    message = refusal(save(tmp_path / "x.csv", recording, window=4))
    assert "No window of data.window = 4 steps is left" in message
    assert "in 2 windows the label changes (data.mixed = 'drop')" in message


def test_a_recording_that_is_shorter_than_a_window(tmp_path: Path):
    dataset = save(tmp_path / "x.csv", *TWO, window=4)
    with refuses("walk 'w1'", f"'{tmp_path / 'x.csv'}'", "3 steps", "data.window = 4", "--set data.short=drop"):
        load(dataset)
    data = load(save(tmp_path / "x.csv", *TWO, window=4, short="drop"))
    assert data.x[:, 0].tolist() == [[1, 2, 3, 4]]
    assert data.notes == (
        "1 recordings are shorter than a window of 4 steps and are left out.",
        "4 of 8 steps lie in no window.",
        "No window is left of the sites oslo.",
    )


# Standardising -----------------------------------------------------------------------------------


def test_standardising_by_window_and_by_recording(tmp_path: Path):
    """Of 1 and 3 the mean is 2 and the deviation 1, so -1 and 1. The channel c never changes: zeros.

    Of 1, 3, 5, 7 the mean is 4 and the deviation sqrt((9 + 1 + 1 + 9) / 4) = sqrt(5), so the first is -3 / sqrt(5).
    """
    recording = steps("w", "oslo", "run", [1, 3, 5, 7], c=[0.1] * 4)
    by_window = load(save(tmp_path / "x.csv", recording, standardise="window")).x
    assert by_window.tolist() == [[[-1, 1], [-1, 1], [0, 0]]] * 2
    by_recording = load(save(tmp_path / "x.csv", recording, standardise="recording")).x
    expected = torch.tensor([[-3.0, -1.0], [1.0, 3.0]]) / 5**0.5
    torch.testing.assert_close(by_recording[:, 0], expected)
    assert torch.equal(by_recording[:, 2], torch.zeros(2, 2))


@pytest.mark.parametrize("standardise", ["none", "window", "recording"])
def test_no_recording_sees_another(tmp_path: Path, standardise: str):
    """A recording of a million times as large changes no bit of the others."""
    alone = load(save(tmp_path / "x.csv", *TWO, standardise=standardise)).x
    poison = steps("z", "rome", "run", [1e6, -1e7, 3e6])
    beside = load(save(tmp_path / "y.csv", *TWO, poison, standardise=standardise)).x
    assert torch.equal(beside[: len(alone)], alone)


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 6)), min_size=2, max_size=20))
@example([0.1, 0.1, 0.1])
@example([1e6, 1e6 + 1e-9])
@example([0, 5e-324])
def test_standardised_values_have_mean_0_and_deviation_1_or_are_zeros(values: list[float]):
    """Changes whose squares are 0 in float64 are none."""
    array = np.array(values)
    result = standardised(array, axis=0)
    if array.max() - array.min() < 1e-200:
        assert np.abs(result).max() < 1e-200
    else:
        assert abs(result.mean()) < 1e-9
        assert result.std() == pytest.approx(1)


# Missing numbers, and time -----------------------------------------------------------------------


def test_a_missing_number_is_an_error_or_is_interpolated(tmp_path: Path):
    """By steps: between 1 and 4 come 2 and 3. By times 0, 1, 2, 4 of 1, ?, ?, 5: 2 and 3. At the ends: the nearest."""
    gap = steps("w", "oslo", "run", [1, None, None, 4], t=[0, 1, 2, 4])
    ends = steps("v", "oslo", "rest", [None, 5, 7, None], t=[0, 1, 2, 4])
    for suffix in (".csv", ".parquet"):
        file = tmp_path / f"x{suffix}"
        message = refusal(save(file, gap, time="t"))
        assert f"The column 'a' of '{file}' holds nothing in row 1; fill it in" in message
        assert "--set data.impute=interpolate" in message
        data = load(save(file, gap, ends, columns=["a"], impute="interpolate"))
        assert data.x.flatten().tolist() == [5, 5, 7, 7, 1, 2, 3, 4]
        assert data.notes == ("4 missing numbers were interpolated.",)
    uneven = gap.assign(a=[1, None, None, 5])
    data = load(save(tmp_path / "x.csv", uneven, columns=["a"], time="t", impute="interpolate"))
    assert data.x.flatten().tolist() == [1, 2, 3, 5]


def test_time_rises_in_each_recording(tmp_path: Path):
    good = [steps("w", "oslo", "run", [1, 2], t=[5, 6]), steps("v", "oslo", "run", [1, 2], t=[1, 3])]
    assert len(load(save(tmp_path / "x.csv", *good, time="t")).x) == 2
    bad = steps("u", "oslo", "run", [1, 2, 3], t=[1, 2.5, 2.5])
    message = refusal(save(tmp_path / "x.csv", *good, bad, time="t"))
    assert f"The column 't' of '{tmp_path / 'x.csv'}' holds 2.5 in row 6, after 2.5 in row 5" in message


def test_nanoseconds_since_1970_rise(tmp_path: Path):
    """Float64 would take the two for the same."""
    moments = [1_700_000_000_000_000_000, 1_700_000_000_000_000_001]
    assert float(moments[0]) == float(moments[1])
    assert len(load(save(tmp_path / "x.csv", steps("w", "oslo", "run", [1, 2], t=moments), time="t")).x) == 1


def test_times_may_be_written_as_dates_and_gaps_are_said(tmp_path: Path):
    stamps = [f"2024-01-31T12:00:0{second}.5" for second in (0, 1, 2, 7)]
    recording = steps("w", "oslo", "run", [1, None, None, 8], t=stamps)
    data = load(save(tmp_path / "x.csv", recording, columns=["a"], time="t", impute="interpolate"))
    assert data.x.flatten().tolist() == [1, 2, 3, 8]
    assert data.notes[0].startswith("2 missing")
    assert data.notes[1].startswith("1 steps of the column 't' are more than 1.5 times as long")
    table = recording.assign(t=pd.to_datetime(stamps), a=[1, 2, 3, 8])
    assert torch.equal(load(save(tmp_path / "x.parquet", table, columns=["a"], time="t")).x, data.x)
    lasting = recording.assign(t=pd.to_timedelta([0, 1, 2, 7], unit="s"))
    assert torch.equal(
        load(save(tmp_path / "x.parquet", lasting, columns=["a"], time="t", impute="interpolate")).x, data.x
    )
    message = refusal(save(tmp_path / "x.csv", recording.assign(a=1, b=1, t=stamps[::-1]), time="t"))
    assert "holds 2024-01-31T12:00:02.5 in row 1, after 2024-01-31T12:00:07.5 in row 0" in message
    message = refusal(save(tmp_path / "x.csv", recording.assign(a=1, b=1, t=["1.5.2024", *stamps[1:]]), time="t"))
    assert "holds '1.5.2024' in row 0; give numbers, or dates and times as ISO 8601" in message


# Recordings, sites and groups --------------------------------------------------------------------


def test_a_recording_is_of_one_site(tmp_path: Path):
    """Where recordings are counted afresh at each site, two columns name them."""
    rows = [steps("1", "oslo", "run", [1, 2]), steps("1", "rome", "rest", [3, 4])]
    message = refusal(save(tmp_path / "x.csv", *rows))
    assert "has 'oslo' in row 0 of the column 'clinic' and 'rome' in row 2" in message
    data = load(save(tmp_path / "x.csv", *rows, recording=["clinic", "walk"]))
    assert (data.x[:, 0].tolist(), data.domains, data.group.tolist()) == ([[1, 2], [3, 4]], ("oslo", "rome"), [0, 1])


def test_a_group_holds_recordings_together(tmp_path: Path):
    rows = [steps(walk, "oslo", "run", [1, 2], patient=who) for walk, who in (("1", "p"), ("2", "q"), ("3", "p"))]
    assert load(save(tmp_path / "x.csv", *rows, columns=["a"])).group.tolist() == [0, 1, 2]
    assert load(save(tmp_path / "x.csv", *rows, group="patient")).group.tolist() == [0, 1, 0]
    mixed = steps("4", "oslo", "run", [1, 2], patient=["p", "q"])
    message = refusal(save(tmp_path / "x.csv", *rows, mixed, group="patient"))
    assert "has 'p' in row 6 of the column 'patient' and 'q' in row 7; a recording has one" in message


@pytest.mark.parametrize("protocol", ["in-domain", "all-clients", "leave-one-domain-out"])
def test_a_split_keeps_recordings_whole(tmp_path: Path, make: Make, protocol: str):
    draw = np.random.default_rng(0)
    rows = [
        steps(
            f"w{number}", ("oslo", "rome")[number % 2], ("run", "rest")[number // 2 % 2], draw.normal(size=8).tolist()
        )
        for number in range(24)
    ]
    save(tmp_path / "x.csv", *rows)
    held_out = {"hold_out": "rome"} if protocol.startswith("leave") else {}
    data = {"name": "signals", "path": str(tmp_path / "x.csv"), "window": 4, "stride": 1, **as_lists(NAMES)}
    simulation = simulate(make({"data": data, "model": {"name": "cnn1d"}, "protocol": {"name": protocol, **held_out}}))
    assert simulation.coordinator.position == 2
    federation = simulation.federated
    sides = [client.train for client in federation.clients] + [each.samples for each in federation.environments]
    of_recording = {row.tobytes(): number for number, row in enumerate(load(Signals(**without_name(data))).x.numpy())}
    group = load(Signals(**without_name(data))).group
    held = [{int(group[of_recording[row.tobytes()]]) for row in side.x.numpy()} for side in sides]
    assert sum(map(len, held)) == len(set().union(*held)) == 24
    assert sum(len(side) for side in sides) == 24 * 5


def as_lists(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def without_name(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "name"}


# What is refused ---------------------------------------------------------------------------------


def test_what_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """25,000 - 200 + 1 windows of 200 steps in 2 channels of 4 bytes."""
    dataset = save(tmp_path / "x.csv", steps("w", "oslo", "run", list(range(25_000))), stride=1, window=200)
    from fedshift import memory

    monkeypatch.setattr(memory, "available", lambda: 10_000_000)
    message = refusal(dataset)
    assert "24801 windows of 200 steps in 2 channels, takes 39.7 MB, but only 10.0 MB of memory is free" in message


# The network -------------------------------------------------------------------------------------


def build(model: Model, shape: tuple[int, ...]) -> nn.Module:
    return ModelBuilder(model, shape, 2, Streams(0), clients=1).encoder()


def test_the_network_is_what_it_says():
    """Kernels of 5 on 6, 32 and 64 channels, and a linear layer; z is the mean over time of what the last one gives."""
    encoder = build(CNN1d(dim=7), (6, 50))
    shapes = [tuple(parameter.shape) for parameter in encoder.parameters()]
    assert shapes == [(32, 6, 5), (32,), (64, 32, 5), (64,), (64, 64, 5), (64,), (7, 64), (7,)]
    x = torch.randn(3, 6, 50, generator=Streams(0).generator("x"))
    features = encoder[:-3](x)
    assert features.shape == (3, 64, 13)  # 50, 25, 13
    torch.testing.assert_close(encoder(x), encoder[-1](features.mean(dim=2)))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_it_reads_signals_of_any_length_and_stacks(length: int, batch_norm: bool):
    """Gradients of three networks at once, by vmap, are those of each alone; one built for 9 steps reads others."""
    encoders = [
        ModelBuilder(
            CNN1d(channels=(3, 4), kernel=4, batch_norm=batch_norm, dim=2), (2, 9), 2, Streams(seed), 1
        ).encoder()
        for seed in range(3)
    ]
    x = torch.randn(3, 5, 2, length, generator=Streams(0).generator("x"))
    stacked, _ = torch.func.stack_module_state(encoders)
    buffers = torch.func.stack_module_state(encoders)[1]

    def loss(parameters: Any, buffers: Any, inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(encoders[0], (parameters, buffers), (inputs,)).square().mean()

    for encoder in encoders:
        encoder.eval()
    gradients = torch.func.vmap(torch.func.grad(loss))(stacked, buffers, x)
    for index, encoder in enumerate(encoders):
        encoder(x[index]).square().mean().backward()
        for name, parameter in encoder.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "shape", "tries"),
    [
        *((model, (6, 50), "'cnn1d'") for model in (CNN(), DigitsCNN(), CCT7(), ResNet10(), LSTM())),
        *((model, (3, 8, 8), "'cnn'") for model in (CNN1d(), LSTM())),
        *((model, (20,), "'mlp' (vectors) or 'lstm' (tokens)") for model in (CNN(), CNN1d(), ResNet10())),
        (CNN1d(), (2, 3, 4, 5), "'mlp'"),
        (MODELS.build({"name": "resnet18"}, "model"), (6, 50), "'cnn1d'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Model) else str(value),
)
def test_a_network_that_does_not_fit_names_one_that_does(model: Model, shape: tuple[int, ...], tries: str):
    with pytest.raises(FedshiftError) as caught:
        build(model, shape)
    message = str(caught.value)
    assert f"The model {type(model).__name__} takes " in message
    assert f"a sample has the shape {list(shape)}; try {tries}" in message


# A run, a site, the example ----------------------------------------------------------------------


def test_the_watch():
    """The package's numbers: 140 recordings, 244,102 steps; a recording of L steps has (L - 200) // 100 + 1 windows."""
    held = watch._read(watch._file())
    lengths = [len(recording) for recording in held["X"]]
    assert (len(lengths), sum(lengths)) == (140, 244_102)
    counts = [(length - 200) // 100 + 1 for length in lengths]
    arms, persons = Watch().load(Streams(0)), Watch(domain="subject").load(Streams(0))
    assert tuple(arms.x.shape) == (sum(counts), 6, 200)
    assert torch.equal(arms.x, persons.x)
    assert arms.x[0].tolist() == torch.tensor(held["X"][0][:200].T, dtype=torch.float32).tolist()
    assert arms.classes == ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
    starts = np.repeat(np.arange(140), counts)
    assert arms.y.tolist() == held["y"][starts].tolist()
    assert (arms.domains, arms.domain.tolist()) == (("left", "right"), held["side"].astype(int)[starts].tolist())
    assert arms.group.tolist() == (persons.domain + 1).tolist() == held["subject"][starts].tolist()
    assert persons.group.tolist() == starts.tolist()
    assert (len(persons.domains), persons.domains[9]) == (10, "10")


def test_only_the_known_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A pickle that would write a file when it is loaded is not loaded."""
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "written",)

    file = tmp_path / "watch_dataset.npy"
    file.write_bytes(pickle.dumps(Evil()))
    monkeypatch.setattr(watch, "_file", lambda: file)
    with refuses("watch_dataset.npy", "seglearn==1.2.5"):
        Watch().load(Streams(0))
    assert not (tmp_path / "written").exists()
    file.unlink()
    with refuses("watch_dataset.npy", "cannot be read", "seglearn"):
        Watch().load(Streams(0))


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- signals -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    original = fedshift.run

    def run(settings: dict[str, Any], **options: Any) -> fedshift.Run:
        here = {**settings, "run.engine": "sequential", "run.threads": 1}
        return original(**options, settings=here, progress=Progress())

    monkeypatch.setattr(fedshift, "run", run)
    names: dict[str, Any] = {}
    exec(compile(code, "signals.md", "exec"), names)  # the point of the test
    assert names["run"].finished
    assert set(names["run"].data_facts["domains"].values()) == {"Berlin", "Oslo"}
    assert names["run"].model()(torch.zeros(2, 2, 50)).shape == (2, 2)
