"""What a site finds out before anything starts: all that keeps it from taking part, and what will leave it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from fedshift.cli.app import app
from fedshift.deployment.inspection import KEY, PUBLIC, inspect
from fedshift.deployment.keys import site_pair
from fedshift.deployment.shell import AUTHORITY
from fedshift.errors import FedshiftError
from fedshift.files import write
from fedshift.study.grid import expand, override
from refusal import refuses

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

FEDERATION = {"name": "clinics", "sites": ["a", "b", "c"], "shape": [4], "address": "localhost:8000"}
FEDERATION |= {"classes": ["ill", "well", "unknown"]}
EXPERIMENT: dict[str, Any] = {
    "name": "trial",
    "data": {"name": "arrays", "path": "data"},
    "protocol": {"name": "in-domain", "test": 0.2, "validation": 0.2},
    "model": {"name": "mlp", "dim": 4, "hidden": [8]},
    "method": {"name": "fedavg"},
    "train": {"rounds": 2, "steps": 2, "batch": 4},
}
RUNNER = CliRunner()
SiteFolder = Callable[..., Path]


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
def site(tmp_path: Path) -> SiteFolder:
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
        (agreed,) = expand(override(EXPERIMENT, experiment or {}))
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


def test_a_site_that_can_take_part(site: SiteFolder):
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


def test_the_command_prints_it_with_the_page_of_what_leaves(site: SiteFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = site()
    result = RUNNER.invoke(app, ["federation", "check", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Federation 'clinics', site 'a'" in result.output
    assert "Samples: 20, of shape [4], float32" in result.output
    assert inspect(folder).page in result.output
    assert "'a' can take part. Nothing was written" in result.output


# What keeps it from taking part ------------------------------------------------------------------


def test_everything_wrong_is_said_at_once(site: SiteFolder):
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


def test_what_is_wrong_with_a_cell_is_mended_here(site: SiteFolder):
    """Messages of data sets name settings as the commands of a simulation take them; a site has site.toml."""
    folder = site(
        experiment={"data": {"name": "table", "path": "data/all.csv", "columns": ["age"], "statistics": "site"}},
        federation={"shape": [1], "columns": [["age"]]},
    )
    (folder / "data" / "all.csv").write_text("age,label\n30,ill\nold,well\n")
    found = inspect(folder)
    with refuses("holds 'old' (str) in row 1", "--set data.missing='old'"):
        found.problems.check()
    note = "What a message writes as --set data.NAME=VALUE is NAME = VALUE here, below [data] in site.toml."
    assert found.notes == [note]
    (folder / "site.toml").write_text('name = "a"\n[data]\nmissing = ["old"]\n')
    inspect(folder).problems.check()


def test_keys_that_do_not_belong_together_and_a_certificate_that_is_no_longer_valid(site: SiteFolder):
    folder = site()
    (folder / AUTHORITY).write_bytes(certificate(days=-1))
    assert f"'{folder / AUTHORITY}' is valid from" in problems(folder)
    (folder / PUBLIC).write_bytes(site_pair().public)
    assert f"'{folder / PUBLIC}' is not the public key of" in problems(folder)


def test_a_key_that_others_can_read_is_noted(site: SiteFolder):
    folder = site()
    (folder / KEY).chmod(0o644)
    (note,) = inspect(folder).notes
    assert f"chmod 600 '{folder / KEY}'" in note
