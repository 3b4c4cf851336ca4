"""`fedshift federation init`: what it writes is what members, Flower, TLS and a shell read."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import fresh
from fedshift.cli.app import app
from fedshift.deployment import shell
from fedshift.deployment.agreement import Agreement, read_site
from fedshift.deployment.federation_toml import FederationSettings
from fedshift.deployment.folders import make, planned
from fedshift.deployment.site_data import schema
from fedshift.errors import FedshiftError
from fedshift.experiments import Experiment
from fedshift.study import api
from fedshift.written import parse_toml
from fresh import ok
from refusal import refuses

pytest.importorskip("cryptography", reason="the extra 'flower' is not installed")

SITES = ("a", "b", "c")
TINY = Path(__file__).with_name("tiny.py")
FEDSR = ("--method", "fedsr", "--hold-out", "c", "--sites", "a,b,c")


def init(*arguments: str) -> str:
    """What the command prints; its error is raised."""
    return ok("federation", "init", *arguments)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of three sites on RotatedMNIST, whose site c is held out."""
    place = tmp_path_factory.mktemp("federations")
    init("trial", *FEDSR, "--to", str(place))
    return place / "trial"


def members(root: Path) -> list[Path]:
    return [root / "coordinator", *(root / "sites" / site for site in SITES)]


# The layout --------------------------------------------------------------------------------------


def test_every_member_reads_the_same(trial: Path):
    agreements = [Agreement.read(member) for member in members(trial)]
    first = agreements[0]
    assert [first.differences(other.agreed) for other in agreements] == [[]] * 4
    assert first.federation.sites == SITES
    assert first.federation.shape == (1, 28, 28)
    assert first.federation.classes == tuple("0123456789")
    assert (first.target, first.clients) == ("c", {0: "a", 1: "b"})
    requested = api.experiment("rotated-mnist", method="fedsr", hold_out="c", settings={"train.min_answers": 0.5})
    assert first.experiment == requested


def test_a_site_that_fails_does_not_end_the_run_unless_that_was_asked_for(trial: Path, tmp_path: Path):
    """The default of simulations, all, becomes a half, which the READMEs mention."""
    for readme in (trial / "README.md", trial / "coordinator/README.md"):
        assert "50 %" in " ".join(readme.read_text().split())
    init("asked", *FEDSR, "--set", "train.min_answers=0.7", "--to", str(tmp_path))
    assert Agreement.read(tmp_path / "asked/coordinator").experiment.train.min_answers == 0.7


def test_only_private_files_are_private(trial: Path):
    modes = {file.relative_to(trial).as_posix(): stat.S_IMODE(file.stat().st_mode) for file in trial.rglob("*.key")}
    keys = [f"sites/{site}/keys/site.key" for site in SITES]
    assert modes == dict.fromkeys(["authority/ca.key", "coordinator/certificates/superlink.key", *keys], 0o600)
    folders = [trial, *(path for path in trial.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    private = {(trial / name).read_bytes() for name in modes}
    assert len(private) == 5
    assert not any(
        file.read_bytes() in private for file in trial.rglob("*") if file.is_file() and file.suffix != ".key"
    )


# Commands ----------------------------------------------------------------------------------------


def typed(page: Path) -> list[list[str]]:
    """The commands in the fenced blocks of a page."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def parse(command: list[str]) -> None:
    """Let the program that a command names read its arguments."""
    program, *arguments = command
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower still requests typer for
        from flwr.cli.app import app as flwr

        command = get_command({"flwr": flwr, "fedshift": app}[program])
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(program, arguments)


def test_every_command_of_the_readmes_is_one(trial: Path):
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    pages = [trial / "README.md", *(member / "README.md" for member in members(trial))]
    found = [command for page in pages for command in typed(page)]
    ours = [command for command in found if command[0] not in ("docker", "ssh-keygen", "chown")]
    for command in ours:
        parse(command)
    federation = [command[2] for command in ours if command[:2] == ["fedshift", "federation"]]
    counts = {name: federation.count(name) for name in set(federation)}
    assert counts == {"serve": 2, "join": 6, "run": 2, "check": 3, "confirm": 1}
    named = {word for command in ours for word in command if (trial / word).is_dir()}
    assert named == {".", *(member.relative_to(trial).as_posix() for member in members(trial))}


@pytest.fixture
def services(trial: Path) -> dict[str, Any]:
    return pytest.importorskip("yaml").safe_load((trial / "compose.yaml").read_text())["services"]


def test_containers_run_the_same_commands(services: dict[str, Any]):
    inside = "superlink:8000"
    told = {name: service["command"] for name, service in services.items()}
    sites = [f"site-{site}" for site in SITES]
    assert told == {"superlink": shell.SERVE, **{name: [*shell.JOIN, "--address", inside] for name in sites}}
    for command in told.values():
        parse([*command])
    assert services["superlink"]["environment"] == {shell.GATE_ADDRESS: inside}
    networks = {name: service["networks"] for name, service in services.items()}
    assert networks == {"superlink": sites, **{name: [name] for name in sites}}  # sites reach no other site


def test_containers_have_no_rights_and_see_their_own_folder_alone(trial: Path, services: dict[str, Any]):
    for name, service in services.items():
        folder = "coordinator" if name == "superlink" else name.replace("site-", "sites/")
        assert service["volumes"] == [f"./{folder}:/federation"]
        assert (trial / folder).is_dir()
        assert service["user"].split(":")[0] != "0"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert not service.keys() & {"ports", "privileged", "network_mode", "cap_add", "devices"}
    assert re.search(r"^USER (?!0|root)", (trial / "Dockerfile").read_text(), re.MULTILINE)


def test_every_member_reads_who_could_do_what(trial: Path):
    for member in members(trial):
        page = " ".join((member / "README.md").read_text().split())
        said = page[page.index("## Who could still do what") :]
        assert said.count(" - **") == 5
        assert "thief of" in said
        assert "disk" in said
    assert "127.0.0.1:8001" in (trial / "coordinator/README.md").read_text()


# Certificates ------------------------------------------------------------------------------------


def test_a_host_that_the_address_names_is_trusted(tmp_path: Path):
    from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate

    init("far", *FEDSR, "--to", str(tmp_path), "--address", "fl.example.org:8443")
    folder = tmp_path / "far"
    server, authority = (
        load_pem_x509_certificate((folder / "coordinator/certificates" / name).read_bytes())
        for name in ("superlink.crt", "ca.crt")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(SubjectAlternativeName).value.get_values_for_type(DNSName)
    assert names == ["fl.example.org", "localhost", "superlink"]
    assert "accept connections at that port, and at no other" in " ".join((folder / "README.md").read_text().split())
    assert 'ports: [ "8443:8443" ]' in (folder / "compose.yaml").read_text()


# Experiments -------------------------------------------------------------------------------------


def test_plugins_are_copied_with_what_they_import(tmp_path: Path):
    own = tmp_path / "own"
    (own / "tools").mkdir(parents=True)
    (own / "tools/__init__.py").write_text("RATE = 0.25\n")
    (own / "page.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "sys.path.insert(0, str(Path(__file__).parent))\nimport fedshift\nfrom tools import RATE\n"
        "from fedshift.methods.fedavg import FedAvg\n\n"
        '@fedshift.METHODS.register("copied")\n'
        'class Copied(FedAvg):\n    """RATE."""\n'
    )
    shutil.copy(TINY, own)
    arguments = ["federation", "init", "it", "--sites", "gray,x,dark", "--data", "tiny", "--method", "copied"]
    arguments += ["--hold-out", "x", "--plugin", "own/page.py", "--plugin", "own/tiny.py"]
    done = fresh.command(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (own / "page.py").unlink()
    site = tmp_path / "it/sites/gray"
    agreed = fresh.call(agreed_at, site)
    assert agreed == ("copied", ["plugins/page.py", "plugins/tiny.py"], ("light",), ("gray",), (1, 10, 10))
    assert (site / "plugins/tools/__init__.py").read_text() == "RATE = 0.25\n"


def agreed_at(site: Path) -> tuple[object, ...]:
    """What a site reads, its plugins with it."""
    agreement = Agreement.read(site)
    domains = [read_site(site.with_name(name))[0].domains for name in ("x", "gray")]
    return agreement.experiment.method_name, agreement.table["plugins"], *domains, agreement.federation.shape


def plan(experiment: Experiment, shape: tuple[int, ...] = (1, 28, 28)) -> dict[str, object]:
    settings = {"name": "new", "sites": ("a", "b"), "classes": ("x", "y"), "address": "localhost:80"}
    return planned(FederationSettings(**settings, shape=shape), experiment)


def test_data_stay_and_other_files_travel(tmp_path: Path):
    network = tmp_path / "network"
    (network / "deep").mkdir(parents=True)
    (network / "deep/weights").write_bytes(b"many")
    (tmp_path / "photos").mkdir()
    chosen = api.experiment(
        "rotated-mnist",
        method="fedavg",
        hold_out="a",
        data={"name": "folder", "path": tmp_path / "photos", "frozen": str(network)},
        model="mlp",
    )
    root = tmp_path / "new"
    make(root, plan(chosen, shape=(8,)))
    table = parse_toml((root / "sites/b/experiment.toml").read_text(), "it")
    assert (table["data"]["path"], table["data"]["frozen"]) == ("data", "files/data.frozen")
    for member in (root / "coordinator", root / "sites/a", root / "sites/b"):
        assert (member / "files/data.frozen/deep/weights").read_bytes() == b"many"
    assert str(tmp_path) not in (root / "sites/b/experiment.toml").read_text()
    assert '# path = "data"' in (root / "sites/b/site.toml").read_text()
    assert "Images in folder/domain/class/file" in (root / "sites/b/README.md").read_text()


def test_what_a_sample_is_can_be_said_or_seen(tmp_path: Path):
    pets = api.experiment("rotated-mnist", method="fedavg", data={"name": "folder", "path": "data", "size": 64})
    assert schema(pets, ["cat", "dog"]) == (("cat", "dog"), (3, 64, 64), (), (), ())
    with refuses("data.path = 'data'", "describe it: --classes cat,dog"):
        schema(pets)
    frozen = api.experiment(pets, settings={"data.frozen": "efficientnet-lite0"}, model="mlp")
    assert schema(frozen, ["cat", "dog"]).shape == (1280,)
    cut = api.experiment(pets, settings={"model.freeze_until": 7}, model="efficientnet-lite0")
    assert schema(cut, ["cat", "dog"]).shape == (192, 2, 2)


# What is refused ---------------------------------------------------------------------------------


def refused(tmp_path: Path, *arguments: str) -> str:
    """The message of an error, after which nothing is there."""
    before = {*tmp_path.rglob("*")}
    with pytest.raises(FedshiftError) as raised:
        init(*arguments, "--to", str(tmp_path))
    assert {*tmp_path.rglob("*")} == before
    return str(raised.value)


def test_an_existing_folder_is_refused(tmp_path: Path):
    (tmp_path / "trial").mkdir()
    assert f"'{tmp_path}/trial' exists" in refused(tmp_path, "trial", *FEDSR)


def test_a_site_is_held_out_or_none(tmp_path: Path):
    said = refused(tmp_path, "t", "--sites", "a,b", "--method", "fedsr", "--hold-out", "x")
    assert said.startswith("protocol.hold_out = 'x' is not among the sites a, b.")
    assert "--hold-out b" in said


def test_the_default_experiment_takes_its_first_method_and_all_sites_train(tmp_path: Path):
    """The domain that it holds out is no site, and it has two methods; a note names each."""
    said = init("t", "--sites", "a,b", "--to", str(tmp_path))
    agreement = Agreement.read(tmp_path / "t/sites/a")
    assert agreement.clients == {0: "a", 1: "b"}
    assert (agreement.target, agreement.experiment.method_name) == (None, "fedavg")
    assert "Note: " in said
    assert "--hold-out b" in said


def test_the_name_may_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    init("out/deep/lungs", *FEDSR)
    assert Agreement.read(tmp_path / "out/deep/lungs/sites/a").federation.name == "lungs"


@pytest.mark.parametrize(
    ("name", "sites", "more", "said"),
    [
        ("a b", "a,b", (), "name = 'a b'"),
        ("default", "a,b", (), "'default' means something else to Flower"),
        ("x", "a,a", (), "each once"),
        ("x", "a,b", ("--address", "here"), "give host:port"),
        ("x", "a,b", ("--address", "0.0.0.0:8000"), "give host:port at which it is reached"),
        ("x", "a,b", ("--set", "partition.name=iid", "--set", "partition.clients=2"), "--set partition.name=domains"),
        ("x", "a,b", ("--seed", "0,1"), "This describes 2 runs"),
    ],
)
def test_bad_names_are_refused(tmp_path: Path, name: str, sites: str, more: tuple[str, ...], said: str):
    arguments = (name, "--sites", sites, "--method", "fedavg", "--hold-out", "a", *more)
    assert said in refused(tmp_path, *arguments)


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path):
    chosen = api.experiment("rotated-mnist", method="fedavg", hold_out="a")
    with refuses("new' cannot be written", "No part of it was created"):
        make(tmp_path / "new", {**plan(chosen), "coordinator/files/gone": tmp_path / "gone"})
    assert [*tmp_path.iterdir()] == []


def test_a_dry_run_writes_nothing(tmp_path: Path):
    said = init("trial", *FEDSR, "--to", str(tmp_path), "--dry-run")
    assert "Nothing was written." in said
    assert "superlink.key" in said
    assert "sites/b/, sites/c/: as sites/a/" in said
    assert [*tmp_path.iterdir()] == []
