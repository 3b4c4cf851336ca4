"""The commands and examples of the guide run, with less data, fewer rounds and one seed; its picture is drawn."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import tomli_w

import fresh
from test_examples import block

ROOT = Path(__file__).parents[1]
SMALL = ["data.images_per_class=4", "train.batch=4", "train.steps=1", "run.engine=sequential"]
FAST = ["train.steps=2", "train.batch=8", "run.engine=sequential"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # as in a wide terminal


def commands(page: str, marker: str = "shell") -> list[str]:
    """The lines of all blocks of a page that follow a marker."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- {marker} -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert blocks
    return "".join(blocks).replace("\\\n", " ").splitlines()


def run(line: str, *settings: str, alone: bool = False) -> str:
    """The output of a command. Commands that train get the settings, one round unless they set it, and one seed."""
    words = shlex.split(line.replace("--seed 0,1,2", "--seed 0"), comments=True)[1:]
    words = [str(next(Path().glob(word))) if "*" in word else word for word in words]
    if words[0] in ("run", "compare", "tune"):
        words += [word for setting in settings for word in ("--set", setting)]
        words += [] if "--rounds" in words else ["--rounds", "1"]
    words += ["--trials", "1", "--parallel", "1"] if words[0] == "tune" else []
    if not alone:
        return fresh.ok(*words)
    result = fresh.command(*words)
    assert result.returncode == 0, (line, result.stderr)
    return str(result.stdout)


def test_quick_start():
    *lines, plugin = commands("quick-start.md")
    assert "target best (oracle)" in run(lines[0], *SMALL)
    assert all(run(line, *SMALL) for line in lines[1:])
    shutil.copy(ROOT / "examples" / "my_prox.py", "my_prox.py")
    assert "my-prox: proximal" in run(plugin, *SMALL, alone=True)


def test_experiments():
    train, report, divide = commands("experiments.md")
    assert run(train, *SMALL)
    assert run(report)
    assert any(Path("figures").glob("*.svg"))
    assert run(divide, "data.images_per_class=10", *SMALL[1:])


def test_the_picture_of_the_main_job():
    """It is drawn from the folder of a comparison, and the committed picture has the same lines."""
    run("fedshift compare", *SMALL)
    draw = runpy.run_path(str(ROOT / "tools" / "curves.py"))["main"]
    draw("runs/rotated-mnist", "picture.svg")
    committed = (ROOT / "docs" / "_static" / "main-job.svg").read_text(encoding="utf-8")
    for text in (Path("picture.svg").read_text(encoding="utf-8"), committed):
        labels = {element.text.split("  ")[-1] for element in ElementTree.fromstring(text).iter() if element.text}
        assert {f"{method}, {name}" for method in ("fedavg", "fedsr") for name in ("held out", "validation")} <= labels


def test_a_check_of_data():
    experiment = {"data": {"name": "rotated-mnist", "images_per_class": 4}, "protocol": {"hold_out": "0"}}
    Path("my-experiment.toml").write_text(tomli_w.dumps(experiment))
    run(*commands("data.md"))
    assert Path("data.html").is_file()


def test_models():
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    np.savez("clinics.npz", x=draw.normal(size=(60, 8)).astype("float32"), y=y, domain=np.repeat(["a", "b"], 30))
    Path("net.py").write_text(block("models.md", "class").split("draw =")[0])
    assert run(*commands("models.md"), "protocol.name=in-domain", *FAST, alone=True)
    names = runpy.run_path(str(_written(block("data.md", "folder").split("data =")[0])))
    assert names["place"].is_dir()
    assert run(*commands("models.md", "pretrained"), "protocol.name=in-domain", "method.name=fedavg", *FAST)


def _written(code: str) -> Path:
    path = Path("code.py")
    path.write_text(code)
    return path


def test_tuning():
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    printed = [run(line, *SMALL) for line in commands("tuning.md")]
    assert "fedprox" in printed[-1]


def test_analyses_and_trackers():
    run("fedshift compare --method fedavg", *SMALL)
    assert all(run(line) for line in commands("analyses.md", "analyse"))
    for line in commands("analyses.md", "track"):
        run(line)
    assert any(Path("prometheus").iterdir())
    runpy.run_path(str(_written(block("analyses.md", "python"))))
    Path("confidence.py").write_text(block("analyses.md", "custom"))
    Path("lines.py").write_text(block("analyses.md", "tracker"))
    assert "fedavg" in run("fedshift analyse confidence runs/rotated-mnist --plugin confidence.py", alone=True)
    run("fedshift track runs/rotated-mnist --to lines --plugin lines.py --set file=all.txt", alone=True)
    assert Path("all.txt").read_text()


def test_predicting_and_exporting():
    draw = np.random.default_rng(0)
    hospital = np.array(["north", "south"])[np.arange(80) % 2]
    sick = np.arange(80) // 2 % 2
    table = pd.DataFrame({"age": draw.normal(sick, 1), "pulse": draw.normal(sick, 1)})
    table.assign(label=np.array(["well", "ill"])[sick], hospital=hospital).to_csv("patients.csv", index=False)
    table.head(3).to_csv("new.csv", index=False)
    table.head(2).to_parquet("more.parquet")
    for line in commands("trained-models.md"):
        run(line)
    assert Path("both.csv").read_text().splitlines()[0] == "file,row,predicted,p_ill,p_well"
    assert len(Path("both.csv").read_text().splitlines()) == 6
    assert len(Path("predictions.csv").read_text().splitlines()) == 4
    assert Path("patients-model/README.md").is_file()


def test_a_site_that_never_joined():
    draw = np.random.default_rng(0)
    Path("three").mkdir()
    for number, path in enumerate(["three/a.csv", "three/b.csv", "three/c.csv", "fourth.csv"]):
        age = draw.normal(55 + number, 9, 120).round(1)
        ill = np.where(age + draw.normal(0, 6, 120) > 56, "ill", "healthy")
        table = pd.DataFrame({"age": age, "sex": np.array(["f", "m"])[draw.integers(0, 2, 120)], "label": ill})
        table.assign(**{"diagnosis": ill} if path == "fourth.csv" else {}).to_csv(path, index=False)
    first, *lines = commands("trained-models.md", "validate")
    run(first, *FAST)
    printed = [run(line) for line in lines]
    assert all("on 120 samples" in text and "Youden" in text for text in printed)
    assert "By sex" in printed[0]
    assert Path("stays-here.csv").is_file()
    assert Path("hand-on/validation.html").is_file()
