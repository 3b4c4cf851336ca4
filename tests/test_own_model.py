"""Modules of the user's as models: kept, trusted, and run as those of the catalogue are, by every engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedshift
import fresh
from conftest import Make, interrupt_after, results, simulate
from fedshift import files
from fedshift.content import digest
from fedshift.core.model import ModelBuilder
from fedshift.errors import FedshiftError
from fedshift.manifest import digested_json
from fedshift.models.kept import meaning_of, read
from fedshift.models.own import Own
from fedshift.runs import runner, scheduling
from fedshift.runs.events import Progress
from fedshift.runs.origin import RUN, UntrustedError
from fedshift.runs.run import Run
from fedshift.streams import Streams
from fedshift.study import api
from fresh import ok
from refusal import refuses
from test_engines import engine_named
from test_methods import assert_same, tensors_of

SLOPE = 0.1


class Net(nn.Module):
    """A whole classifier of tiny images, with all that a module may have."""

    def __init__(self, width: int = 5, drop: float = 0.2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.features = nn.Sequential(nn.Linear(3 * 8 * 8, width), nn.Dropout(drop))
        self.classify = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(F.leaky_relu(self.features(self.body(x)), SLOPE))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


def seeded(seed: int = 0, **options: Any) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(**options)


def builder(model: Own, shape: tuple[int, ...] = (1, 10, 10), seed: int = 0) -> ModelBuilder:
    return ModelBuilder(model, shape, 3, Streams(seed), clients=2)


# What it makes --------------------------------------------------------------------------------------


def test_a_module_s_weights_are_the_initial_ones_whatever_the_seed():
    net = seeded()
    for seed in (0, 1):
        encoder = builder(fedshift.own_model(net, head="classify"), seed=seed).encoder()
        state = encoder.state_dict()
        assert "classify.weight" not in state
        assert all(tensor.equal(net.state_dict()[name]) for name, tensor in state.items())
    assert isinstance(net.classify, nn.Linear)  # the user's own is left alone


@pytest.mark.parametrize("what", [Net, lambda: Net(drop=0.0)], ids=["class", "lambda"])
def test_a_class_or_function_is_drawn_from_the_seed_and_no_global_generator(what: Callable[[], nn.Module]):
    before = torch.get_rng_state()
    model = fedshift.own_model(what, head="classify")
    one, again, other = (builder(model, seed=seed).encoder().body[0].weight for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
    assert torch.get_rng_state().equal(before)


def test_its_width_is_found_and_a_linear_layer_gives_what_is_asked_for():
    model, x = fedshift.own_model(Net, head="classify"), torch.zeros(2, 1, 10, 10)
    assert builder(model).dim == 5
    assert builder(model).encoder().eval()(x).shape == (2, 5)
    body = builder(model).gaussian_encoder().eval()
    assert body.body.projection.weight.shape == (10, 5)
    assert body(x)[1].shape == (2, 5)
    assert builder(fedshift.own_model(Net, head="classify", dim=7)).encoder().projection.weight.shape == (7, 5)
    whole = builder(fedshift.own_model(partial(Net, width=8), head="classify", dim=4)).gaussian_encoder()
    assert type(whole.body) is Net  # 8 = 2 * 4 features are what is requested


# Whole classifiers ----------------------------------------------------------------------------------


class Ended(Net):
    """A classifier that ends in logits, or in what a softmax or log-softmax makes of them."""

    def __init__(self, end: str = "logits") -> None:
        super().__init__(drop=0.0)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return {"logits": logits, "softmax": logits.softmax(dim=1), "log": logits.log_softmax(dim=1)}[self.end]


@pytest.mark.parametrize("end", ["logits", "softmax", "log"])
def test_of_a_whole_classifier_the_layer_that_gives_the_logits_is_found(end: str):
    """The encoder gives what this layer is given, whatever follows it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Ended(end)
    x = torch.randn(4, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    found, named = (builder(fedshift.own_model(net, head=head)).encoder().eval() for head in ("auto", "classify"))
    expected = F.leaky_relu(net.eval().features(net.body(x)), SLOPE)
    torch.testing.assert_close(found(x), expected)
    assert found(x).equal(named(x))
    for head in ("auto", "classify"):
        assert fedshift.own_model(net, head=head).whole_classifier_reason((1, 10, 10), 3) == ""
    why = fedshift.own_model(net).whole_classifier_reason((1, 10, 10), 3)
    assert why.startswith("Ended gives 3 numbers for 3 classes")
    assert ("softmax" in why) == (end != "logits")
    assert "head='classify'" in why


def test_an_encoder_is_not_taken_for_a_classifier():
    """Neither one of another width, nor one whose numbers are no linear layer's; probabilities of any number are."""
    layers = [nn.Flatten(), nn.Linear(100, 3)]
    nn.init.ones_(layers[1].bias)  # so that a ReLU changes nothing of what zeros give
    encoders = [([*layers], 4), ([*layers, nn.ReLU()], 3), ([nn.Flatten(), nn.Linear(100, 3), nn.BatchNorm1d(3)], 3)]
    for modules, classes in encoders:
        assert fedshift.own_model(nn.Sequential(*modules)).whole_classifier_reason((1, 10, 10), classes) == ""
    assert "head='1'" in fedshift.own_model(nn.Sequential(*layers)).whole_classifier_reason((1, 10, 10), 3)
    many = nn.Sequential(*layers, nn.Softmax(dim=1))
    assert "after a softmax" in fedshift.own_model(many).whole_classifier_reason((1, 10, 10), 20)
    with refuses("model.head = 'auto'", "0, 1, 2"):
        builder(fedshift.own_model(nn.Sequential(*encoders[1][0]), head="auto")).encoder()


@pytest.mark.parametrize(("method", "client"), [("fedavg", None), ("fedbn", 1)])
def test_a_module_comes_back_with_its_own_names(make: Make, method: str, client: int | None):
    """As the run predicts: a whole classifier gives the logits, an encoder the features."""
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    for number, end in enumerate(["logits", "softmax", "log"]):
        model = fedshift.own_model(partial(Ended, end), head="auto")
        changes = {"method.name": method, "train.rounds": 2, "name": f"{method}{number}"}
        trained = runner.start(make(changes).replace(model=model), Progress()).model(client=client)
        module = trained.own_module()
        mine = Ended(end).eval()
        assert list(module.state_dict()) == list(mine.state_dict())
        mine.load_state_dict(module.state_dict())
        given = mine(x).log() if end == "softmax" else mine(x).log_softmax(dim=1)
        torch.testing.assert_close(given, trained(x), rtol=1e-5, atol=1e-5)
        assert module(x).equal(mine(x))
    encoder = fedshift.own_model(Net, head="classify")
    trained = runner.start(make({"train.rounds": 1, "method.name": "fedsr"}).replace(model=encoder), Progress()).model()
    with refuses("more than a linear layer", "'classify'", "run.model()"):
        trained.own_module()
    with refuses("model 'cnn'", "state_dict()"):
        runner.start(
            make({"train.rounds": 1, "method.name": "fedavg", "model.name": "cnn"}), Progress()
        ).model().own_module()


def test_an_encoder_comes_back_from_a_method_that_puts_layers_behind_it(make: Make):
    body = nn.Sequential(nn.Flatten(), nn.Linear(100, 5), nn.ReLU())
    run = runner.start(
        make({"train.rounds": 1, "method.name": "fedsr"}).replace(model=fedshift.own_model(body)), Progress()
    )
    module = run.model().own_module()
    assert list(module.state_dict()) == list(body.state_dict())
    expected = {name.removeprefix("encoder.body.body."): tensor for name, tensor in run.weights.items()}
    assert all(tensor.equal(expected[name]) for name, tensor in module.state_dict().items())


def test_a_module_is_a_model_and_one_that_looks_whole_is_reported():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    sites = {site: (x, torch.arange(40) % 2) for site in ("a", "b")}
    module = nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(dim=1))
    requested: dict[str, Any] = {"data": sites, "method": "fedavg", "rounds": 1, "progress": Progress()}
    table = fedshift.compare(model=module, **requested)
    assert table.runs[0].table["model"]["path"] == fedshift.own_model(module).path
    (note,) = [note for note in table.notes() if "whole classifier" in note]
    assert "Sequential gives 2 numbers for 2 classes" in note
    assert "own_model(..., head='0')" in note
    for made in (lambda: nn.Linear(4, 6), partial(nn.Linear, 4, 6)):
        assert not [note for note in fedshift.compare(model=made, **requested).notes() if "whole classifier" in note]
    with refuses("model = ", "model=module"):
        fedshift.compare(model=3, **requested)


# Engines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedsr", "fedbn", "fraug"])
def test_every_engine_gives_the_same(make: Make, method: str):
    """In float64 to 1e-9 where it is stacked, and the same bits by workers."""
    changes = {"method.name": method, "train.precision": "float64", "train.rounds": 3, "data.fewer": 2}
    changes |= {"train.lr": 0.02, "train.momentum": 0.0}
    experiment = make(changes).replace(model=fedshift.own_model(seeded(), head="classify"))
    one = simulate(experiment)
    told: list[str] = []
    with engine_named("vectorised", told) as engine:
        stacked = simulate(experiment, engine=engine)
    assert not told
    with engine_named("workers") as engine:
        assert_same(one, simulate(experiment, engine=engine))
    for name, tensor in tensors_of(one).items():
        torch.testing.assert_close(tensors_of(stacked)[name], tensor, rtol=1e-9, atol=1e-9)


def test_a_module_up_to_its_head_is_stacked(make: Make):
    changes = {"method.name": "fedavg", "train.precision": "float64", "train.rounds": 2, "train.lr": 0.02}
    experiment = make(changes).replace(model=fedshift.own_model(partial(Ended, "log"), head="auto"))
    told: list[str] = []
    with engine_named("vectorised", told) as engine:
        stacked = tensors_of(simulate(experiment, engine=engine))
    assert not told
    for name, tensor in tensors_of(simulate(experiment)).items():
        torch.testing.assert_close(stacked[name], tensor, rtol=1e-9, atol=1e-9)


# What it means --------------------------------------------------------------------------------------


def variant(source: str) -> Any:
    """The class of a text that is not a file, as typed into a prompt."""
    names: dict[str, Any] = {"__name__": "typed", "nn": nn}
    exec(source, names)
    return names["Net"]


TYPED = """
SCALE, OTHER = 2.0, 3.0
def scaled(x): return SCALE * x
class Net(nn.Module):
    deep = 1
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        return scaled(self.fc(x))
"""


def test_a_digest_follows_what_decides_and_nothing_else():
    one = meaning_of(variant(TYPED))
    assert meaning_of(variant(TYPED)) == one
    assert meaning_of(variant("# a comment\n\nUNUSED = 1\n" + TYPED)) == one
    for before, after in {
        "SCALE, OTHER = 2.0": "SCALE, OTHER = 2.5",  # a number that a function reads, which a method calls
        "SCALE * x": "SCALE + x",
        "deep = 1": "deep = 2",
        "nn.Linear(4, 2)": "nn.Linear(4, 3)",
        "class Net(nn.Module)": "class Net(nn.Sequential)",
        "self.fc(x))": "self.fc(x) + 0)",
    }.items():
        assert before in TYPED
        assert meaning_of(variant(TYPED.replace(before, after))) != one, after
    assert meaning_of(variant(TYPED.replace("OTHER = 2.0, 3.0", "OTHER = 2.0, 4.0"))) == one


def test_the_digest_of_a_module_covers_weights_attributes_and_ties():
    assert meaning_of(seeded()) == meaning_of(seeded())
    marked, tied, both = seeded(), nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    marked.temperature = 0.5  # type: ignore[assignment]  # as users do
    tied.append(tied[0])
    both.load_state_dict(tied.state_dict())
    others = [seeded(1), seeded(drop=0.3), seeded().requires_grad_(False), seeded().double(), marked, tied, both]
    assert len({*map(meaning_of, [seeded(), *others])}) == len(others) + 1


def test_functions_count_with_what_they_close_over():
    def maker(width: int, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, width, **options))

    one = meaning_of(maker(3, {"bias": True}))
    assert one == meaning_of(maker(3, {"bias": True}))
    assert one not in (meaning_of(maker(4, {"bias": True})), meaning_of(maker(3, {"bias": False})))


# In other processes ---------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import numpy as np
import torch
from torch import nn
import fedshift
import layers
from fedshift.runs.events import Progress

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), layers.Bent(), nn.BatchNorm1d(width), nn.Dropout(0.3))
        self.classify = nn.Linear(width, 2)

    def forward(self, x):
        return self.classify(self.body(x))

class Killed(Progress):
    def after_round(self, run, position):
        if position == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

draw = np.random.default_rng(0)
y = draw.integers(0, 2, 40)
x = draw.normal(size=(40, 4)) + y[:, None]
torch.manual_seed(0)
run = fedshift.run(
    data=fedshift.in_memory({"north": (x, y), "south": (x[::-1], y[::-1])}), method="fedsr", rounds=12, out=sys.argv[1],
    model=fedshift.own_model(Net(6), head="classify"), progress=Killed(),
    settings={"run.checkpoint_every": 4, "run.engine": "sequential", "run.threads": 1, "train.batch": 8})
print(run.path)
"""
LAYERS = """
from torch import nn
class Bent(nn.Module):
    def forward(self, x):
        return x.clamp(min=0) + 0.1 * x
"""


def test_a_run_that_was_killed_goes_on_where_its_class_is_not_known(tmp_path: Path):
    """The class is of a script and a file beside it. The kept file is lost meanwhile, and made again by the script.

    One process is an interpreter with other hashes, on which no name depends.
    """
    (tmp_path / "project").mkdir()
    (tmp_path / "project/script.py").write_text(SCRIPT)
    (tmp_path / "project/layers.py").write_text(LAYERS)
    killed = fresh.start(fresh.script, "project/script.py", "killed", "7")
    assert killed.wait() == -signal.SIGKILL, killed
    shutil.rmtree("runs/models")
    command, environment = [sys.executable, "project/script.py", "whole", "99"], {**os.environ, "PYTHONHASHSEED": "2"}
    whole = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert whole.returncode == 0, whole.stderr
    (file,) = Path("runs/models").iterdir()
    assert file.name.startswith("Net-")
    (tmp_path / "project").rename(tmp_path / "gone")
    resumed = fresh.command("resume", "killed")
    assert resumed.returncode == 0, resumed.stderr + resumed.stdout
    one, other = (Run(next((tmp_path / out / "arrays").iterdir())) for out in ("killed", "whole"))
    assert one.path.name == other.path.name
    assert results(one) == results(other)
    (run,) = fedshift.load("whole").runs
    assert run.model()(torch.ones(2, 4)).shape == (2, 2)
    assert "layers" not in sys.modules


def test_from_a_python_file_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bending.py").write_text("SLOPE = 0.1\n")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom bending import SLOPE\n\nmade = nn.Linear(2, 2)\n\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(100, 6), nn.LeakyReLU(SLOPE), nn.Linear(6, 3))\n"
    )
    tiny = str(Path(__file__).parent / "tiny.py")
    words = ["run", "--plugin", tiny, "--data", "tiny", "--method", "fedavg", "--model", "own", "--rounds", "1"]
    words += ["--set", "model.path=net.py:make", "--set", "model.head=3", "--out", "out", "--device", "cpu"]
    ok(*words)
    (run,) = fedshift.load("out").runs
    assert run.table["model"].items() >= {"name": "own", "path": str(tmp_path / "net.py"), "maker": "make"}.items()
    assert run.model()(torch.zeros(2, 1, 10, 10)).shape == (2, 3)
    assert set(run.identity.plugins) == {tiny, str(tmp_path / "net.py")}
    before = run.experiment.fingerprint
    (tmp_path / "bending.py").write_text("SLOPE = 0.25\n")
    with refuses("net.py' of the run", " changed (then"):
        fedshift.load("out").runs[0].model()
    assert fedshift.experiment(run.table).fingerprint != before
    for path, named in {
        "net.py:mak": "Did you mean 'make'?",
        "net.py:made": "'made' in 'net.py' is not a class or function",
        "none.py:Net": "model.path = 'none.py' does not exist",
    }.items():
        with refuses(named):
            builder(Own(path=path)).encoder()


# Trust ----------------------------------------------------------------------------------------------


@pytest.fixture
def from_elsewhere(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An interrupted run whose module this machine never ran."""
    experiment = make({"train.rounds": 3, "run.checkpoint_every": 1})
    experiment = experiment.replace(model=fedshift.own_model(Net, head="classify"))
    with pytest.raises(KeyboardInterrupt):
        runner.start(experiment, interrupt_after(2))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "another cache"))
    return Run(scheduling.run_path(experiment))


def test_a_module_from_elsewhere_needs_trust(from_elsewhere: Run):
    with refuses("never ran on this machine", ".kept'", error=UntrustedError):
        api.resume(from_elsewhere.path, Progress())
    with pytest.raises(UntrustedError):
        fedshift.load(from_elsewhere.path).runs[0].experiment  # noqa: B018
    assert not api.resume(from_elsewhere.path, Progress(), trust=True).failed
    assert fedshift.load(from_elsewhere.path).runs[0].model()(torch.zeros(1, 1, 10, 10)).shape == (1, 3)


def test_a_run_is_moved_with_a_copy_of_its_model(make: Make, tmp_path: Path):
    """Without the copy the error names what is missing; a damaged model is not opened but built again."""
    run = runner.start(make({"run.out": "runs"}).replace(model=fedshift.own_model(Net, head="classify")), Progress())
    x = torch.ones(2, 1, 10, 10)
    expected, moved = run.model()(x), run.path.rename("alone")
    (kept,) = Path("runs/models").iterdir()
    elsewhere = kept.rename("somewhere")
    with refuses("is missing", "put a copy into that folder"):
        Run.open(moved).model()
    elsewhere.rename(moved / kept.name)
    assert torch.equal(Run.open(moved).model()(x), expected)
    again = Path(fedshift.own_model(Net, head="classify").path)
    again.write_bytes(again.read_bytes()[:-1] + b"?")
    with refuses("is not a file of fedshift.own_model"):
        read(again)
    fedshift.own_model(Net)
    assert read(again) is not None


def forged(path: Path, pickled: bytes) -> None:
    """Put other bytes into a kept file under the same digest."""
    head = path.read_bytes().partition(b"\n")[0].split()
    head[4] = files.digest_of(pickled).encode()
    path.write_bytes(b" ".join(head) + b"\n" + pickled)


def test_who_says_that_a_file_means_what_is_known_is_not_believed(from_elsewhere: Run):
    """Its first line is its own word; what is trusted are its bytes."""
    path = next(path for path in from_elsewhere.identity.plugins if path.endswith(".kept"))
    mine = fedshift.own_model(Net, head="classify", folder="mine")
    forged(Path(path), Path(path).read_bytes().partition(b"\n")[2] + b"whatever follows the end of a pickle")
    assert digest(mine.path) == digest(path)
    with pytest.raises(UntrustedError):
        api.resume(from_elsewhere.path, Progress())
    shutil.copy(mine.path, path)
    assert not api.resume(from_elsewhere.path, Progress()).failed


def test_code_that_is_hidden_from_the_question_is_not_opened(from_elsewhere: Run, tmp_path: Path):
    """Digests are no signatures: anyone who made the files can leave the module out of what is requested about."""
    file = from_elsewhere.path / RUN
    table = json.loads(file.read_bytes())
    del table["digest"]
    kept = next(path for path in table["plugins"] if path.endswith(".kept"))
    del table["plugins"][kept]
    file.write_text(digested_json(table))

    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "opened",)

    buffer = BytesIO()
    torch.save(Touch(), buffer)
    forged(Path(kept), buffer.getvalue())
    with pytest.raises(FedshiftError, match=r"names the code .* but not its digest"):
        api.resume(Run(from_elsewhere.path).path, Progress(), trust=True)
    assert not (tmp_path / "opened").exists()
    read(Path(kept))
    assert (tmp_path / "opened").exists()  # so it is a file that would have been run


# Refused --------------------------------------------------------------------------------------------


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resnet18",), ["str is not a module"]),
        ((nn.Linear,), ["'Linear' returns no module", "lambda: Linear(...)"]),
        ((Net, "fc"), ["Unknown submodule of Net (head) 'fc'", "body, body.0", "classify", "features.1"]),
        ((Locked(),), ["'Locked' cannot be kept", "cannot pickle '_thread.lock'", "a function that makes the module"]),
        ((nn.Linear(7, 2),), ["Inputs (B, 1, 10, 10) do not fit the module Linear", "(20x10 and 7x2)"]),
        ((nn.Conv2d(1, 2, 3),), ["Conv2d gives torch.float32 of shape (2, 2, 8, 8)", "nn.Flatten()"]),
    ],
    ids=range(6),
)
def test_what_cannot_be_a_model_is_named(arguments: tuple[Any, ...], words: list[str]):
    with refuses(*words):
        builder(fedshift.own_model(*arguments)).encoder()


# Front doors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kept", "py"])
def test_it_travels_to_every_member_of_a_federation(tmp_path: Path, kind: str):
    pytest.importorskip("cryptography", reason="the extra 'flower' is not installed")
    from fedshift.deployment.agreement import Agreement
    from fedshift.deployment.federation_toml import FederationSettings
    from fedshift.deployment.folders import make, planned

    (tmp_path / "net.py").write_text("from torch import nn\ndef net(): return nn.Linear(4, 3)\n")
    model = fedshift.own_model(lambda: nn.Linear(4, 6)) if kind == "kept" else Own(path="net.py:net")
    data = {"name": "arrays", "path": "none"}
    chosen = fedshift.experiment(data=data, method="fedsr", model=model, hold_out="a", rounds=2)
    of = {"name": "new", "sites": ("a", "b"), "shape": (4,), "classes": ("x", "y"), "address": "localhost:80"}
    root = tmp_path / "new"
    make(root, planned(FederationSettings(**of), chosen))
    for member in ("coordinator", "sites/a", "sites/b"):
        agreement = Agreement.read(root / member)
        there = agreement.experiment.model
        assert isinstance(there, Own)
        assert Path(there.path) == root / member / "files" / f"model.path.{kind}"
        assert agreement.experiment.contents["model.path"] == chosen.contents["model.path"]
        assert agreement.setup(torch.device("cpu")).model.dim == (6 if kind == "kept" else 3)
