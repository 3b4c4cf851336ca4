"""Signals: windows of recordings, by hand and by property, what is refused, a network for them, and an example."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedshift.clients.domains import DomainData
from fedshift.clients.partitions import split
from fedshift.core.model import Model, ModelBuilder
from fedshift.datasets import windows
from fedshift.datasets.signals import Signals
from fedshift.datasets.windows import Watch, standardised
from fedshift.models import MODELS
from fedshift.models.cct import CCT7
from fedshift.models.small import CNN, LSTM, CNN1d, DigitsCNN, ResNet10
from fedshift.streams import Streams
from refusal import refusal, refuses

NAMES = {"recording": ("walk",), "domain": "clinic"}


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


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 15))
@example([1], 1, 0)
def test_every_window_is_a_piece_of_one_recording(lengths: list[int], window: int, stride: int):
    """The values count on through all recordings, so a piece of one receives from any other.

    Windows begin at 0, stride, 2 stride, ... as long as they end in their recording.
    """
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    recordings = [
        windows.Recording("it", np.arange(start, start + length, dtype=np.float64)[:, None], np.zeros(length, np.int64))
        for start, length in zip(starts, lengths, strict=True)
    ]
    made = Watch(window=window, stride=stride, short="drop").cut(recordings, Counter())
    expected = [
        (place, start + step)
        for place, (start, length) in enumerate(zip(starts, lengths, strict=True))
        for step in range(0, length - window + 1, stride or window)
    ]
    assert made.recording.tolist() == [place for place, _ in expected]
    assert made.x[:, 0].tolist() == [list(range(start, start + window)) for _, start in expected]


def test_csv_parquet_and_a_folder_are_the_same_bits(tmp_path: Path):
    csv, parquet = (load(save(tmp_path / f"x{suffix}", *TWO)) for suffix in (".csv", ".parquet"))
    (tmp_path / "folder").mkdir()
    for each, clinic in zip(TWO, ("rome", "oslo"), strict=True):
        save(tmp_path / "folder" / f"{clinic}.csv", each.drop(columns="clinic"))
    folder = load(Signals(path=str(tmp_path / "folder"), window=2, recording="walk"))
    for other in (parquet, folder):
        assert (csv.domains, csv.classes) == (other.domains, other.classes)
        assert all(torch.equal(getattr(csv, name), getattr(other, name)) for name in ("x", "y", "domain", "group"))


def test_a_window_in_which_the_label_changes(tmp_path: Path):
    """Windows of 4: 1 1 1 2 and 2 1 2 2."""
    recording = steps("w", "oslo", "-", list(range(8))).assign(label=[1, 1, 1, 2, 2, 1, 2, 2])
    calm = steps("v", "rome", "-", list(range(4))).assign(label=1)
    dropped = load(save(tmp_path / "x.csv", recording, calm, window=4))
    assert (dropped.domain.tolist(), dropped.domains, dropped.classes) == ([1], ("oslo", "rome"), ("1", "2"))
    assert dropped.notes[0] == "2 windows in which the label changes are excluded."
    kept = load(save(tmp_path / "x.csv", recording, calm, window=4, mixed="majority"))
    assert [kept.classes[y] for y in kept.y.tolist()] == ["1", "1", "2"]  # v, then w's two
    assert "No window of data.window = 4 steps is left" in refusal(save(tmp_path / "x.csv", recording, window=4))


def test_a_recording_that_is_shorter_than_a_window(tmp_path: Path):
    dataset = save(tmp_path / "x.csv", *TWO, window=4)
    with refuses("walk 'w1'", f"'{tmp_path / 'x.csv'}'", "3 steps", "data.window = 4", "--set data.short=drop"):
        load(dataset)
    data = load(save(tmp_path / "x.csv", *TWO, window=4, short="drop"))
    assert data.x[:, 0].tolist() == [[1, 2, 3, 4]]
    assert data.notes[0] == "1 recordings are shorter than a window of 4 steps and are excluded."


# Standardising -----------------------------------------------------------------------------------


def test_standardising_by_window_and_by_recording(tmp_path: Path):
    """Of 1 and 3 the mean is 2 and the deviation 1, so -1 and 1. The channel c never changes: zeros.

    Of 1, 3, 5, 7 the mean is 4 and the deviation sqrt((9 + 1 + 1 + 9) / 4) = sqrt(5), so the first is -3 / sqrt(5).
    """
    recording = steps("w", "oslo", "run", [1, 3, 5, 7], c=[0.1] * 4)
    by_window = load(save(tmp_path / "x.csv", recording, standardise="window")).x
    assert by_window.tolist() == [[[-1, 1], [-1, 1], [0, 0]]] * 2
    other = steps("z", "oslo", "run", [1e6, -1e7, 3e6, 0], c=[0.1] * 4)  # which changes nothing
    by_recording = load(save(tmp_path / "x.csv", recording, other, standardise="recording")).x[:2]
    expected = torch.tensor([[-3.0, -1.0], [1.0, 3.0]]) / 5**0.5
    torch.testing.assert_close(by_recording[:, 0], expected)
    assert torch.equal(by_recording[:, 2], torch.zeros(2, 2))


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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_missing_number_is_an_error_or_is_interpolated(tmp_path: Path, suffix: str):
    """By steps: between 1 and 4 come 2 and 3. By times 0, 1, 2, 4 of 1, ?, ?, 5: 2 and 3. At the ends: the nearest."""
    gap = steps("w", "oslo", "run", [1, None, None, 4], t=[0, 1, 2, 4])
    ends = steps("v", "oslo", "rest", [None, 5, 7, None], t=[0, 1, 2, 4])
    file = tmp_path / f"x{suffix}"
    with refuses(f"'a' of '{file}'", "empty in row 1", "--set data.impute=interpolate"):
        load(save(file, gap, time="t"))
    data = load(save(file, gap, ends, columns=["a"], impute="interpolate"))
    assert data.x.flatten().tolist() == [5, 5, 7, 7, 1, 2, 3, 4]
    assert data.notes == ("4 missing numbers were interpolated.",)
    uneven = gap.assign(a=[1, None, None, 5])
    data = load(save(file, uneven, columns=["a"], time="t", impute="interpolate"))
    assert data.x.flatten().tolist() == [1, 2, 3, 5]


def test_times_are_numbers_or_dates_and_rise_in_each_recording(tmp_path: Path):
    stamps = [f"2024-01-31T12:00:0{second}.5" for second in (0, 1, 2, 7)]
    recording = steps("w", "oslo", "run", [1, None, None, 8], t=stamps)
    requested: dict[str, Any] = {"columns": ["a"], "time": "t", "impute": "interpolate"}
    data = load(save(tmp_path / "x.csv", recording, **requested))
    assert data.x.flatten().tolist() == [1, 2, 3, 8]
    assert data.notes[1].startswith("1 steps are more than 1.5 times as long")
    for times in (pd.to_datetime(stamps), pd.to_timedelta([0, 1, 2, 7], unit="s")):
        assert torch.equal(load(save(tmp_path / "x.parquet", recording.assign(t=times), **requested)).x, data.x)
    before = steps("v", "oslo", "run", [1, 2], t=[3, 4])
    for table, words in (
        ([before, steps("u", "oslo", "run", [1, 2, 3], t=[1, 2.5, 2.5])], ("2.5 in row 4", "after 2.5 in row 3")),
        ([recording.assign(t=stamps[::-1])], ("2024-01-31T12:00:02.5 in row 1", "12:00:07.5 in row 0")),
        ([recording.assign(t=["1.5.2024", *stamps[1:]])], ("'1.5.2024' in row 0", "ISO 8601")),
    ):
        with refuses(*words):
            load(save(tmp_path / "x.csv", *table, **requested))


# Recordings, sites and groups --------------------------------------------------------------------


def test_a_recording_is_of_one_site(tmp_path: Path):
    """Where recordings are counted afresh at each site, two columns name them."""
    rows = [steps("1", "oslo", "run", [1, 2]), steps("1", "rome", "rest", [3, 4])]
    message = refusal(save(tmp_path / "x.csv", *rows))
    assert "has 'oslo' in row 0 of the column 'clinic' and 'rome' in row 2" in message
    data = load(save(tmp_path / "x.csv", *rows, recording=["clinic", "walk"]))
    assert (data.x[:, 0].tolist(), data.domains, data.group.tolist()) == ([[1, 2], [3, 4]], ("oslo", "rome"), [0, 1])


def test_a_split_keeps_a_recording_whole(tmp_path: Path):
    data = load(save(tmp_path / "x.csv", *(steps(f"w{n}", "oslo", "run", [n] * 8) for n in range(9)), stride=1))
    (side,) = split(data, (0.5,), Streams(0))
    assert [len(side[data.group == group].unique()) for group in range(9)] == [1] * 9
    assert 0 < int(side.sum()) < len(side) == 9 * 7


def test_a_group_holds_recordings_together(tmp_path: Path):
    rows = [steps(walk, "oslo", "run", [1, 2], patient=who) for walk, who in (("1", "p"), ("2", "q"), ("3", "p"))]
    assert load(save(tmp_path / "x.csv", *rows, columns=["a"])).group.tolist() == [0, 1, 2]
    assert load(save(tmp_path / "x.csv", *rows, group="patient")).group.tolist() == [0, 1, 0]
    mixed = steps("4", "oslo", "run", [1, 2], patient=["p", "q"])
    with refuses("'p' in row 6 of the column 'patient'", "'q' in row 7"):
        load(save(tmp_path / "x.csv", *rows, mixed, group="patient"))


# The network -------------------------------------------------------------------------------------


def test_the_network_is_what_it_says():
    """Kernels of 5 on 6, 32 and 64 channels, and a linear layer; z is the mean over time of what the last one gives."""
    encoder = ModelBuilder(CNN1d(dim=7), (6, 50), 2, Streams(0), clients=1).encoder()
    shapes = [tuple(parameter.shape) for parameter in encoder.parameters()]
    assert shapes == [(32, 6, 5), (32,), (64, 32, 5), (64,), (64, 64, 5), (64,), (7, 64), (7,)]
    x = torch.randn(3, 6, 50, generator=Streams(0).generator("x"))
    features = encoder[:-3](x)
    assert features.shape == (3, 64, 13)  # 50, 25, 13
    torch.testing.assert_close(encoder(x), encoder[-1](features.mean(dim=2)))
    assert encoder(x[:, :, :1]).shape == encoder(x.repeat(1, 1, 4)).shape == (3, 7)


@pytest.mark.parametrize(
    ("model", "shape", "tries"),
    [
        *((model, (6, 50), "'cnn1d'") for model in (CNN(), DigitsCNN(), CCT7(), ResNet10(), LSTM())),
        *((CNN1d(), shape, tries) for shape, tries in (((3, 8, 8), "'cnn'"), ((2, 3, 4, 5), "'mlp'"))),
        (CNN1d(), (20,), "'mlp' (vectors) or 'lstm' (tokens)"),
        (MODELS.build({"name": "resnet18"}, "model"), (6, 50), "'cnn1d'"),
    ],
)
def test_a_network_that_does_not_fit_names_one_that_does(model: Model, shape: tuple[int, ...], tries: str):
    with refuses(f"The model {type(model).__name__} takes ", f"{list(shape)}; try {tries}"):
        ModelBuilder(model, shape, 2, Streams(0), clients=1).encoder()


# The example ----------------------------------------------------------------------


def test_the_watch():
    """The package's numbers: 140 recordings, 244,102 steps; a recording of L steps has (L - 200) // 100 + 1 windows."""
    held = windows._read(windows._file())
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
    monkeypatch.setattr(windows, "_file", lambda: file)
    with refuses("watch_dataset.npy", "seglearn==1.2.5"):
        Watch().load(Streams(0))
    assert not (tmp_path / "written").exists()
