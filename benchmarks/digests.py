"""Digests of what runs leave behind, so that a redesign can show that it changes no number.

Every method of the catalogue runs for three rounds on the tests' tiny data, in float64 by the sequential engine on one
thread, and the main job's settings for a few rounds. Only the command line and the run folder are used, so that two
versions of the code can be compared however they are built inside:

    python benchmarks/digests.py write before.json          # in the old checkout
    python benchmarks/digests.py compare before.json        # in the new one

What a later version adds to a record beside what was there is left out by ``ADDED``. Of messages.json the largest
message of each direction is compared; versions before the ledger list no other.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from typing import Any

from fedshift.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
TINY = """
name = "tiny"
[data]
name = "tiny"
[model]
name = "cnn"
norm = "batch"
channels = [2, 3]
dim = 4
[train]
rounds = 3
steps = 2
batch = 4
lr = 0.1
precision = "float64"
[evaluate]
every = 1
[run]
device = "cpu"
engine = "sequential"
threads = 1
"""
INDEX = ["index.epochs=2", "index.feedforward=16", "index.encoder.size=64"]
BASES = ("fedprox", "fedbn", "feddyn", "moon", "fediir", "fedcir", "fedavgm")
CASES: dict[str, list[str]] = {}  # settings beside method.name, by a label that starts with the method's name
METHODS = [
    *("centralised", "single", "fedavg", "fedprox", "fedbn", "fedsr", "fedl2r", "fedcmi", "fedcir", "fedreg"),
    *("fedalign", "fraug", "head-retraining", "client2vec", "fedpin", "fedpin-lambda-0", "fedpin-gamma-0"),
    *("fedpin-gm", "fedpin-gm-ft", "fedpin-gm-l2", "fedavgm", "feddyn", "moon", "fedlc", "fediir", "ditto"),
]
ALONE = [  # carried out once
    *("scaffold", "drfa", "fedgen", "fedproc", "fedpac", "fedrep", "fedrod", "fedsdr", "ftfa", "pfedavg", "pfedme"),
    *("partialfed", "partialfed-adaptive", "fedadg", "fedadagrad", "fedadam", "fedyogi", "fraug-code"),
]
for method in METHODS:
    own = [f"method.{value}" for value in INDEX] if method == "client2vec" else []
    own += ["method.alpha=0.001"] if method.startswith("fedpin") else []
    CASES[method] = own
    CASES[f"{method} weighted half"] = [*own, "train.participation=0.5"] + (
        ["method.base.weighting=samples"] if method == "client2vec" else ["method.weighting=samples"]
    )
for method in ALONE:
    CASES[method] = ["train.lr=0.01", *(["train.optimiser=sgd", "train.momentum=0"] if method == "scaffold" else [])]
for base in BASES:
    CASES[f"client2vec on {base}"] = [*(f"method.{value}" for value in INDEX), f"method.base.name={base}"]
CASES["client2vec federated"] = [*(f"method.{value}" for value in INDEX), "method.index.strategy=federated"]
CASES["client2vec federated"] += ["method.index.local_epochs=1"]
for index in ("feature-average", "class-prototypes", "model-weights"):
    CASES[f"client2vec {index}"] = [f"method.index.name={index}"]
CASES["fedsr official"] = ["method.reference_scope=client", "method.cmi_scale=true", "method.l2r_form=norm"]
CASES["fedpin features"] = ["method.alpha=0.001", "method.anchor=features", "method.personal_unit=epochs"]
CASES["fedavg in-domain kept"] = ["protocol.name=in-domain", "method.optimiser_state=kept", "method.bn=reestimate"]
CASES["moon plain in-domain"] = ["protocol.name=in-domain", "method.projection=none", "method.bn=local"]

ADDED = ("chain",)  # in records


def run(out: Path, experiment: str, assignments: list[str]) -> Path:
    """Carry out one run; returns its folder."""
    settings = [word for value in assignments for word in ("--set", value)]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        app(["run", experiment, *settings, "--out", str(out)], standalone_mode=False)
    (folder,) = (file.parent for file in out.rglob("experiment.toml"))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Records, weights and message signatures of a run, each as a digest."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    records = [{name: value for name, value in record.items() if name not in ADDED} for record in records]
    messages: dict[str, Any] = json.loads((folder / "messages.json").read_text())
    messages.pop("seal", None)
    signatures = {
        exchange: {direction: _largest(about) for direction, about in ways.items() if about["tensors"]}
        for exchange, ways in messages.items()
    }
    return {
        "records": _digest(json.dumps(records, sort_keys=True).encode()),
        "weights": _digest((folder / "weights.safetensors").read_bytes()),
        "messages": _digest(json.dumps(signatures, sort_keys=True).encode()),
    }


def _largest(about: dict[str, Any]) -> dict[str, Any]:
    """The bytes of a direction's largest message, and the type and shape of its tensors in words."""
    tensors = {
        name: tensor if isinstance(tensor, str) else f"{tensor['type']} {tensor['shape']}"
        for name, tensor in about["tensors"].items()
    }
    return {"bytes": about.get("largest", about["bytes"]), "tensors": tensors}


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def everything(only: str = "") -> dict[str, dict[str, str]]:
    """The digests of every case."""
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        experiment = Path(scratch) / "tiny.toml"
        plugin = ROOT / "tests" / "tiny.py"
        experiment.write_text(f'plugins = ["{plugin}"]\n{TINY}', encoding="utf-8")
        for label, settings in CASES.items():
            if only not in label:
                continue
            hold_out = [] if "protocol.name=in-domain" in settings else ["protocol.hold_out=light"]
            name = [f"method.name={label.split(' ')[0]}"]
            folder = run(Path(scratch) / label, str(experiment), [*name, *hold_out, *settings])
            found[label] = digests(folder)
            print(label, found[label], flush=True)
        for method in ("fedavg", "fedsr"):
            label = f"main job {method}"
            if only in label:
                settings = [f"method.name={method}", "train.rounds=20", "evaluate.every=10"]
                settings += ["run.engine=sequential", "run.threads=1"]
                found[label] = digests(run(Path(scratch) / label, "rotated-mnist", settings))
                print(label, found[label], flush=True)
    return found


def main() -> None:
    """Write the digests, or compare them with those written before."""
    what, file, *only = sys.argv[1:]
    found = everything(*only)
    if what == "write":
        Path(file).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return
    before = json.loads(Path(file).read_text(encoding="utf-8"))
    changed = [
        f"{label}: {kind}" for label, kinds in found.items() for kind in kinds if kinds[kind] != before[label][kind]
    ]
    print("\n".join(changed) or f"all {len(found)} runs are equal in records, weights and messages")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
