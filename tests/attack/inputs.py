"""Bad inputs, each a row: files of the user, a command line, and what must come of it."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

Files = Callable[[Path], object]


@dataclass(frozen=True)
class Row:
    """An input and its judgement.

    Attributes:
        name: what is wrong.
        arguments: the command line, or what another probe takes.
        files: makes the user's files in the folder where the command runs, beside ``case.toml``.
        expects: "error": one clear error; "fine": it works; "clean": either.
        words: what the message, or what is printed, must contain.
        environment: environment variables; None unsets one.
        closed: whether nobody reads what it prints.
        probe: what carries it out; by default the command line with empty figures.
        slow: whether it takes seconds, and is left to the large attack.
    """

    name: str
    arguments: Sequence[str]
    files: Files = lambda folder: None
    expects: Literal["error", "fine", "clean"] = "error"
    words: Sequence[str] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    closed: bool = False
    probe: str = "plain"
    slow: bool = False


def run(*more: str) -> list[str]:
    return ["run", "case.toml", *more]


def sets(*assignments: str) -> list[str]:
    return run(*(word for assignment in assignments for word in ("--set", assignment)))


def document(text: str | bytes) -> Files:
    """An experiment file ``mine.toml``."""
    return lambda folder: (folder / "mine.toml").write_bytes(text.encode() if isinstance(text, str) else text)


MINE = ["run", "mine.toml"]
TINY_TOML = """
data = {name = "tiny"}
model = {name = "mlp", dim = 4}
protocol = {hold_out = "light"}
run = {engine = "sequential"}
"""
SHORT_TOML = TINY_TOML + "train = {rounds = 1}\n"

# The command line and its settings ----------------------------------------------------------------

SETTINGS = [
    Row("unknown method", run("--method", "fedsrr"), words=["'fedsrr'", "fedsr"]),
    Row("an empty method", run("--method", "")),
    Row("a method with a comma too many", run("--method", "fedavg,,"), expects="clean"),
    Row("the same method twice", ["compare", "case.toml", "--method", "fedavg,fedavg"]),
    Row("unknown data", run("--data", "mnits"), words=["'mnits'"]),
    Row("unknown model", run("--model", "resnet-18"), words=["resnet18"]),
    Row("unknown partition", sets("partition.name=iidd"), words=["'iidd'", "iid"]),
    Row("unknown protocol", sets("protocol.name=in-domian"), words=["in-domain"]),
    Row("unknown domain", run("--hold-out", "lihgt"), words=["'lihgt'", "light"]),
    Row("an empty domain", run("--hold-out", "")),
    Row("the same domain twice", ["compare", "case.toml", "--hold-out", "light,light"]),
    Row("a number as the domain", run("--hold-out", "1e3"), words=["'1e3'"]),
    Row("a table as the domain", run("--hold-out", "{a=1}")),
    Row("unknown experiment", ["run", "rotated-minst"], words=["rotated-mnist"]),
    Row("unknown command", ["rnu"]),
    Row("unknown option", run("--lr", "0.1")),
    Row("an option without its value", run("--seed")),
    Row("unknown table", sets("trian.lr=0.1"), words=["train"]),
    Row("unknown field", sets("train.learning_rate=0.1"), words=["learning_rate"]),
    Row("a field of another method", sets("method.mu=0.1"), words=["'mu'"]),
    Row("a field below a value", sets("train.lr.x=1")),
    Row("a field that is too deep", sets("method.a.b.c.d.e=1")),
    Row("no assignment", sets("train.lr"), words=["train.lr"]),
    Row("an assignment to nothing", sets("=3")),
    Row("an assignment of nothing", sets("train.lr=")),
    Row("an assignment to a dot", sets(".=3")),
    Row("an assignment with dots too many", sets("train..lr=3")),
    Row("a table set to a number", sets("train=3"), words=["train"]),
    Row("a number set to a table", sets("train.lr={a=1}"), words=["train.lr"]),
    Row("a date", sets("train.lr=2020-01-01"), words=["train.lr"]),
    Row("lr is a word", sets("train.lr=fast"), words=["train.lr", "fast"]),
    Row("lr is negative", sets("train.lr=-1"), words=["train.lr"]),
    Row("lr is NaN", sets("train.lr=nan"), words=["train.lr"]),
    Row("lr is infinite", sets("train.lr=inf"), words=["train.lr"]),
    Row("lr is beyond a float", sets("train.lr=1e999"), words=["train.lr"]),
    Row("lr is true", sets("train.lr=true"), words=["train.lr"]),
    Row("lr is a list of lists", sets("train.lr=[[0.1]]"), words=["train.lr"]),
    Row("lr is an empty list", sets("train.lr=[]"), words=["train.lr"]),
    Row("rounds of 0", run("--rounds", "0")),
    Row("rounds of -1", run("--rounds", "-1")),
    Row("rounds of 1.5", sets("train.rounds=1.5"), words=["train.rounds"]),
    Row("rounds of 2**70", sets(f"train.rounds={2**70}"), words=["train.rounds"]),
    Row("1e7 rounds, planned", [*sets("train.rounds=10000000"), "--dry-run"], expects="clean"),
    Row("steps of 0", sets("train.steps=0"), words=["train.steps"]),
    Row("1e9 steps, planned", [*sets("train.steps=1000000000"), "--dry-run"], expects="clean"),
    Row("a batch of 0", sets("train.batch=0"), words=["train.batch"]),
    Row("a batch of 2**70", sets(f"train.batch={2**70}"), expects="clean"),
    Row("a batch of 1e12", sets("train.batch=1000000000000"), expects="clean"),
    Row("an evaluation batch of 1e15", sets("evaluate.batch=1000000000000000"), expects="clean"),
    Row("participation of 0", sets("train.participation=0"), words=["train.participation"]),
    Row("participation of 1.5", sets("train.participation=1.5"), words=["train.participation"]),
    Row("always absent", sets("train.absent=1"), words=["train.absent"]),
    Row("answers of -0.1", sets("train.min_answers=-0.1"), words=["min_answers"]),
    Row("answers of 'some'", sets("train.min_answers=some"), words=["min_answers"]),
    Row("a seed that is a word", run("--seed", "abc"), words=["seed"]),
    Row("a seed of 1.5", run("--seed", "1.5"), words=["seed"]),
    Row("a seed of 1e3", run("--seed", "1e3"), words=["seed"]),
    Row("an empty seed", run("--seed", ""), words=["seed"]),
    Row("a seed of 2**200", run("--seed", str(2**200)), expects="clean"),
    Row("a negative seed", run("--seed", "-5"), expects="clean"),
    Row("several seeds where one is meant", run("--seed", "0,1"), words=["compare"]),
    Row("a model of 1e8 numbers", sets("model.dim=100000000"), words=["model"]),
    Row("a model of 1e18 numbers", sets("model.dim=1000000000000000000"), words=["model"]),
    Row("a hidden layer of 1e10", sets("model.hidden=[10000000000]"), words=["model"]),
    Row("a hidden layer of -1", sets("model.hidden=[-1]"), words=["model.hidden"]),
    Row("channels of 1e7", sets("model.name=cnn", "model.channels=[10000000,10000000]"), words=["model"]),
    Row("no channels", sets("model.name=cnn", "model.channels=[]"), words=["model.channels"]),
    Row("an MLP with channels", sets("model.channels=[1,2]"), words=["channels"]),
    Row("unknown device", run("--device", "tpu"), words=["tpu"]),
    Row("a device that is not there", run("--device", "cuda:99"), words=["cuda:99"]),
    Row("a device of no memory", run("--device", "meta"), words=["meta"]),
    Row("a device with a newline", run("--device", "cpu\nx")),
    Row("unknown engine", sets("run.engine=fast"), words=["run.engine"]),
    Row("-1 threads", sets("run.threads=-1"), words=["run.threads"]),
    Row("1e9 threads", sets("run.threads=1000000000"), words=["run.threads"]),
    Row("-1 workers", sets("run.workers=-1"), words=["run.workers"]),
    Row("1e9 workers", [*sets("run.engine=workers", "run.workers=1000000000"), "--dry-run"], expects="clean"),
    Row("1e12 runs together", sets("run.together=1000000000000"), expects="clean"),
    Row("checkpoints every 0 rounds", sets("run.checkpoint_every=0"), words=["checkpoint_every"]),
    Row("1e9 clients", sets("partition.name=iid", "partition.clients=1000000000"), words=["clients"]),
    Row("0 clients", sets("partition.name=iid", "partition.clients=0"), words=["partition.clients"]),
    Row("more clients than images", sets("partition.name=iid", "partition.clients=1000")),
    Row("alpha of 0", sets("partition.name=dirichlet", "partition.alpha=0"), words=["alpha"]),
    Row("alpha of 1e-300", sets("partition.name=dirichlet", "partition.alpha=1e-300"), expects="clean"),
    Row("precision of 8 bits", sets("train.precision=int8"), words=["train.precision"]),
    Row("a learning rate that diverges", sets("train.lr=1000", "train.rounds=20"), expects="clean"),
    Row("an empty name", run("--name", ""), words=["name"]),
    Row("a name that climbs", run("--name", "../up"), words=["name"]),
    Row("a name with a NUL", sets('name="a\\u0000b"'), words=["name"]),
    Row("a name with a newline", run("--name", "a\nb"), expects="clean"),
    Row("a name that is no text", run("--name", "a\udcffb"), expects="clean"),
    Row("a name of 300 letters", run("--name", "x" * 300), words=["name"]),
    Row("a name of 100 letters of 4 bytes", run("--name", "\U0001f40d" * 100), expects="clean"),
    Row("a folder for runs that is a file", run("--out", "case.toml")),
    Row("a folder for runs below a file", run("--out", "case.toml/x")),
    Row("a folder for runs that cannot be made", run("--out", "/proc/none/x")),
    Row("a folder for runs with a NUL", sets('run.out="a\\u0000b"')),
    Row("a folder for runs of 5000 letters", run("--out", "x" * 5000)),
    Row("a folder for runs that is no text", run("--out", "a\udcffb"), expects="clean"),
    Row("a model that needs other inputs", run("--model", "lstm")),
    Row("an unknown thing to list", ["list", "metods"], words=["methods"]),
    Row("an unknown thing to show", ["show", "fedsrr"], words=["fedsr"]),
    Row("an index of a method that makes none", ["index", "case.toml", "--method", "fedavg"]),
    Row("a bench of several runs of an unknown method", ["bench", "case.toml", "--method", "x"], words=["'x'"]),
]

# Experiment files ---------------------------------------------------------------------------------

DOCUMENTS = [
    Row("no such file", ["run", "none.toml"], words=["none.toml"]),
    Row(
        "a folder for a file", ["run", "mine.toml"], lambda folder: (folder / "mine.toml").mkdir(), words=["mine.toml"]
    ),
    Row("no TOML", MINE, document("name = "), words=["mine.toml"]),
    Row("no UTF-8", MINE, document(b'name = "\xff"'), words=["mine.toml"]),
    Row("UTF-16", MINE, document('name = "a"'.encode("utf-16")), words=["mine.toml"]),
    Row("a zip", MINE, document(b"PK\x03\x04" + bytes(100)), words=["mine.toml"]),
    Row("JSON", MINE, document('{"name": "a"}'), words=["mine.toml"]),
    Row("nested 100,000 deep", MINE, document("name = " + "[" * 100_000 + "]" * 100_000)),
    Row("tables nested 5,000 deep", MINE, document("a." * 5_000 + "b = 1")),
    Row("a number of 10,000 digits", MINE, document(TINY_TOML + "seed = " + "9" * 10_000)),
    Row("a key twice", MINE, document("seed = 1\nseed = 2"), words=["mine.toml"]),
    Row("a method that is a number", MINE, document(TINY_TOML + "method = 5"), words=["method"]),
    Row("a method's name that is a number", MINE, document(TINY_TOML + "method = {name = 5}"), words=["method"]),
    Row("a method's name that is a table", MINE, document(TINY_TOML + "method = {name = {a = 1}}"), words=["method"]),
    Row("a data set's name that is a list", MINE, document('data = {name = ["tiny", "folder"]}'), words=["data"]),
    Row("a list of tables", MINE, document("[[train]]\nlr = 1\n[[train]]\nlr = 2"), words=["train"]),
    Row("plugins that are a word", MINE, document(TINY_TOML + 'plugins = "x"'), words=["plugins"]),
    Row("plugins that are numbers", MINE, document(TINY_TOML + "plugins = [1]"), words=["plugins"]),
    Row("plugins that are a table", MINE, document(TINY_TOML + "plugins = {a = 1}"), words=["plugins"]),
    Row("a name that is a list", MINE, document(TINY_TOML + 'name = ["a", "b"]')),
    Row("a name that is a number", MINE, document(SHORT_TOML + "name = 5"), expects="clean"),
    Row("seeds in lists of lists", MINE, document(TINY_TOML + "seed = [[0]]"), words=["seed"]),
    Row("no seeds", MINE, document(TINY_TOML + "seed = []"), words=["seed"]),
    Row("the same seed twice", ["compare", "mine.toml"], document(TINY_TOML + "seed = [0, 0]")),
    Row(
        "a grid of 1e6 runs",
        ["compare", "mine.toml", "--dry-run"],
        document(TINY_TOML + f"seed = {list(range(1000))}\ntrain = {{lr = {[1 / n for n in range(1, 1001)]}}}"),
        expects="clean",
    ),
    Row("a preset that there is none of", MINE, document(TINY_TOML + 'method = {preset = "pasc"}'), words=["pasc"]),
    Row("a preset that is a number", MINE, document(TINY_TOML + "method = {preset = 3}"), words=["preset"]),
    Row("a nested method that is unknown", sets("method.name=client2vec", "method.base=fedavgg"), words=["fedavgg"]),
    Row("a method on itself", sets("method.name=client2vec", "method.base=client2vec")),
]

# Run folders and reports ---------------------------------------------------------------------------


def finished(folder: Path) -> None:
    """Stands for a run that the test makes first."""


REPORTS = [
    Row("a report of nothing", ["report", "none"], words=["none"]),
    Row("a report of a file", ["report", "case.toml"]),
    Row("a report of an empty folder", ["report", "."]),
    Row("a report of no text", ["report", "a\udcffb"]),
    Row("a resumption of nothing", ["resume", "none"], words=["none"]),
    Row("a resumption of a file", ["resume", "case.toml"]),
    Row(
        "a report of a run without records",
        ["report", "r"],
        lambda folder: ((folder / "r").mkdir(), (folder / "r/experiment.toml").write_text("seed = 0")),
    ),
    Row(
        "a resumption of an empty experiment",
        ["resume", "r"],
        lambda folder: ((folder / "r").mkdir(), (folder / "r/experiment.toml").write_text("")),
    ),
    Row(
        "an experiment that is a folder",
        ["resume", "r"],
        lambda folder: (folder / "r/experiment.toml").mkdir(parents=True),
    ),
    Row(
        "links in a circle",
        ["report", "r"],
        lambda folder: ((folder / "r").mkdir(), (folder / "r/experiment.toml").symlink_to("experiment.toml")),
    ),
    Row(
        "a report into a missing folder",
        ["report", "runs", "--to", "no/such/report.html"],
        finished,
        expects="clean",
        words=["no/such"],
    ),
    Row("a report into a folder", ["report", "runs", "--to", "."], finished, expects="fine"),
    Row("a report below a file", ["report", "runs", "--to", "case.toml/x.html"], finished),
    Row("a report nobody reads", ["report", "runs"], finished, expects="fine", closed=True),
    Row("a run that exists", run(), finished, words=["exists"]),
    Row("a comparison that exists", ["compare", "case.toml"], finished, expects="fine"),
]

# Plugins -------------------------------------------------------------------------------------------

HEAD = """
import fedshift
from dataclasses import dataclass
import torch
from fedshift.methods.fedavg import FedAvg
"""


def plugin(text: str | bytes) -> Files:
    """A plugin ``mine.py``."""
    return lambda folder: (folder / "mine.py").write_bytes(text.encode() if isinstance(text, str) else text)


def method(body: str) -> Files:
    """A plugin with a method ``mine``, that is FedAvg with another body."""
    return plugin(
        f'{HEAD}\n@fedshift.METHODS.register("mine")\n@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg):\n'
        f'    """A method."""\n{body}'
    )


def samples(change: str) -> Files:
    """A plugin with a data set ``mine``, the tiny one changed."""
    return plugin(f"""
{HEAD}
from dataclasses import replace
from fedshift.datasets.dataset import Dataset
Tiny = fedshift.DATASETS.get("tiny").cls
@fedshift.DATASETS.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(Tiny):
    \"\"\"Data.\"\"\"
    def load(self, streams):
        data = super().load(streams)
        {change}
        return data
""")


WITH = ["--plugin", "mine.py"]
MY_METHOD = run(*WITH, "--method", "mine")
MY_DATA = run(*WITH, "--set", "data.name=mine")
LOSS = "    def loss(self, net, batch, context):\n        loss = super().loss(net, batch, context)\n        "

PLUGINS = [
    Row("no such plugin", run(*WITH), words=["mine.py"]),
    Row("a plugin that is a folder", run(*WITH), lambda folder: (folder / "mine.py").mkdir(), words=["mine.py"]),
    Row("a plugin with a syntax error", run(*WITH), plugin("def"), words=["mine.py"]),
    Row("a plugin that is no UTF-8", run(*WITH), plugin(b"x = '\xff'"), words=["mine.py"]),
    Row("a plugin with NULs", run(*WITH), plugin(bytes(10)), words=["mine.py"]),
    Row("a plugin that raises", run(*WITH), plugin("1/0"), words=["mine.py", "ZeroDivisionError"]),
    Row("a plugin that exits", run(*WITH), plugin("raise SystemExit(3)"), words=["mine.py"]),
    Row("a plugin that recurses", run(*WITH), plugin("def f(): f()\nf()"), words=["mine.py"]),
    Row("a plugin that imports what is not installed", run(*WITH), plugin("import nothing_of_it"), words=["mine.py"]),
    Row(
        "a plugin that takes a name",
        run(*WITH),
        plugin(HEAD + '@fedshift.METHODS.register("fedavg")\nclass Mine(FedAvg):\n    """A method."""'),
        words=["fedavg"],
    ),
    Row("a plugin that registers no class", run(*WITH), plugin(HEAD + 'fedshift.METHODS.register("mine")(5)')),
    Row(
        "a method that is not frozen",
        MY_METHOD,
        plugin(HEAD + '@fedshift.METHODS.register("mine")\nclass Mine:\n    """A method."""'),
    ),
    Row("a loss that is a number", MY_METHOD, method(LOSS + "return 5")),
    Row("a loss of no terms", MY_METHOD, method(LOSS + "return {}")),
    Row("a loss that is NaN", MY_METHOD, method(LOSS + "return {n: t * float('nan') for n, t in loss.items()}")),
    Row("a loss that is a vector", MY_METHOD, method(LOSS + "return {n: t * torch.ones(3) for n, t in loss.items()}")),
    Row("a loss without a gradient", MY_METHOD, method(LOSS + "return {n: t.detach() for n, t in loss.items()}")),
    Row("a loss with a term of a number", MY_METHOD, method(LOSS + "return loss | {'x': 5}"), expects="clean"),
    Row(
        "a loss of pixels as terms",
        MY_METHOD,
        method(
            LOSS + "return loss | {f'p{i}': 0 * t + batch.x.flatten()[i] for i in range(20) for t in loss.values()}"
        ),
    ),
    Row(
        "a loss that raises a FedshiftError",
        MY_METHOD,
        method(LOSS + "raise fedshift.FedshiftError('No way.')"),
        words=["No way."],
    ),
    Row("inputs that are NaN", MY_DATA, samples("data.x[7] = float('nan')"), words=["nan", "sample 7"]),
    Row("inputs that are infinite", MY_DATA, samples("data.x[7] = float('inf')")),
    Row("labels beyond the classes", MY_DATA, samples("data.y[7] = 9")),
    Row("labels below 0", MY_DATA, samples("data.y[7] = -1")),
    Row("labels of floats", MY_DATA, samples("data = replace(data, y=data.y.float() + 0.5)")),
    Row("fewer labels than samples", MY_DATA, samples("data = replace(data, y=data.y[:-1])")),
    Row("domains beyond the names", MY_DATA, samples("data.domain[7] = 9")),
    Row(
        "no samples",
        MY_DATA,
        samples("data = replace(data, x=data.x[:0], y=data.y[:0], domain=data.domain[:0], group=data.group[:0])"),
    ),
    Row("no classes", MY_DATA, samples("data = replace(data, classes=())")),
    Row("samples of no dimension", MY_DATA, samples("data = replace(data, x=data.x[:, 0, 0, 0])"), expects="clean"),
    Row("complex samples", MY_DATA, samples("data = replace(data, x=data.x.to(torch.complex64))")),
    Row("samples that are a list", MY_DATA, samples("data = replace(data, x=data.x.tolist())")),
]

# Images --------------------------------------------------------------------------------------------


def png(seed: int = 0) -> bytes:
    """A small image."""
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A transparent PNG of a few kilobytes with so many pixels in height and width."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(1 + side // 8)
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", b"\0\0"), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def images(
    *changes: Files, domains: Sequence[str] = ("photo", "sketch", "art"), classes: Sequence[str] = ("cat", "dog")
) -> Files:
    """A folder ``images`` of domains, classes and images, and changes of it."""

    def made(folder: Path) -> None:
        number = 0
        for domain in domains:
            for label in classes:
                place = os.path.join(folder, "images", domain, label)  # noqa: PTH118  # names that are no text
                os.makedirs(place)  # noqa: PTH103
                for index in range(6):
                    number += 1
                    Path(place, f"{index}.png").write_bytes(png(number))
        for change in changes:
            change(folder / "images")

    return made


def put(name: str, data: bytes) -> Files:
    """A file in place of another."""
    return lambda root: Path(root, name).write_bytes(data)


def folder(*more: str, hold_out: str = "sketch") -> list[str]:
    settings = ("data.name=folder", "data.path=images", "data.size=8", *more)
    return [*sets(*settings), "--hold-out", hold_out]


def _link(name: str, to: str) -> Files:
    return lambda root: Path(root, name).symlink_to(to)


IMAGES = [
    Row("no folder", folder(), words=["images"]),
    Row("a file for the folder", folder(), lambda f: (f / "images").write_text("x"), words=["images"]),
    Row("an empty folder", folder(), lambda f: (f / "images").mkdir(), words=["images"]),
    Row(
        "images without classes",
        folder(),
        lambda f: ((f / "images/a").mkdir(parents=True), (f / "images/a/0.png").write_bytes(png())),
        words=["domain/class/file"],
    ),
    Row("a single domain", folder(), images(domains=["sketch"])),
    Row("a single class", folder(), images(classes=["cat"])),
    Row("an empty class", folder(), images(lambda root: (root / "art/bird").mkdir()), expects="clean"),
    Row("a domain without images", folder(), images(lambda root: (root / "ink").mkdir()), words=["ink"]),
    Row("a broken image", folder(), images(put("art/cat/3.png", png()[:40])), words=["art/cat/3.png"]),
    Row(
        "three broken images",
        folder(),
        images(*(put(f"art/cat/{n}.png", png()[:40]) for n in (1, 3, 5))),
        words=["1.png", "3.png", "5.png"],
    ),
    Row("an empty image", folder(), images(put("art/cat/3.png", b"")), words=["art/cat/3.png"]),
    Row("a text as an image", folder(), images(put("art/cat/3.png", b"hello")), words=["art/cat/3.png"]),
    Row("an image of 2e8 pixels", folder(), images(put("art/cat/3.png", bomb(14_000))), words=["art/cat/3.png"]),
    Row("an image of 1.6e8 pixels", folder(), images(put("art/cat/3.png", bomb(12_800))), expects="clean"),
    Row(
        "a folder that is called an image",
        folder(),
        images(lambda root: (root / "art/cat/9.png").mkdir()),
        expects="clean",
    ),
    Row("a dangling link", folder(), images(_link("art/cat/9.png", "nowhere")), words=["9.png"]),
    Row("a link to itself", folder(), images(_link("art/cat/9.png", "9.png")), words=["9.png"]),
    Row("a domain that links to itself", folder(), images(_link("ink", "ink")), expects="clean"),
    Row(
        "DICOM beside PNG",
        folder(),
        images(put("art/cat/9.dcm", bytes(128) + b"DICM")),
        expects="clean",
        words=["1 DICOM"],
    ),
    Row(
        "twins that differ in case",
        folder(),
        images(domains=["Berlin", "berlin", "BERLIN ", "sketch"]),
        words=["Berlin", "berlin"],
    ),
    Row(
        "a domain with mathematics",
        folder(hold_out="a$\\frac$"),
        images(domains=["a$\\frac$", "sketch"]),
        expects="fine",
    ),
    Row("a domain with a newline", folder(hold_out="a\nb"), images(domains=["a\nb", "sketch"]), expects="clean"),
    Row("a domain that is no text", folder(), images(domains=["a\udcff", "sketch"]), expects="clean"),
    Row(
        "a domain that is no text, held out",
        folder(hold_out="a\udcff"),
        images(domains=["a\udcff", "sketch"]),
        expects="clean",
    ),
    Row("a domain called all", folder(hold_out='"all"'), images(domains=["all", "sketch"]), expects="clean"),
    Row("a domain with a comma", folder(hold_out='"a,b"'), images(domains=["a,b", "sketch"]), expects="fine"),
    Row("a domain called 1e3", folder(hold_out="1e3"), images(domains=["1e3", "sketch"]), expects="fine"),
    Row("a domain called 007", folder(hold_out="007"), images(domains=["007", "sketch"]), expects="fine"),
    Row("a domain called true", folder(hold_out="true"), images(domains=["true", "sketch"]), expects="fine"),
    Row("a domain called nan", folder(hold_out="nan"), images(domains=["nan", "sketch"]), expects="fine"),
    Row(
        "a domain with brackets",
        folder(hold_out="[red]x[/red]"),
        images(domains=["[red]x[/red]", "sketch"]),
        expects="clean",
    ),
    Row("a domain of HTML", folder(hold_out="<b>&"), images(domains=["<b>&", "sketch"]), expects="fine"),
    Row("images of 4097 pixels", folder("data.size=4097"), images(), words=["data.size"]),
    Row("images of 0 pixels", folder("data.size=0"), images(), words=["data.size"]),
    Row("two channels", folder("data.channels=2"), images(), words=["data.channels"]),
    Row("an unknown frozen network", folder("data.frozen=efficientnet-lite-0"), images(), words=["frozen"]),
    Row("no path", sets("data.name=folder"), words=["data.path"]),
    Row("a path that is empty", sets("data.name=folder", 'data.path=""'), words=["data.path"]),
    Row("a path with a NUL", sets("data.name=folder", 'data.path="a\\u0000b"')),
    Row("a path that is a number", sets("data.name=folder", "data.path=5"), words=["data.path"]),
]

# Parquet -------------------------------------------------------------------------------------------


def parquet(**columns: Any) -> Files:
    """A file ``table.parquet`` of 24 images, the first half of one domain, of two classes in turn."""

    def made(folder: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet as pq

        held: dict[str, Any] = {
            "image": [png(n) for n in range(24)],
            "domain": ["photo"] * 12 + ["sketch"] * 12,
            "label": ["cat", "dog"] * 12,
        }
        held |= columns
        pq.write_table(
            pa.table({name: values for name, values in held.items() if values is not None}), folder / "table.parquet"
        )

    return made


def cut(files: Files, keep: Callable[[bytes], bytes]) -> Files:
    def made(folder: Path) -> None:
        files(folder)
        table = folder / "table.parquet"
        table.write_bytes(keep(table.read_bytes()))

    return made


def doubled(folder: Path) -> None:
    """A table with two columns of labels."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    columns = [[png(n) for n in range(8)], ["photo", "sketch"] * 4, ["cat"] * 8, ["dog"] * 8]
    pq.write_table(pa.table(columns, names=["image", "domain", "label", "label"]), folder / "table.parquet")


TABLE = [*sets("data.name=parquet", "data.path=table.parquet", "data.size=8"), "--hold-out", "sketch"]

TABLES = [
    Row("a sound table", TABLE, parquet(), expects="fine"),
    Row("no table", TABLE, words=["table.parquet"]),
    Row("a text as a table", TABLE, lambda f: (f / "table.parquet").write_text("hello"), words=["table.parquet"]),
    Row("an empty file", TABLE, lambda f: (f / "table.parquet").write_bytes(b""), words=["table.parquet"]),
    Row("a table that is cut off", TABLE, cut(parquet(), lambda data: data[:-100]), words=["table.parquet"]),
    Row(
        "a table with noise in it",
        TABLE,
        cut(parquet(), lambda data: data[:100] + bytes(200) + data[300:]),
        words=["table.parquet"],
    ),
    Row("a table without labels", TABLE, parquet(label=None), words=["label"]),
    Row("a table without domains", TABLE, parquet(domain=None), words=["domain"]),
    Row("a table without images", TABLE, parquet(image=None), words=["image"]),
    Row("labels that are NaN", TABLE, parquet(label=[0.0, 1.0, float("nan"), 1.0] * 6), words=["label", "row"]),
    Row("labels that are fractions", TABLE, parquet(label=[0.25, 0.5, 0.75, 1.0] * 6), words=["label", "row"]),
    Row("labels that are missing", TABLE, parquet(label=["cat", "dog", None, "dog"] * 6), words=["label"]),
    Row("labels that are empty", TABLE, parquet(label=["cat", "dog", "", "dog"] * 6), words=["label"]),
    Row("labels that are lists", TABLE, parquet(label=[[0], [1]] * 12), words=["label"]),
    Row("labels that are twins", TABLE, parquet(label=["cat", "Cat", "dog", "dog "] * 6), words=["Cat"]),
    Row("a single label", TABLE, parquet(label=["cat"] * 24)),
    Row("domains that are missing", TABLE, parquet(domain=["sketch"] * 12 + [None] * 12), words=["domain"]),
    Row("domains that are numbers", [*TABLE[:-1], "1"], parquet(domain=[0] * 12 + [1] * 12), expects="fine"),
    Row("domains that are NaN", TABLE, parquet(domain=[1.0] * 12 + [float("nan")] * 12), words=["domain"]),
    Row(
        "domains that are twins",
        TABLE,
        parquet(domain=["photo"] * 6 + ["Photo"] * 6 + ["sketch"] * 6 + ["sketch "] * 6),
        words=["Photo"],
    ),
    Row("images that are numbers", TABLE, parquet(image=list(range(24))), words=["image"]),
    Row("images that are missing", TABLE, parquet(image=[*(png(n) for n in range(23)), None]), words=["image"]),
    Row("images that are texts", TABLE, parquet(image=["0.png"] * 24), words=["image"]),
    Row("images that are broken", TABLE, parquet(image=[*(png(n) for n in range(23)), b"x"]), words=["row 23"]),
    Row("a table of no rows", TABLE, parquet(image=[], domain=[], label=[])),
    Row("a column twice", TABLE, doubled),
    Row("a folder without a table", [word.replace("table.parquet", ".") for word in TABLE]),
]


# The machine, and Python ---------------------------------------------------------------------------


def script(text: str) -> Sequence[str]:
    return ["import fedshift, numpy as np\nfrom fedshift.runs.progress import Progress\n" + text]


PLACES = [
    Row("no HOME", sets("run.engine=auto"), expects="fine", environment={"HOME": None, "FEDSHIFT_CACHE": None}),
    Row(
        "no HOME, and a user without a name",
        sets("run.engine=auto"),
        expects="fine",
        environment={"HOME": None, "FEDSHIFT_CACHE": None},
        probe="nameless",
    ),
    Row(
        "no HOME, without a name, the engines measured",
        ["bench", "case.toml"],
        expects="fine",
        environment={"HOME": None, "FEDSHIFT_CACHE": None},
        probe="nameless",
        slow=True,
    ),
    Row(
        "a HOME that is not there",
        sets("run.engine=auto"),
        expects="fine",
        environment={"HOME": "/proc/none", "FEDSHIFT_CACHE": None},
    ),
    Row("a cache that is a file", sets("run.engine=auto"), expects="fine", environment={"FEDSHIFT_CACHE": "case.toml"}),
    Row(
        "a cache that cannot be made",
        ["bench", "case.toml"],
        expects="fine",
        environment={"FEDSHIFT_CACHE": "/proc/none/x"},
        slow=True,
    ),
    Row("a terminal of no width", run(), expects="fine", environment={"COLUMNS": "0"}),
    Row("a terminal of 10 columns", run(), expects="fine", environment={"COLUMNS": "10"}),
    Row("threads that are no number", run(), expects="fine", environment={"OMP_NUM_THREADS": "many"}),
    Row("a run nobody reads", run(), expects="fine", closed=True),
    Row(
        "a Path and NumPy values",
        script(
            'fedshift.run(Path("case.toml"), progress=Progress(), seed=np.int64(3), out=Path("runs"), '
            'settings={"train.lr": np.float32(0.5), "model.hidden": np.array([4, 5])})'
        ),
        expects="fine",
        probe="python",
    ),
    Row(
        "an array of seeds",
        script('fedshift.compare(Path("case.toml"), progress=Progress(), seed=np.arange(2), hold_out=("light",))'),
        expects="fine",
        probe="python",
    ),
    Row("an unknown option in Python", script('fedshift.run("case.toml", lr=3)'), words=["lr"], probe="python"),
    Row("None as an experiment", script("fedshift.run(None)"), probe="python"),
    Row("no experiments", script("fedshift.compare([])"), probe="python"),
    Row(
        "a class for an instance",
        script('fedshift.run("case.toml", method=fedshift.FedSR)'),
        words=["method"],
        probe="python",
    ),
    Row("a set of seeds", script('fedshift.compare("case.toml", seed={0, 1})'), words=["seed"], probe="python"),
    Row(
        "a function for a setting",
        script('fedshift.run("case.toml", settings={"train.lr": len})'),
        words=["train.lr"],
        probe="python",
    ),
    Row("a number for a field", script('fedshift.run("case.toml", settings={3: 4})'), probe="python"),
    Row("a list for settings", script('fedshift.run("case.toml", settings=[3])'), words=["settings"], probe="python"),
    Row(
        "a row that there is none of",
        script('fedshift.load("runs").accuracy("fedsr")'),
        finished,
        words=["fedsr"],
        probe="python",
    ),
    Row(
        "a client that there is none of",
        script('from fedshift.runs.run import Run\nRun(fedshift.load("runs").runs[0].folder).model("nobody")'),
        finished,
        words=["nobody"],
        probe="python",
    ),
    Row(
        "a model of other inputs",
        script('import torch\nfedshift.load("runs").runs[0].model()(torch.zeros(2, 3, 4, 4))'),
        finished,
        words=["shape"],
        probe="python",
    ),
    Row("loading a number", script("fedshift.load(5)"), probe="python"),
]

ROWS: list[Row] = [*SETTINGS, *DOCUMENTS, *REPORTS, *PLUGINS, *IMAGES, *TABLES, *PLACES]
