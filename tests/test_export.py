"""Exported models: executed without fedshift they predict what the run's model does, or nothing is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedshift
import fresh
from conftest import CNN_WITH_BN, TINY, Make
from fedshift.errors import MissingExtraError
from fedshift.reporting.export.example_inputs import made
from fedshift.reporting.export.export import TOLERANCE, Checks
from fedshift.reporting.export.function import Probabilities
from fedshift.runs.run import Run
from fedshift.study.grid import expand, override
from refusal import refuses

SITES, CLASSES = ("north", "south"), ("ill", "well")
WORDS = ["[PAD]", "[UNK]", "fever", "cough", "fine", "rested"]
IN_DOMAIN = {"name": "in-domain", "test": 0.2, "validation": 0.2}


def run_of(folder: Path, changes: dict[str, Any]) -> Run:
    """The run of a small experiment."""
    (experiment,) = expand(override(TINY, {"run.out": str(folder / "runs"), **changes}))
    return fedshift.run(experiment)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on rows with missing cells and categories, prepared by the statistics of all sites."""
    folder = tmp_path_factory.mktemp("table")
    draw = np.random.default_rng(0)
    lines = ["site,label,age,sex,dose"]
    for number in range(60):
        age = "" if number % 7 == 0 else f"{50 + 20 * (number % 2) + draw.normal():.2f}"
        dose = "" if number % 5 == 0 else f"{draw.normal():.3f}"
        lines.append(f"{SITES[number // 2 % 2]},{CLASSES[number % 2]},{age},{('m', 'f', '')[number % 3]},{dose}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"name": "table", "path": str(folder / "rows.csv"), "domain": "site", "statistics": "pooled"}
    model = {"name": "mlp", "dim": 4, "hidden": [8], "norm": "batch"}
    return run_of(folder, {"data": data, "protocol": IN_DOMAIN, "model": model, "train.steps": 20})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of FedBN on colour images of 8 bits, normalised as ImageNet: each client has its own batch norms."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(24):
        path = folder / "photos" / SITES[number % 2] / CLASSES[number // 2 % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256 if number % 2 else 128, size=(12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    data = {"name": "folder", "path": str(folder / "photos"), "size": 12, "normalise": True}
    return run_of(folder, {"data": data, "protocol": IN_DOMAIN, "method.name": "fedbn", **CNN_WITH_BN})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a small BERT from transformers on texts of different lengths."""
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder = tmp_path_factory.mktemp("texts")
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        folder / "tokenizer"
    )
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **small)
    transformers.BertModel(config).save_pretrained(folder / "bert")
    said = (("fever cough", "cough"), ("fine", "fine rested fine"))
    lines = ["site,label,text"]
    lines += [f"{SITES[n % 2]},{CLASSES[n // 2 % 2]},{said[n // 2 % 2][n // 4 % 2]}" for n in range(40)]
    (folder / "texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"name": "text", "path": str(folder / "texts.csv"), "domain": "site", "length": 6}
    data["tokens"] = str(folder / "tokenizer")
    model = {"name": "transformers", "path": str(folder / "bert"), "dim": 4, "freeze_until": 2}
    return run_of(folder, {"data": data, "protocol": IN_DOMAIN, "model": model})


@pytest.fixture(scope="module")
def fedsr(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of FedSR, which averages over draws of its representation."""
    return run_of(tmp_path_factory.mktemp("fedsr"), {"method.name": "fedsr"})


# Without fedshift ---------------------------------------------------------------------------------

RUNNER = """
import json, os, sys
folder, pieces = json.loads(sys.argv[1])
sys.path.insert(0, folder)
os.chdir(folder)
import numpy as np
for name, blocked, code, result in pieces:
    sys.modules |= dict.fromkeys(blocked)  # an import of these fails
    space = {}
    exec(code, space)
    found = eval(result, space)
    np.save(f"{name}.npy", found if isinstance(found, np.ndarray) else found.detach().numpy())
    for module in blocked:
        del sys.modules[module]
"""
READ = {"onnx": "found", "torch": "model(samples)", "safetensors": "Model()(samples)"}
BLOCKED = {"onnx": ("fedshift", "torch"), "torch": ("fedshift",), "safetensors": ("fedshift",)}


def check_executed(folder: Path, *formats: str) -> None:
    """In a process without fedshift (and without torch, for ONNX) the card's own lines give what checks.npz has."""
    expected = np.load(folder / "checks.npz")["probabilities"]
    assert np.ptp(expected, axis=0).max() > 1e-3  # or agreement would state nothing
    card = (folder / "README.md").read_text(encoding="utf-8")
    found = {name: re.search(rf"As {name}.*?```python\n(.*?)```", card, re.DOTALL) for name in formats}
    codes = {name: match.group(1).strip() for name, match in found.items()}
    assert max(len(code.splitlines()) for code in codes.values()) <= 5
    requested = json.dumps([str(folder), [(name, BLOCKED[name], code, READ[name]) for name, code in codes.items()]])
    subprocess.run([sys.executable, "-I", "-c", RUNNER, requested], check=True, cwd=folder)
    for name in formats:
        np.testing.assert_allclose(np.load(folder / f"{name}.npy"), expected, rtol=0, atol=TOLERANCE)


def stored(folder: Path, model: Callable[[Tensor], Tensor]) -> None:
    """What is stored is what a model gives."""
    checks = np.load(folder / "checks.npz")
    with torch.no_grad():
        expected = model(torch.from_numpy(checks["samples"])).exp()
    np.testing.assert_allclose(checks["probabilities"], expected, rtol=0, atol=1e-6)


def test_a_table_in_every_format(table: Run, tmp_path: Path):
    """Rows with missing cells and categories as the file has them, coded by the columns of model.json."""
    done = fedshift.export(table, format=["onnx", "torch", "safetensors"], to=tmp_path / "out")
    assert (done.made, done.real, done.note) == (32, 60, "")
    assert max(done.differences.values()) <= TOLERANCE
    stored(done.path, table.model())

    new = tmp_path / "new.csv"
    new.write_text("sex,age,dose\nf,61,0.5\n,,\nnobody,40,\nm,,-3\n", encoding="utf-8")
    about = json.loads((done.path / "model.json").read_text(encoding="utf-8"))
    assert about["classes"] == ["ill", "well"]
    assert about["input"] == {"shape": ["batch", 3], "type": "float64"}
    assert [column["name"] for column in about["columns"]] == ["age", "sex", "dose"]
    code = {name: number for number, name in enumerate(about["columns"][1]["categories"])}
    rows = np.array([[61, code["f"], 0.5], [np.nan] * 3, [40, -1, np.nan], [np.nan, code["m"], -3]])
    expected = fedshift.predict(table.path, [new]).probabilities.numpy()
    np.savez(done.path / "checks.npz", samples=rows, probabilities=expected)
    check_executed(done.path, "onnx", "torch", "safetensors")


def test_the_model_of_a_client_with_its_own_batch_norms(photos: Run, tmp_path: Path):
    done = fedshift.export(photos.path, client="south", to=tmp_path / "out")
    assert done.real == 24
    stored(done.path, photos.model("south"))
    check_executed(done.path, "onnx")
    samples = torch.from_numpy(np.load(done.path / "checks.npz")["samples"])
    assert samples.dtype == torch.uint8
    assert (samples.min(), samples.max()) == (0, 255)
    north, south = (photos.model(name)(samples).exp() for name in SITES)
    assert (north - south).abs().max() > 10 * TOLERANCE  # so the other's would have been noticed
    card = (done.path / "README.md").read_text(encoding="utf-8")
    assert "the model of client south" in card
    assert "what client south kept to itself" in card


def test_a_transformer_with_frozen_stages(texts: Run, tmp_path: Path):
    """The frozen stages are in the file: it takes token ids, of texts of any length."""
    done = fedshift.export(texts, to=tmp_path / "out")
    samples = np.load(done.path / "checks.npz")["samples"]
    assert samples.dtype == np.int64
    assert samples.shape == (32, 6)
    assert {int((row != 0).sum()) for row in samples} == {1, 2, 3, 4, 5, 6}
    stored(done.path, texts.model())
    check_executed(done.path, "onnx")


def test_draws_of_a_single_sample_for_every_sample(fedsr: Run, tmp_path: Path):
    """Predicted alone a sample has the draws of a batch of one; so it has in a file, wherever in a batch it stands."""
    done = fedshift.export(fedsr, format="torch", to=tmp_path / "out")
    model, exported = fedsr.model(), torch.export.load(done.path / "model.pt2").module()
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        alone = torch.cat([model(each).exp() for each in x.split(1)])
        torch.testing.assert_close(exported(x), alone, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(exported(x.flip(0)).flip(0), alone, rtol=0, atol=TOLERANCE)
        assert (model(x).exp() - alone).abs().max() > 10 * TOLERANCE  # a batch has other draws
    assert "averages predictions over random draws" in (done.path / "README.md").read_text(encoding="utf-8")


# Refused ------------------------------------------------------------------------------------------


def test_an_exporter_that_is_wrong_leaves_nothing(table: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's exporter adds 0.001 to a bias of the last layer, and so about p (1 - p) / 1000 to a probability p."""
    export = torch.onnx.export

    def wrong(program: torch.export.ExportedProgram, *args: Any, **options: Any) -> Any:
        other = deepcopy(program)
        with torch.no_grad():
            other.state_dict["model.head.bias"][0] += 1e-3
        return export(other, *args, **options)

    monkeypatch.setattr(torch.onnx, "export", wrong)
    with refuses("as onnx is wrong", "differs by", "1e-05", "--format torch"):
        fedshift.export(table, to=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def without_gaps(x: Tensor) -> Tensor:
    """A missing cell is a 0."""
    return x.nan_to_num(0.0)


def first_category(x: Tensor) -> Tensor:
    """A category that no client knows is the first one."""
    return torch.where(x == -1, 0.0, x)


def in_a_batch(x: Tensor) -> Tensor:
    """Right for one sample at a time only."""
    return x[:1].expand_as(x)


@pytest.mark.parametrize("change", [without_gaps, first_category, in_a_batch])
def test_a_file_that_prepares_samples_otherwise_is_noticed(table: Run, change: Callable[[Tensor], Tensor]):
    """On made samples alone, as where the data cannot be read any more."""
    whole = Probabilities.of(table, None, "last")
    samples = made(whole, (3,))
    checks = Checks(samples, samples[:0], whole.reference(samples), "no data")
    assert checks.difference(whole, whole) <= 1e-6
    assert checks.difference(whole, lambda x: whole(change(x))) > 10 * TOLERANCE
    assert checks.difference(whole, lambda x: torch.where(x[:, :1] == x[0, 0], torch.nan, whole(x))) == torch.inf


def test_a_model_that_measures_on_the_batch_is_none_of_a_sample(make: Make):
    run = fedshift.run(make({**CNN_WITH_BN, "method.bn": "reestimate"}))
    with refuses("measures batch-norm statistics", "method.bn"):
        fedshift.export(run)


def test_mixed_precision_is_no_plain_code(make: Make, tmp_path: Path):
    run = fedshift.run(make({"train.precision": "bfloat16"}))
    with refuses("separate Python module", "--format torch"):
        fedshift.export(run, format=["torch", "safetensors"], to=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported(table: Run, photos: Run, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with refuses("There is no global model", "0 ('north'), 1 ('south')"):
        fedshift.export(photos)
    with refuses("no client 'west'", "0 ('north')"):
        fedshift.export(table, client="west")
    with refuses("format 'onx'", "Did you mean 'onnx'"):
        fedshift.export(table, format="onx")
    with refuses(str(tmp_path), "not overwritten", "--to"):
        fedshift.export(table, to=tmp_path)
    begun = Run.create(make(), tmp_path / "begun")
    with refuses("is not finished", "fedshift resume"):
        fedshift.export(begun.path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refuses("onnxruntime", "pip install 'fedshift[onnx]'", error=MissingExtraError):
        fedshift.export(table, to=tmp_path / "out")


# what is sent -------------------------------------------------------------------------------------


def test_the_card_and_what_is_not_told(table: Run, tmp_path: Path):
    """Scores with n and what was sent are those of the run's files; nothing shows of this machine, or of a sample."""
    out = tmp_path / "out"
    printed = fresh.ok("export", str(table.path), "--format", "torch,safetensors", "--to", str(out))
    assert "Checked on 32 generated samples and 60 of the data." in printed
    card = (out / "README.md").read_text(encoding="utf-8")
    for row in table.records[-1]["environments"]:
        low, high = (100 * end for end in row["intervals"]["accuracy"])
        accuracy = f"{100 * row['accuracy']:.1f} ({low:.1f} to {high:.1f})"
        support = ", ".join(map(str, table.data_facts["scored_classes"][row["role"]][row["environment"]]))
        line = f"| {row['environment']} | {row['role']} | the global model | {accuracy} | {row['n']} | {support} |"
        assert line in card
    assert "| preparation | count | present, rows | 2 |" in card
    assert "| train | model update | encoder, head | 4 |" in card
    assert "McMahan et al." in card
    assert "| 1 | sex | 0: f, 1: m; anything else: -1 |" in card
    whole = b"".join(path.read_bytes() for path in out.iterdir())
    for secret in (str(table.path.parent.parent), str(Path(fedshift.__file__).parent), "rows.csv"):
        assert secret.encode() not in whole


def test_data_that_are_gone_are_no_error(table: Run, tmp_path: Path):
    rows = Path(table.experiment.data.path)
    try:
        rows.rename(tmp_path / "elsewhere.csv")
        done = fedshift.export(Run.open(table.path), format="safetensors", to=tmp_path / "out")
    finally:
        (tmp_path / "elsewhere.csv").rename(rows)
    assert done.real == 0
    assert "rows.csv" in done.note


def test_an_exported_model_is_validated_like_its_run(table: Run, tmp_path: Path):
    """ONNX is data and read at once; code is executed where it is trusted. What a folder lacks is an error."""
    done = fedshift.export(table, format=["onnx", "safetensors"], to=tmp_path / "out")
    rows = (Path(table.experiment.data.path)).read_text(encoding="utf-8")
    (tmp_path / "new.csv").write_text(rows, encoding="utf-8")
    expected = fedshift.validate(table.path, tmp_path / "new.csv").rows
    (done.path / "model.py").rename(tmp_path / "model.py")
    found = fedshift.validate(done.path, tmp_path / "new.csv")
    assert len(found.rows) == len(expected) == 60
    for ours, theirs in zip(found.rows, expected, strict=True):
        assert ours["p_ill"] == pytest.approx(theirs["p_ill"], abs=1e-5)
    (done.path / "model.onnx").unlink()
    with refuses("none of model.onnx, model.pt2, model.py"):
        fedshift.validate(done.path, tmp_path / "new.csv")
    (tmp_path / "model.py").rename(done.path / "model.py")
    with refuses("executes code"):
        fedshift.validate(done.path, tmp_path / "new.csv")
    assert len(fedshift.validate(done.path, tmp_path / "new.csv", trust=True).rows) == 60
    (done.path / "model.json").write_text("{}", encoding="utf-8")
    with refuses("model.json' is damaged"):
        fedshift.validate(done.path, tmp_path / "new.csv", trust=True)
