"""A site's data, of every kind that a simulation takes, and what a site finds out before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from PIL import Image
from typer.testing import CliRunner

from fedshift.cli.app import app
from fedshift.deployment.inspection import KEY, PUBLIC, inspect
from fedshift.deployment.keys import site_pair
from fedshift.deployment.shell import AUTHORITY
from fedshift.errors import FedshiftError
from fedshift.files import write
from fedshift.study.grid import expand, override
from fresh import ok
from refusal import refuses

pytest.importorskip("cryptography", reason="the extra 'flower' is not installed")
pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import fedshift
from federated import Local
from fedshift.deployment.agreement import EXPERIMENT, Agreement
from fedshift.deployment.coordinate import coordinate
from fedshift.deployment.demo import rehearse
from fedshift.deployment.site_data import SiteFolder, site_model
from fedshift.runs.events import Progress
from fedshift.written import parse_toml
from test_coordinate import alike
from test_text_data import a_tokenizer, an_encoder

SITES = ("berlin", "oslo", "rome")
Write = Callable[[Path, int], str]
"""Writes the samples of a site, by its number, into a folder; what is written, by its name there."""
CLASSES = np.array(["ill", "well"])
WARD = "ward"  # the folder of images that are one domain
COMMON = ("--sites", ",".join(SITES), "--method", "fedavg", "--rounds", "2", "--set", "protocol.name=in-domain")
STEPS = {"train.steps": 2, "train.batch": 4, "evaluate.every": 1, "evaluate.batch": 4, "run.threads": 1}


def draws(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def folder(place: Path, number: int) -> str:
    for row, pixels in enumerate(draws(number).integers(0, 200, (24, 8, 8), dtype=np.uint8)):
        file = place / WARD / ("ill", "well")[row % 2] / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return WARD


def arrays(place: Path, number: int) -> str:
    x = draws(number).normal(size=(24, 8)).astype("float32")
    np.savez(place / "mine.npz", x=x, y=np.arange(24) % 2, classes=["ill", "well"])
    return "mine.npz"


def in_memory(place: Path, number: int) -> str:
    x = draws(number).normal(size=(24, 2, 10))
    made = fedshift.in_memory({SITES[number]: (x, np.arange(24) % 2)}, classes=["ill", "well"], folder=place)
    return Path(made.path).name


def rows(place: Path, **columns: Any) -> str:
    pd.DataFrame(columns).to_csv(place / "mine.csv", index=False)
    return "mine.csv"


def table(place: Path, number: int) -> str:
    age, row = draws(number).normal(50, 9, 24).round(3), np.arange(24)
    marker = ["" if each % 5 == 0 else each for each in row]
    return rows(place, age=age, sex=np.array(["f", "m"])[row % 2], marker=marker, label=CLASSES[row // 2 % 2])


def signals(place: Path, number: int) -> str:
    recording = np.arange(200) // 20
    speed, height = draws(number).normal(size=(2, 200))
    label = np.array(["rest", "walk"])[recording % 2]
    return rows(place, recording=recording, label=label, speed=speed, height=height)


def texts(place: Path, number: int) -> str:
    words = np.array(["good", "bad", "meal", "film", "very"])[draws(number).integers(0, 5, (24, 6))]
    return rows(place, label=CLASSES[np.arange(24) % 2], text=list(map(" ".join, words)))


KINDS: dict[str, tuple[Write, str, dict[str, Any]]] = {
    "folder": (folder, "cnn", {"size": 10, "channels": 1}),
    "arrays": (arrays, "mlp", {}),
    "arrays in memory": (in_memory, "cnn1d", {}),
    "table": (table, "mlp", {"statistics": "pooled"}),
    "signals": (signals, "cnn1d", {"recording": "recording", "window": 10}),
    "text": (texts, "transformers", {"tokens": "encoder", "length": 8}),
}


def federation(place: Path, kind: str) -> Path:
    """A federation whose organiser has an example of what the sites have, by the command line."""
    write, model, settings = KINDS[kind]
    (place / "example").mkdir()
    file = write(place / "example", 0)
    said: dict[str, Any] = {"data.path": f"{place}/example{'' if file == WARD else f'/{file}'}"}
    said |= {f"data.{name}": value for name, value in settings.items()} | STEPS
    if model == "transformers":
        a_tokenizer(place / "encoder")
        an_encoder(place / "encoder")
        said |= {"data.tokens": f"{place}/encoder", "model.path": f"{place}/encoder", "model.adapter_rank": 2}
    options = [word for name, value in said.items() for word in ("--set", f"{name}={value}")]
    arguments = ["init", "kind", *COMMON, "--data", kind.partition(" ")[0], "--model", model, "--to", str(place)]
    ok("federation", *arguments, *options)
    for number, site in enumerate(SITES):
        folder = place / "kind" / "sites" / site
        file = write(folder / "data", number)  # where its README states
        if kind == "arrays in memory":  # a file that names its domain, so a folder of such is none
            (folder / "site.toml").write_text(f'name = "{site}"\n[data]\npath = "data/{file}"\n', encoding="utf-8")
    return place / "kind"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_is_set_up_checked_and_carried_out(tmp_path: Path, kind: str):
    folder = federation(tmp_path, kind)
    for site in SITES:
        found = inspect(folder / "sites" / site)
        found.problems.check()
        assert found.samples is not None
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    other = rehearse(folder, Progress())
    alike(run, other, records=False)  # a simulation scores several sites' samples in one batch
    assert run.messages == other.messages
    agreement = Agreement.read(folder / "coordinator")
    sample = agreement.inputs.like(agreement.federation.shape)
    site = folder / "sites" / "oslo"
    assert site_model(site)(sample).shape == (1, 2)
    own = next((site / "data").iterdir())
    data = str(own.parent if own.is_dir() else own)
    told = ok("validate", str(site), data, "--metric", "auroc", "--min-count", "2")
    assert f"{run.experiment.run_name} on {len(SiteFolder(site).samples().y)} samples" in told


# Columns -----------------------------------------------------------------------------------------


def samples(site: Path) -> torch.Tensor:
    return SiteFolder(site).samples().x


def test_columns_are_read_in_one_order_at_every_site(tmp_path: Path):
    """As the organiser's file has them; a site's file may have them in another order, and others beside them."""
    folder = federation(tmp_path, "signals")
    site = folder / "sites" / "oslo"
    before = samples(site)
    found = pd.read_csv(site / "data" / "mine.csv")
    rows(site / "data", **found.assign(ward="3")[["height", "speed", "ward", "recording", "label"]])
    assert torch.equal(samples(site), before)
    rows(site / "data", **found.rename(columns={"speed": "pace"}))
    with refuses("Unknown column of channels in", "'speed'"):
        inspect(site).problems.check()
    (site / "site.toml").write_text('name = "oslo"\n[data]\ncolumns = ["pace", "height"]\n', encoding="utf-8")
    assert torch.equal(samples(site), before)


def test_a_prepared_table_may_have_other_names_in_the_same_order(tmp_path: Path):
    folder = federation(tmp_path, "table")
    site = folder / "sites" / "oslo"
    before = samples(site)
    found = pd.read_csv(site / "data" / "mine.csv").rename(columns={"age": "years"})
    rows(site / "data", **found)
    for columns in ('["sex", "years", "marker"]', '["years", "sex"]'):
        (site / "site.toml").write_text(f'name = "oslo"\n[data]\ncolumns = {columns}\n', encoding="utf-8")
        with refuses("the federation agreed on age, sex, marker", "site.toml"):
            inspect(site).problems.check()
    (site / "site.toml").write_text('name = "oslo"\n[data]\ncolumns = ["years", "sex", "marker"]\n', encoding="utf-8")
    assert torch.equal(samples(site).nan_to_num(-1), before.nan_to_num(-1))


def test_the_columns_of_the_data_are_written_down(tmp_path: Path):
    path = federation(tmp_path, "table") / "coordinator" / EXPERIMENT
    assert parse_toml(path.read_text(), "it")["data"]["columns"] == ["age", "sex", "marker"]


def test_columns_of_data_that_are_at_the_sites_only_are_asked_for(tmp_path: Path):
    requested = ["init", "x", *COMMON, "--data", "signals", "--set", "data.path=data", "--set", "data.window=10"]
    requested += ["--model", "cnn1d", "--classes", "rest,walk", "--shape", "2,10", "--to", str(tmp_path)]
    done = CliRunner().invoke(app, ["federation", *requested])
    assert str(done.exception).endswith("describe it: --set data.columns=age,marker")
    requested += ["--set", "data.columns=speed,height"]
    assert CliRunner().invoke(app, ["federation", *requested]).exit_code == 0


# What every member has ---------------------------------------------------------------------------


def test_a_tokenizer_travels_and_texts_stay(tmp_path: Path):
    folder = federation(tmp_path, "text")
    for member in (folder / "coordinator", *(folder / "sites" / site for site in SITES)):
        assert (member / "files" / "data.tokens" / "tokenizer.json").is_file()
        data = parse_toml((member / EXPERIMENT).read_text(), "it")["data"]
        assert (data["path"], data["tokens"]) == ("data", "files/data.tokens")


SHIFTED = (
    *("--sites", "a,b", "--method", "fedavg", "--rounds", "1", "--data", "colored-mnist", "--model", "mlp"),
    *("--set", "protocol.name=personal-under-shift", "--set", "train.steps=1", "--set", "run.threads=1"),
    *("--set", "data.test_p=0.1,0.9", "--set", "data.originals=40", "--set", "data.size=7", "--set", "data.clients=2"),
)


def test_data_that_bring_environments_are_scored_on_those_that_were_agreed_on(tmp_path: Path):
    """Of names that init finds in the data."""
    folder = tmp_path / "shift"
    ok("federation", "init", str(folder), *SHIFTED)
    assert Agreement.read(folder / "coordinator").federation.environments == ("p=0.1", "p=0.9")
    run = coordinate(folder / "coordinator", Local(folder), Progress())
    assert {row["environment"] for row in run.records[-1]["environments"]} == {"p=0.1", "p=0.9"}
    agreed = folder / "coordinator" / "federation.toml"
    agreed.write_text(agreed.read_text().replace("environments = [", "# environments = ["))
    with refuses("environments that the data name", "--environments p=0.1,p=0.9"):
        Agreement.read(folder / "coordinator")


pytest.importorskip("flwr")
pytest.importorskip("cryptography")

FEDERATION = {"name": "clinics", "sites": ["a", "b", "c"], "shape": [4], "address": "localhost:8000"}
FEDERATION |= {"classes": ["ill", "well", "unknown"]}
TRIAL: dict[str, Any] = {
    "name": "trial",
    "data": {"name": "arrays", "path": "data"},
    "protocol": {"name": "in-domain", "test": 0.2, "validation": 0.2},
    "model": {"name": "mlp", "dim": 4, "hidden": [8]},
    "method": {"name": "fedavg"},
    "train": {"rounds": 2, "steps": 2, "batch": 4},
}
RUNNER = CliRunner()
MakeSite = Callable[..., Path]


def certificate(days: int) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    key, name, now = ec.generate_private_key(ec.SECP384R1()), x509.Name([]), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=9)).not_valid_after(now + timedelta(days=days))
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture
def site(tmp_path: Path) -> MakeSite:
    """A function that makes a site's folder, with changes to its files."""

    def make(
        experiment: dict[str, Any] | None = None,
        site: dict[str, Any] | None = None,
        federation: dict[str, Any] | None = None,
        **arrays: Any,
    ) -> Path:
        folder = tmp_path / "a"
        for name in ("keys", "certificates", "data"):
            (folder / name).mkdir(parents=True)
        (agreed,) = expand(override(TRIAL, experiment or {}))
        texts = {
            "federation.toml": FEDERATION | (federation or {}),
            "experiment.toml": agreed.table(),
            "site.toml": {"name": "a", **(site or {})},
        }
        for name, table in texts.items():
            (folder / name).write_text(tomli_w.dumps(table))
        x = np.arange(80, dtype=np.float32).reshape(20, 4)
        np.savez(folder / "data" / "all.npz", **{"x": x, "y": ["ill"] * 10 + ["well"] * 10, **arrays})
        pair = site_pair()
        write(folder / KEY, pair.private, private=True)
        (folder / PUBLIC).write_bytes(pair.public + b" a comment\n")
        (folder / AUTHORITY).write_bytes(certificate(days=9))
        return folder

    return make


def problems(folder: Path) -> str:
    with pytest.raises(FedshiftError) as raised:
        inspect(folder).problems.check()
    return str(raised.value)


# What is found -----------------------------------------------------------------------------------


def test_a_site_that_can_take_part(site: MakeSite):
    """Ten of each of two classes, of which two each are tested and validated on; nothing is written."""
    folder = site()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = inspect(folder)
    found.problems.check()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert (found.federation, found.site, found.notes) == ("clinics", "a", [])
    held = found.samples
    assert held is not None
    assert (held.samples, held.shape, held.dtype) == (20, (4,), "float32")
    assert held.counts == {
        "training": {"ill": 6, "well": 6, "unknown": 0},
        "validation": {"ill": 2, "well": 2, "unknown": 0},
        "test": {"ill": 2, "well": 2, "unknown": 0},
    }


def test_the_command_prints_it_with_the_page_of_what_leaves(site: MakeSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = site()
    result = RUNNER.invoke(app, ["federation", "check", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Federation 'clinics', site 'a'" in result.output
    assert "Samples: 20, of shape [4], float32" in result.output
    assert inspect(folder).page in result.output
    assert "'a' can take part. Nothing was written" in result.output


# What keeps it from taking part ------------------------------------------------------------------


def test_everything_wrong_is_said_at_once(site: MakeSite):
    y = ["Ill"] * 9 + ["sick"] * 2 + ["well"] * 9
    folder = site(x=np.ones((20, 3), np.float32), y=y, site={"refuse": ["model update"]})
    (folder / KEY).unlink()
    (folder / AUTHORITY).write_text("none")
    message = problems(folder)
    for words in (
        "the shape [3]; the federation agreed on [4]",
        "Unknown class in the site's data 'Ill'. Did you mean 'ill'?",
        "Unknown class in the site's data 'sick'",
        "The site 'a' refuses what the run needs: a tensor of the category 'model update'",
        f"'{folder / KEY}' cannot be read (No such file or directory)",
        f"'{folder / AUTHORITY}' is no certificate in PEM",
    ):
        assert words in message


def test_what_is_wrong_with_a_cell_is_mended_here(site: MakeSite):
    """Messages of data sets name settings as the commands of a simulation take them; a site has site.toml."""
    folder = site(
        experiment={"data": {"name": "table", "path": "data/all.csv", "columns": ["age"], "statistics": "site"}},
        federation={"shape": [1], "columns": [["age"]]},
    )
    (folder / "data" / "all.csv").write_text("age,label\n30,ill\nold,well\n")
    found = inspect(folder)
    with refuses("contains 'old' (str) in row 1", "--set data.missing='old'"):
        found.problems.check()
    note = "What a message writes as --set data.NAME=VALUE is NAME = VALUE here, below [data] in site.toml."
    assert found.notes == [note]
    (folder / "site.toml").write_text('name = "a"\n[data]\nmissing = ["old"]\n')
    inspect(folder).problems.check()


def test_keys_that_do_not_belong_together_and_a_certificate_that_is_no_longer_valid(site: MakeSite):
    folder = site()
    (folder / AUTHORITY).write_bytes(certificate(days=-1))
    assert f"'{folder / AUTHORITY}' is valid from" in problems(folder)
    (folder / PUBLIC).write_bytes(site_pair().public)
    assert f"'{folder / PUBLIC}' is not the public key of" in problems(folder)


def test_a_key_that_others_can_read_is_noted(site: MakeSite):
    folder = site()
    (folder / KEY).chmod(0o644)
    (note,) = inspect(folder).notes
    assert f"chmod 600 '{folder / KEY}'" in note
