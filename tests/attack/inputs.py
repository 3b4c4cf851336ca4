"""Bad inputs, each a row: files of the user, a command line, and what must come of it."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
    """

    name: str
    arguments: Sequence[str]
    files: Files = lambda folder: None
    expects: Literal["error", "fine", "clean"] = "error"
    words: Sequence[str] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    closed: bool = False
    probe: str = "plain"


def run(*more: str) -> list[str]:
    return ["run", "case.toml", *more]


def sets(*assignments: str) -> list[str]:
    return run(*(word for assignment in assignments for word in ("--set", assignment)))


def document(text: str | bytes) -> Files:
    """An experiment file ``mine.toml``."""
    return lambda folder: (folder / "mine.toml").write_bytes(text.encode() if isinstance(text, str) else text)


MINE = ["run", "mine.toml"]
GRID_TOML = f"""
data = {{name = "tiny"}}
protocol = {{hold_out = "light"}}
seed = {list(range(1000))}
train = {{lr = {[1 / n for n in range(1, 1001)]}}}
"""

# The command line and its settings ----------------------------------------------------------------

SETTINGS = [
    Row("unknown method", run("--method", "fedsrr"), words=["'fedsrr'", "fedsr"]),
    Row("the same method twice", ["compare", "case.toml", "--method", "fedavg,fedavg"]),
    Row("unknown command", ["rnu"]),
    Row("a table set to a number", sets("train=3"), words=["train"]),
    Row("lr is NaN", sets("train.lr=nan"), words=["train.lr"]),
    Row("a batch of 2**70", sets(f"train.batch={2**70}"), expects="clean"),
    Row("several seeds where one is meant", run("--seed", "0,1"), words=["compare"]),
    Row("a model of 1e8 numbers", sets("model.dim=100000000"), words=["model"]),
    Row("a device that is not there", run("--device", "cuda:99"), words=["cuda:99"]),
    Row("1e9 workers", [*sets("run.engine=workers", "run.workers=1000000000"), "--dry-run"], expects="clean"),
    Row("1e9 clients", sets("partition.name=iid", "partition.clients=1000000000"), words=["clients"]),
    Row("alpha of 1e-300", sets("partition.name=dirichlet", "partition.alpha=1e-300"), expects="clean"),
    Row("a name that climbs", run("--name", "../up"), words=["name"]),
    Row("a name with a NUL", sets('name="a\\u0000b"'), words=["name"]),
    Row("a name that is not a text", run("--name", "a\udcffb"), expects="clean"),
    Row("a name of 300 letters", run("--name", "x" * 300), words=["name"]),
    Row("a folder for runs that is a file", run("--out", "case.toml")),
    Row("a folder for runs that cannot be made", run("--out", "/proc/none/x")),
]

# Experiment files ---------------------------------------------------------------------------------

DOCUMENTS = [
    Row("no TOML", MINE, document("name = "), words=["mine.toml"]),
    Row("no UTF-8", MINE, document(b'name = "\xff"'), words=["mine.toml"]),
    Row("nested 100,000 deep", MINE, document("name = " + "[" * 100_000 + "]" * 100_000)),
    Row("a grid of 1e6 runs", ["compare", "mine.toml", "--dry-run"], document(GRID_TOML), expects="clean"),
]

# Run folders and reports ---------------------------------------------------------------------------


def finished(folder: Path) -> None:
    """Stands for a run that the test makes first."""


REPORTS = [
    Row("a report of nothing", ["report", "none"], words=["none"]),
    Row(
        "a report into a missing folder",
        ["report", "runs", "--to", "no/such/report.html"],
        finished,
        expects="clean",
        words=["no/such"],
    ),
    Row("a report nobody reads", ["report", "runs"], finished, expects="fine", closed=True),
    Row("a run that exists", run(), finished, words=["exists"]),
]

# Plugins -------------------------------------------------------------------------------------------

HEAD = """
import fedshift
from dataclasses import dataclass
import torch
from fedshift.core.contract import Term
from fedshift.methods.fedavg import FedAvg
"""


def plugin(text: str | bytes) -> Files:
    """A plugin ``mine.py``."""
    return lambda folder: (folder / "mine.py").write_bytes(text.encode() if isinstance(text, str) else text)


def method(body: str) -> Files:
    """A plugin with a method ``mine``, that is FedAvg with another body."""
    return plugin(f'{HEAD}\n@fedshift.METHODS.register("mine")\nclass Mine(FedAvg):\n    """A method."""\n{body}')


def samples(change: str) -> Files:
    """A plugin with a data set ``mine``, the tiny one changed."""
    return plugin(f"""
{HEAD}
from dataclasses import replace
from fedshift.datasets.dataset import Dataset
Tiny = fedshift.DATASETS.get("tiny")
@fedshift.DATASETS.register("mine")
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
RISK = "    def risk(self, net, batch, context):\n        risk = super().risk(net, batch, context)\n        "
PIXELS = """
    def terms(self):
        return {f"p{i}": Term(lambda net, batch, context, i=i: batch.x.flatten()[i]) for i in range(20)}
"""

PLUGINS = [
    Row("no such plugin", run(*WITH), words=["mine.py"]),
    Row("a plugin that raises", run(*WITH), plugin("1/0"), words=["mine.py", "ZeroDivisionError"]),
    Row("a plugin that exits", run(*WITH), plugin("raise SystemExit(3)"), words=["mine.py"]),
    Row("a loss that is NaN", MY_METHOD, method(RISK + "return risk * float('nan')")),
    Row("a loss that is a vector", MY_METHOD, method(RISK + "return risk * torch.ones(3)")),
    Row("a loss of pixels as terms", MY_METHOD, method(PIXELS), words=["p0", "16"]),
    Row("inputs that are NaN", MY_DATA, samples("data.x[7] = float('nan')"), words=["nan", "sample 7"]),
]

# Images --------------------------------------------------------------------------------------------


def png(seed: int = 0) -> bytes:
    """A small image."""
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A transparent PNG of a few kilobytes with that many pixels in height and width."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(1 + side // 8)
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", b"\0\0"), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def images(*changes: Files, domains: Sequence[str] = ("photo", "sketch", "art")) -> Files:
    """A folder ``images`` of domains, classes and images, and changes of it."""

    def made(folder: Path) -> None:
        number = 0
        for domain in domains:
            for label in ("cat", "dog"):
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


IMAGES = [
    Row("a broken image", folder(), images(put("art/cat/3.png", png()[:40])), words=["art/cat/3.png"]),
    Row("an image of 2e8 pixels", folder(), images(put("art/cat/3.png", bomb(14_000))), words=["art/cat/3.png"]),
    Row("a link to itself", folder(), images(lambda f: (f / "art/cat/9.png").symlink_to("9.png")), words=["9.png"]),
    Row(
        "DICOM beside PNG",
        folder(),
        images(put("art/cat/9.dcm", bytes(128) + b"DICM")),
        expects="clean",
        words=["1 .dcm"],
    ),
    Row(
        "a domain with mathematics",
        folder(hold_out="a$\\frac$"),
        images(domains=["a$\\frac$", "sketch"]),
        expects="fine",
    ),
    Row("a domain that is not a text", folder(), images(domains=["a\udcff", "sketch"]), expects="clean"),
    Row("a domain of HTML", folder(hold_out="<b>&"), images(domains=["<b>&", "sketch"]), expects="fine"),
]

# The machine, and Python ---------------------------------------------------------------------------


PLACES = [
    Row(
        "no HOME, and a user without a name",
        sets("run.engine=auto"),
        expects="fine",
        environment={"HOME": None, "FEDSHIFT_CACHE": None},
        probe="nameless",
    ),
    Row("a terminal of 10 columns", run(), expects="fine", environment={"COLUMNS": "10"}),
    Row("threads that are no number", run(), expects="fine", environment={"OMP_NUM_THREADS": "many"}),
    Row("a run nobody reads", run(), expects="fine", closed=True),
    Row(
        "an unknown option",
        ['import fedshift; fedshift.run("case.toml", lr=3)'],
        words=["lr"],
        probe="python",
    ),
]

ROWS: list[Row] = [*SETTINGS, *DOCUMENTS, *REPORTS, *PLUGINS, *IMAGES, *PLACES]
