"""fedshift predict, as a user calls it: predictions of a trained model for new files."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import fedshift
from conftest import TINY
from fedshift.cli.app import app
from fedshift.runs import runner
from fedshift.runs.events import Progress
from fedshift.runs.run import Run
from fedshift.streams import Streams
from fedshift.study.grid import expand, override
from refusal import refuses

RNG = np.random.default_rng(0)
DOMAINS, CLASSES = ("north", "south", "west"), ("cat", "dog, old", "owl")
SHORT = {"train.rounds": 3, "train.lr": 0.3, "protocol": {"name": "in-domain"}}


def image(path: Path, label: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(RNG.normal(60 + 60 * label, 20, (9, 11, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def carried_out(tmp_path: Path, data: dict[str, Any], **changes: Any) -> Run:
    document = override({**TINY, "data": data}, {**SHORT, "run.out": str(tmp_path / "runs"), **changes})
    (experiment,) = expand(document)
    return runner.start(experiment, Progress())


def frame(rows: int) -> pd.DataFrame:
    labels = RNG.integers(0, 3, rows)
    numbers = RNG.normal(labels[:, None], 1, (rows, 4)).round(3)
    table = pd.DataFrame(numbers, columns=["age", "weight", "pulse", "bilirubin"])
    return table.assign(label=np.array(CLASSES)[labels], hospital=np.array(DOMAINS)[RNG.integers(0, 3, rows)])


@pytest.fixture
def photos(tmp_path: Path) -> Run:
    for domain in DOMAINS:
        for label, name in enumerate(CLASSES):
            for number in range(8):
                image(tmp_path / "photos" / domain / name / f"{number}.png", label)
    return carried_out(tmp_path, {"name": "folder", "path": str(tmp_path / "photos"), "size": 8})


@pytest.fixture
def table(tmp_path: Path) -> Run:
    frame(120).to_csv(tmp_path / "table.csv", index=False)
    return carried_out(tmp_path, {"name": "table", "path": str(tmp_path / "table.csv"), "domain": "hospital"})


def predict(run: Run, *arguments: Any) -> Result:
    return CliRunner().invoke(app, ["predict", str(run.path), *map(str, arguments)])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def check(run: Run, rows: list[dict[str, str]], x: torch.Tensor, *which: Any, rtol: float = 1e-8) -> None:
    """Probabilities are those of the model as a module, to the digits that are written; the class is the likeliest."""
    with torch.no_grad():
        expected = run.model(*which)(x).double().softmax(dim=1)
    found = [[float(row[f"p_{name}"]) for name in CLASSES] for row in rows]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=rtol, atol=1e-12)
    assert [row["predicted"] for row in rows] == [CLASSES[number] for number in expected.argmax(dim=1)]


# Images -------------------------------------------------------------------------------------------


def test_images_and_folders_of_them(photos: Run, tmp_path: Path):
    new = tmp_path / "new"
    for number in range(3):
        image(new / "deeper" / f"{number}.jpg", number)
    image(tmp_path / "alone.png", 1)
    (new / "notes.txt").write_text("no image")
    done = predict(photos, new, tmp_path / "alone.png", tmp_path / "alone.png", "--out", tmp_path / "sub" / "p.csv")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "sub" / "p.csv").read_text()
    assert text.splitlines()[0] == 'file,row,predicted,p_cat,"p_dog, old",p_owl'
    rows = rows_of(text)
    files = [*(new / "deeper" / f"{number}.jpg" for number in range(3)), tmp_path / "alone.png"]
    assert [(row["file"], row["row"]) for row in rows] == [(str(file), "") for file in files]
    data = photos.experiment.data
    check(photos, rows, torch.cat([data.samples(file).x for file in files]))


def test_an_image_is_read_as_in_training(photos: Run):
    """The pixels that the data set has of a file are those that are predicted for."""
    data = photos.experiment.data
    whole = data.load(Streams(0))
    file = Path(data.path) / DOMAINS[0] / CLASSES[0] / "0.png"
    assert torch.equal(data.samples(file).x[0], whole.x[0])
    assert data.samples(file).x.dtype == torch.uint8


def test_what_cannot_be_read_is_named_and_the_rest_is_there(photos: Run, tmp_path: Path):
    image(tmp_path / "good.png", 0)
    (tmp_path / "bad.png").write_bytes(b"no image")
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    bad = [tmp_path / "bad.png", tmp_path / "cut.jpg", tmp_path / "gone.png", tmp_path / "table.csv"]
    (tmp_path / "table.csv").write_text("a\n1\n")
    done = predict(photos, *bad, tmp_path / "good.png", "--out", tmp_path / "p.csv")
    assert [row["file"] for row in rows_of((tmp_path / "p.csv").read_text())] == [str(tmp_path / "good.png")]
    message = str(done.exception)
    assert message.startswith("4 files cannot be predicted for")
    assert all(str(file) in message for file in bad)
    assert "give files that end in .png, .jpg" in message


# Tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_by_the_names_of_its_columns(table: Run, tmp_path: Path, kind: str):
    """In another order, with a label and a column more: those that were trained on are read, in their order."""
    new = frame(7)
    other = new[["label", "pulse", "age", "bilirubin", "weight"]].assign(name="x")
    file = tmp_path / f"new.{kind}"
    other.to_csv(file, index=False) if kind == "csv" else other.to_parquet(file)
    done = predict(table, file, "--out", "-", "--round", "selected")
    assert done.exit_code == 0, done.output
    assert "ignored: label, name" in done.stderr
    x = torch.tensor(new[["age", "weight", "pulse", "bilirubin"]].to_numpy().tolist())
    rows = rows_of(done.stdout)
    assert [row["row"] for row in rows] == [str(number) for number in range(7)]
    check(table, rows, x, None, "selected")


# Arrays, and models of clients --------------------------------------------------------------------


def test_a_sample_has_the_same_prediction_wherever_it_stands(tmp_path: Path):
    """FedSR draws noise for a batch; a sample's does not depend on the others."""
    frame(60).to_csv(tmp_path / "table.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "table.csv"), "domain": "hospital"}
    run = carried_out(tmp_path, data, **{"method": {"name": "fedsr", "test_samples": 2}})
    new = frame(6).drop(columns=["label", "hospital"])
    new.to_csv(tmp_path / "new.csv", index=False)
    new.iloc[::-1].to_csv(tmp_path / "reversed.csv", index=False)
    files = [str(tmp_path / name) for name in ("new.csv", "reversed.csv")]
    found = fedshift.predict(run.path, files)
    assert list(zip(found.files, found.rows, strict=True)) == [(file, row) for file in files for row in range(6)]
    assert torch.equal(found.probabilities[:6], found.probabilities[6:].flip(0))
    assert len(found.frame()) == 12
    torch.testing.assert_close(found.probabilities.sum(dim=1), torch.ones(12, dtype=torch.float64))


def test_arrays_of_another_type_or_shape_are_refused(tmp_path: Path):
    y = np.arange(90) % 3
    x = RNG.normal(y[:, None, None], 1, (90, 2, 5)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=y, domain=np.array(DOMAINS)[y], classes=np.array(CLASSES))
    run = carried_out(tmp_path, {"name": "arrays", "path": str(tmp_path / "a.npz")}, **{"method.name": "fedbn"})
    np.savez(tmp_path / "bytes.npz", x=RNG.integers(0, 255, (4, 1, 2, 5), np.uint8))
    np.savez(tmp_path / "long.npz", x=np.zeros((4, 2, 6)))
    np.savez(tmp_path / "other.npz", y=np.zeros(4))
    np.savez(tmp_path / "nan.npz", x=np.array([[[0.0] * 5] * 2, [[0.0] * 5, [0, 0, np.nan, 0, 0]]]))
    said = "bytes.npz' has samples of type uint8; the model takes float32", "(2, 6); the model takes (2, 5)"
    with refuses(*said, "lacks the array x", "nan at [1, 2] of row 1"):
        names = ["bytes.npz", "long.npz", "other.npz", "nan.npz"]
        fedshift.predict(run.path, [tmp_path / name for name in names], client="south")


def test_a_table_s_run_predicts_without_its_data(table: Run, tmp_path: Path):
    """Which columns it reads is known from the run, and not from the table that is there now."""
    new = tmp_path / "new.csv"
    frame(7).to_csv(new, index=False)
    before, data = fedshift.predict(table.path, [new]), Path(table.experiment.data.path)
    data.write_text("pulse,label,hospital\n1,cat,west\n")
    moved = table.path.rename(tmp_path / "moved")
    assert torch.equal(fedshift.predict(moved, [new]).probabilities, before.probabilities)
    with refuses("data.path", "changed since it started", "Restore"):
        Run.open(moved).resumable_experiment()


def test_what_a_model_does_not_know_of_a_row_is_said(tmp_path: Path):
    rows = frame(60).assign(sex=["f", "m"] * 30)
    rows.loc[::7, "age"] = None
    rows.to_csv(tmp_path / "table.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "table.csv"), "domain": "hospital", "statistics": "pooled"}
    run = carried_out(tmp_path, data)
    new = frame(4).assign(sex=["m", "x, y", None, "d"])
    new.loc[1:2, "pulse"] = None
    new.to_csv(tmp_path / "new.csv", index=False)
    found = fedshift.predict(run.path, [tmp_path / "new.csv"])
    _, filled, unknown = found.notes
    assert filled.endswith("with missing cells (how many), which are filled in: 'pulse' (2), 'sex' (1).")
    assert "'sex' of " in unknown
    assert "in 2 rows, the first in row 1; they count as none of those that it knows: f, m." in unknown


def walks(names: list[str]) -> pd.DataFrame:
    """Recordings of twelve steps, with times of half a second, each other row of another one."""
    steps = [
        {"walk": name, "s": step / 2, "up": RNG.normal(), "label": CLASSES[n % 3], "clinic": DOMAINS[n // 3 % 3]}
        for step in range(12)
        for n, name in enumerate(names)
    ]
    return pd.DataFrame(steps).assign(side=RNG.normal(size=len(steps)))


def test_windows_of_signals_by_recording_and_step(tmp_path: Path):
    """Rows of recordings lie between each other and lack a label; a missing number is filled in, a rest is in none."""
    walks([f"w{number}" for number in range(54)]).to_csv(tmp_path / "walks.csv", index=False)
    data = {"name": "signals", "path": str(tmp_path / "walks.csv"), "domain": "clinic", "recording": ["walk"]}
    more = {"time": "s", "window": 5, "stride": 3, "impute": "interpolate", "standardise": "window"}
    run = carried_out(tmp_path, data | more, **{"model.name": "cnn1d"})
    new = walks(["east", "x,y"]).assign(note="-")[["side", "note", "s", "up", "walk"]]  # in another order
    east = new[new.walk == "east"][["up", "side"]].to_numpy()
    new.loc[new.index[2], "up"] = None  # step 1 of east
    new.to_csv(tmp_path / "new.csv", index=False)
    result = predict(run, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    rows = rows_of((tmp_path / "p.csv").read_text())
    assert [row["row"] for row in rows] == [
        f"walk '{name}', step {start}" for name in ("east", "x,y") for start in (0, 3, 6)
    ]
    east[1, 0] = (east[0, 0] + east[2, 0]) / 2
    pieces = np.stack([east[start : start + 5].T for start in (0, 3, 6)])
    x = (pieces - pieces.mean(axis=2, keepdims=True)) / pieces.std(axis=2, keepdims=True)
    check(run, rows[:3], torch.tensor(x, dtype=torch.float32), rtol=1e-5)
    for note in ("ignored: note", "1 missing numbers were interpolated", "2 of 24 steps lie in no window"):
        assert note in result.stderr


def test_a_data_set_without_files_says_so(tmp_path: Path):
    run = carried_out(tmp_path, {"name": "tiny"})
    with refuses("'tiny'", "run.model()"):
        fedshift.predict(run.path, [tmp_path])
