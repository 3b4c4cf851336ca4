"""The features that extras bring, each on a few samples: ``python tests/extras.py with EXTRA``, or ``without``.

Needs nothing but fedshift itself, so that an environment can have one extra alone. ``with`` makes the samples and tries
each feature of an extra. ``without`` expects one line that names the extra.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

FEW = ["--set", "data.images_per_class=5"]  # of the digits that are shipped
SMALL = ["--rounds", "1", "--set", "train.steps=1", "--set", "run.device=cpu", "--set", "run.engine=sequential"]
LOCAL = ["--set", "run.workers=2", "--set", "run.address=local"]
SITES, CLASSES = ("north", "south"), ("a", "b")


def nothing() -> None:
    """What is shipped is enough."""


@dataclass(frozen=True)
class Feature:
    """A feature that an extra brings.

    Attributes:
        extra: the extra.
        name: the feature, for people.
        words: the command line after ``fedshift``; or ``["-c", CODE]``, for Python.
        make: writes what the command line reads into the present folder; without the extra, files of these names.
    """

    extra: str
    name: str
    words: list[str]
    make: Callable[[], None] = nothing


def run(*words: str, data: str = "") -> list[str]:
    """A small run in which every site trains and is tested."""
    given = ["--data", data, "--set", "protocol.name=in-domain"] if data else FEW
    method = [] if any(each.startswith("method.name=") for each in words) else ["--method", "fedavg"]
    return ["run", *given, *method, *SMALL, *(word for each in words for word in ("--set", each))]


# Samples ------------------------------------------------------------------------------------------


def each_file(folder: str, suffix: str, write: Callable[[Path, int], object]) -> None:
    """Four files of each class of each site."""
    number = 0
    for site in SITES:
        for label in CLASSES:
            for index in range(4):
                path = Path(folder, site, label, f"{index}{suffix}")
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, number := number + 1)


def photos() -> None:
    """Images of 16 pixels."""
    from PIL import Image

    each_file("photos", ".png", lambda path, number: Image.new("RGB", (16, 16), (7 * number, 9, 90)).save(path))


def rows(write: Callable[[str, str, int], str], head: str, file: str) -> None:
    """A CSV file."""
    lines = [write(site, label, n) for n in range(8) for site in SITES for label in CLASSES]
    Path(file).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def table() -> None:
    """Rows of two numbers."""
    rows(lambda site, label, n: f"{n},{n * n + len(label)},{label},{site}", "x,y,label,site", "table.csv")


def texts() -> None:
    """Texts of a few words."""
    rows(lambda site, label, n: f"word{n} of {label},{label},{site}", "text,label,site", "texts.csv")


def tokenizer() -> None:
    """A tokenizer of whole words, beside texts."""
    texts()
    Path("tokenizer").mkdir()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "of", *CLASSES, *(f"word{n}" for n in range(8))]
    made = Tokenizer(WordLevel({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained("tokenizer")


def network() -> None:
    """A small network of transformers for images, beside images."""
    photos()
    Path("network").mkdir()
    import transformers

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**small, image_size=16, patch_size=8)
    transformers.ViTModel(config).save_pretrained("network")


def clip() -> None:
    """A small CLIP whose tokens are letters, beside images."""
    photos()
    Path("clip").mkdir()
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    Path("vocab.json").write_text(json.dumps({word: id for id, word in enumerate(words)}), encoding="utf-8")
    Path("merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    transformers.CLIPTokenizer("vocab.json", "merges.txt").save_pretrained("clip")
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": len(words), "eos_token_id": len(words) - 1, "bos_token_id": len(words) - 2}
    vision = {"image_size": 16, "patch_size": 8}
    towers = {"text_config": {**small, **text, "max_position_embeddings": 20}, "vision_config": {**small, **vision}}
    transformers.CLIPModel(transformers.CLIPConfig(**towers, projection_dim=32)).save_pretrained("clip")


def svhn() -> None:
    """House numbers as SVHN's authors store them."""
    Path("svhn.mat").touch()
    import numpy as np
    from scipy.io import savemat

    labels = np.repeat(np.arange(1, 11), 8)[:, None]
    savemat("svhn.mat", {"X": np.zeros((32, 32, 3, len(labels)), np.uint8), "y": labels})


def parquet() -> None:
    """Images in a Parquet file."""
    photos()
    Path("photos.parquet").write_bytes(b"PAR1")
    import datasets

    files = sorted(Path("photos").rglob("*.png"))
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "label": [file.parent.name for file in files],
        "domain": [file.parent.parent.name for file in files],
    }
    kinds = {"image": datasets.Image(), "label": datasets.Value("string"), "domain": datasets.Value("string")}
    datasets.Dataset.from_dict(columns, datasets.Features(kinds)).to_parquet("photos.parquet")


def dicom() -> None:
    """Pydicom's own slice, of one patient after another."""
    each_file("dicom", ".dcm", lambda path, number: path.touch())
    from pydicom import dcmread
    from pydicom.data import get_testdata_file

    def write(path: Path, number: int) -> None:
        held = dcmread(get_testdata_file("CT_small.dcm"))
        held.PatientID = str(number)
        held.save_as(path)

    each_file("dicom", ".dcm", write)


def nifti() -> None:
    """Volumes of 8 voxels a side as NIfTI."""
    each_file("nifti", ".nii", lambda path, number: path.touch())
    import nibabel
    import numpy as np

    def write(path: Path, number: int) -> None:
        nibabel.save(nibabel.Nifti1Image(np.full((8, 8, 2), number, np.float32), np.eye(4)), path)

    each_file("nifti", ".nii", write)


# Features -----------------------------------------------------------------------------------------

FRAME = """
import fedshift
settings = {"train.steps": 1, "data.images_per_class": 5}
comparison = fedshift.compare("rotated-mnist", method="fedavg", rounds=1, settings=settings)
try:
    assert len(comparison.frame())
except fedshift.FedshiftError as error:
    raise SystemExit(f"Error: {error}")
"""
CLASSIFIER = """
import fedshift
try:
    made = fedshift.FederatedClassifier(rounds=1)
except fedshift.FedshiftError as error:
    raise SystemExit(f"Error: {error}")
x = [[0.0, 1.0], [1.0, 0.0]] * 10
assert made.fit(x, [0, 1] * 10).predict_proba(x).shape == (20, 2)
"""
TRACKED = """
import fedshift
settings = {"train.steps": 1, "data.images_per_class": 5}
run = fedshift.run("rotated-mnist", method="fedavg", rounds=1, settings=settings)
try:
    assert [*fedshift.track(run.path, "TRACKER").values()] == [1]
except fedshift.FedshiftError as error:
    raise SystemExit(f"Error: {error}")
"""
ANALYSIS = """
import tempfile
import fedshift
with tempfile.TemporaryDirectory() as folder:
    done = fedshift.run(rounds=1, out=folder)
    try:
        fedshift.analyse("tsne", done.path, samples=20)
        fedshift.analyse("a-distance", done.path, samples=20)
    except fedshift.FedshiftError as error:
        raise SystemExit(f"Error: {error}")
"""
EXPORT = """
import tempfile
import fedshift
with tempfile.TemporaryDirectory() as folder:
    settings = {"train.steps": 1, "data.images_per_class": 5}
    done = fedshift.run("rotated-mnist", method="fedavg", rounds=1, settings=settings, out=folder)
    try:
        assert fedshift.export(done).differences["onnx"] <= 1e-5
    except fedshift.FedshiftError as error:
        raise SystemExit(f"Error: {error}")
"""
GRAD_CAM = ANALYSIS.replace('"tsne", done.path, samples=20', '"grad-cam", done.path')
VIT = ["model.name=transformers", "model.path=network", "data.path=photos", "data.size=16"]
TABLE = ["data.path=table.csv", "data.domain=site", "model.name=mlp"]
TEXTS = ["data.path=texts.csv", "data.domain=site"]
TOKENS = ["data.tokens=tokenizer", "model.name=lstm"]
SCANS = ["data.size=8", "data.window=none", "model.name=mlp"]
LITE = "efficientnet-lite0"
PHOTOS = ["data.path=photos", "data.size=32"]
FROZEN = ["data.path=photos", "data.size=16", "model.name=mlp"]
ENCODER = ["method.index.encoder.name=clip", "method.index.encoder.path=clip"]
CLIENT2VEC = ["method.name=client2vec", "method.index.epochs=1", *ENCODER]
SVHN = ['data.domains=["svhn"]', "data.svhn=svhn.mat", "data.fraction=1"]
PLAIN = ["--set", "evaluate.metrics=[]"]
FEATURES = [
    Feature("images", "a backbone", run(*PHOTOS, "model.name=resnet18", data="folder"), photos),
    Feature("images", "augmentation", run(*PHOTOS, "data.augment=true", data="folder"), photos),
    Feature("images", "a network of transformers", run(*VIT, data="folder"), network),
    Feature("images", "frozen features", run(*FROZEN, "data.frozen=network", data="folder"), network),
    Feature("images", "CLIP", run("data.path=photos", "data.size=16", *CLIENT2VEC, data="folder"), clip),
    Feature("parquet", "images in Parquet", run("data.path=photos.parquet", "data.size=16", data="parquet"), parquet),
    Feature("parquet", "a client index in a file", ["index", "--set", "method.index.epochs=1", *FEW]),
    Feature("efficientnet", "frozen features", run(*FROZEN, f"data.frozen={LITE}", data="folder"), photos),
    Feature("efficientnet", "the network", run(PHOTOS[0], f"model.name={LITE}", data="folder"), photos),
    Feature(
        "partition",
        "a partitioner of flwr-datasets",
        run("partition.name=flwr", 'partition.partitioner="IidPartitioner"', "partition.arguments={num_partitions=2}"),
    ),
    Feature("pandas", "a table in CSV", run(*TABLE, data="table"), table),
    Feature("pandas", "comparison.frame()", ["-c", FRAME]),
    Feature("text", "texts by hashing", run(*TEXTS, "model.name=mlp", data="text"), texts),
    Feature("text", "texts by a tokenizer", run(*TEXTS, *TOKENS, data="text"), tokenizer),
    Feature("adapters", "low-rank adapters", run(*VIT, "model.adapter_rank=1", data="folder"), network),
    Feature("signals", "the watch data set", ["run", "watch-in-domain", "--method", "fedavg", "--seed", "0", *SMALL]),
    Feature("clinics", "a table of hospitals", ["run", "opt", "--method", "fedavg", "--seed", "0", *PLAIN, *SMALL]),
    Feature("medical", "DICOM", run("data.path=dicom", *SCANS, data="medical"), dicom),
    Feature("medical", "NIfTI", run("data.path=nifti", *SCANS, data="medical"), nifti),
    Feature("tune", "a search", ["tune", "--method", "fedprox", "--trials", "2", *FEW, *SMALL]),
    Feature("sklearn", "a shipped table", ["run", "breast-cancer", "--method", "fedavg", "--seed", "0", *SMALL]),
    Feature("sklearn", "AUROC", run('evaluate.metrics=["auroc"]')),
    Feature("sklearn", "a comparison of sites", ["data", *FEW]),
    Feature("analyse", "t-SNE and A-distance", ["-c", ANALYSIS]),
    Feature("analyse", "Grad-CAM", ["-c", GRAD_CAM]),
    Feature("onnx", "ONNX files", ["-c", EXPORT]),
    Feature("sklearn", "FederatedClassifier", ["-c", CLASSIFIER]),
    Feature("benchmark", "a table", ["benchmark", "--method", "fedavg,fedprox", "--federation", "rotated-mnist-0"]),
    *(
        Feature(name, "a tracker", ["-c", TRACKED.replace("TRACKER", name)])
        for name in ("tensorboard", "mlflow", "wandb")
    ),
    Feature("ray", "a cluster", ["run", *FEW, "--method", "fedavg", *SMALL[:-1], "run.engine=ray", *LOCAL]),
    Feature("flower", "a federation's folders", ["federation", "init", "it", "--sites", "a,b", "--method", "fedavg"]),
    Feature("flower", "a federation's processes", ["federation", "demo", "--rounds", "1", "--sites", "2"]),
]


def carried_out(feature: Feature, folder: Path) -> subprocess.CompletedProcess[str]:
    """The feature's command, in a folder."""
    words = feature.words if feature.words[0] == "-c" else ["-m", "fedshift", *feature.words]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder)


def carry_out_without(feature: Feature, blocked: set[str], modules: list[str]) -> None:
    """In a fresh process of the tests: run a feature as if some distributions were missing."""
    import fresh

    sys.modules |= dict.fromkeys(modules)  # None makes an import fail
    from_name = Distribution.from_name

    def found(name: str) -> Distribution:
        if re.sub(r"[-_.]+", "-", name).lower() in blocked:
            raise PackageNotFoundError(name)
        return from_name(name)

    Distribution.from_name = found  # type: ignore[method-assign]  # of a separate process
    make(feature, Path.cwd(), without=True)
    if feature.words[0] == "-c":
        exec(feature.words[1], {})
    else:
        fresh.fedshift(*feature.words)


def names_the_extra(feature: Feature, printed: str) -> bool:
    """Whether exactly one printed line names what to install."""
    return len(re.findall(rf"^.*pip install 'fedshift\[{feature.extra}\]'", printed, re.MULTILINE)) == 1


def make(feature: Feature, folder: Path, *, without: bool) -> None:
    """The feature's samples, in a folder; where the extra is not installed, what can be made without."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        feature.make()
    except ImportError:
        assert without, "the extra lacks something"
    finally:
        os.chdir(here)


def main(mode: str, extra: str) -> int:
    """Try the features of an extra; returns how many failed."""
    failed = 0
    for feature in (feature for feature in FEATURES if extra in (feature.extra, "all")):
        with tempfile.TemporaryDirectory() as folder:
            make(feature, Path(folder), without=mode == "without")
            done = carried_out(feature, Path(folder))
        printed = done.stdout + done.stderr
        named = names_the_extra(feature, printed)
        fine = named and "Traceback" not in printed if mode == "without" else done.returncode == 0 and not named
        failed += not fine
        print(
            f"{'ok' if fine else 'FAILED':6} {mode} {feature.extra}: {feature.name}\n{'' if fine else printed}",
            end="",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
