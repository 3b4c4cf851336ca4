"""A look at data before a run: what was planted is found, with its numbers, and nothing where there is nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make
from fedshift.cli.app import app
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import Domains
from fedshift.clients.preparation import Column
from fedshift.clients.protocols import InDomain, LeaveOneDomainOut, Protocol
from fedshift.reporting.data_report import findings
from fedshift.reporting.data_report.drift import REST, feature_drift
from fedshift.reporting.data_report.duplicates import Roles, contents
from fedshift.reporting.data_report.report import DataReport, look_at
from fedshift.runs.events import Progress
from fedshift.streams import Streams
from fedshift.study.grid import override
from refusal import refuses
from test_report import Strict

pytest.importorskip("sklearn")

SITES = ("north", "south", "west")
PER_CLASS = 100
IN_DOMAIN = InDomain(test=0.2, validation=0.2)
RUNNER = CliRunner()
Plant = Callable[[DomainData], DomainData]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clean(kind: str = "rows", seed: int = 0, per_class: int = PER_CLASS, sites: int = 3) -> DomainData:
    """Sites whose samples of a class are drawn from one distribution, and which have equally many of each."""
    count = 2 * per_class * sites
    y = torch.arange(2).repeat(per_class * sites)
    shape = {"rows": (6,), "signals": (2, 30), "images": (1, 8, 8), "text": (40,), "arrays": (2, 3, 4, 5)}[kind]
    x = drawn(count, *shape, seed=seed) + y.view(-1, *[1] * len(shape))
    if kind == "images":
        x = (128 + 30 * x).clamp(0, 255).to(torch.uint8)
    if kind == "text":
        x = (2 * x).round().clamp(0, 9).long()
    domain = torch.arange(sites).repeat_interleave(2 * per_class)
    return DomainData(x, y, domain, SITES[:sites], ("ill", "well"), torch.arange(count))


def federated(data: DomainData, protocol: Protocol = IN_DOMAIN, seed: int = 0) -> FederatedData:
    return protocol.federate(data, Domains(), Inputs(), Streams(seed))


def reported(data: DomainData, protocol: Protocol = IN_DOMAIN, **more: Any) -> DataReport:
    inputs = Inputs(vocabulary=tuple("abcdefghij") if data.x.dtype == torch.int64 else ())
    return look_at(data, federated(data, protocol), inputs, **{"seed": 0, **more})


def roles_of(data: DomainData) -> Roles:
    return Roles.of(federated(data), len(data.y))


@cache
def report_of_clean(kind: str = "rows") -> DataReport:
    """One that many tests read."""
    return reported(clean(kind))


def kinds(report: DataReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def changed(data: DomainData, x: Callable[[Tensor], object] | None = None, **fields: Any) -> DomainData:
    """A copy of the data, with changes in place to the inputs."""
    data = replace(data, x=data.x.clone(), y=data.y.clone(), **fields)
    if x is not None:
        x(data.x)
    return data


# Nothing odd --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "signals", "images", "text", "arrays"])
def test_nothing_odd_is_found_in_clean_data(kind: str):
    report = report_of_clean(kind)
    assert report.kind == kind
    assert report.findings == ()
    assert len(report.features or ()) == 3
    assert "Nothing odd was found." in str(report)


# What is there ------------------------------------------------------------------------------------


def test_what_was_read():
    """100 of each class at each of 3 sites, a fifth of each for tests and a fifth for validation: 60 + 20 + 20."""
    report = reported(clean(), experiment="trial", dataset="table")
    assert [(site.name, site.samples, site.clients, site.classes) for site in report.sites] == [
        (name, 200, 1, {"ill": 100, "well": 100}) for name in SITES
    ]
    assert all(site.roles == {"training": 120, "validation": 40, "test": 40, "nobody": 0} for site in report.sites)
    assert [(client.name, client.site, client.classes) for client in report.clients] == [
        (name, name, {"ill": 60, "well": 60}) for name in SITES
    ]
    assert {(each.name, each.role, each.clients, each.samples) for each in report.scored} == {
        (name, role, 1, 40) for name in SITES for role in ("validation", "test")
    }
    assert report.originals == 600
    assert report.trained == {"ill": 180, "well": 180}
    assert "Samples: 600 rows of shape [6], float32" in str(report)


def test_a_held_out_site_is_counted_and_nobodys_samples_are():
    report = reported(clean(), LeaveOneDomainOut(hold_out="west", validation=0.2, fraction=0.5))
    north, _, west = report.sites
    assert north.roles == {"training": 80, "validation": 40, "test": 0, "nobody": 80}
    assert west.roles == {"training": 0, "validation": 0, "test": 200, "nobody": 0}
    assert (west.clients, west.classes) == (0, {"ill": 100, "well": 100})
    assert [(each.name, each.clients) for each in report.scored if each.role == "test"] == [("west", 0)]


def test_values_are_measured_at_each_site():
    data = changed(clean(), lambda x: x[:200, 1].add_(1e6))
    data.x[3, 2] = torch.nan
    looked = roles_of(data).judged(test=False)
    values = {(each.column, each.site): each for each in reported(data).values}
    for site, column in product(range(3), range(6)):
        own = data.x[looked & (data.domain == site), column].double()
        known, found = own[~own.isnan()], values[str(column), SITES[site]]
        assert (found.samples, found.low, found.high) == (160, known.min(), known.max())
        assert found.missing == pytest.approx(own.isnan().double().mean().item(), abs=1e-12)
        assert (found.mean, found.std) == pytest.approx((known.mean().item(), known.std(correction=0).item()))


def test_of_test_samples_only_labels_and_equality_are_looked_at():
    """Whatever they hold, nothing changes unless that is asked for, and then it does."""
    data, protocol = clean(), LeaveOneDomainOut(hold_out="west", validation=0.2)
    poisoned = changed(data, lambda x: x[data.domain == 2].shape and x.index_fill_(0, torch.arange(400, 600), 1e9))
    poisoned.x[400:, 0] = torch.arange(200)  # no two are equal
    before, after = (reported(each, protocol) for each in (data, poisoned))
    assert before.table() == after.table()
    assert before.findings == after.findings
    assert {each.site for each in before.values} == {"north", "south"}
    assert any(note.startswith("Of test samples no more is looked at") for note in before.table()["notes"])
    asked = reported(poisoned, protocol, test=True)
    assert {"value ranges", "feature drift"} <= set(kinds(asked))
    assert any(note.startswith("Test samples are judged") for note in asked.table()["notes"])


# What is odd --------------------------------------------------------------------------------------


def _few(data: DomainData) -> DomainData:
    kept = (data.domain != 1) | (torch.arange(600) < 230)
    return replace(data, x=data.x[kept], y=data.y[kept], domain=data.domain[kept], group=data.group[kept])


def _rare(data: DomainData) -> DomainData:
    """Of 300 of each class 285 of one become the other: 9 of 180 are trained on."""
    y = data.y.clone()
    y[(torch.arange(600) % 40 != 1) & (data.y == 1)] = 0
    return replace(data, y=y)


def _one_class_at_a_site(data: DomainData) -> DomainData:
    return replace(data, y=data.y.where(data.domain != 0, 0))


ODD: dict[str, tuple[Plant, str]] = {
    "few samples": (_few, "1 of 3 clients train on few samples, south: 18, where the median is 120"),
    "imbalance": (_rare, "the class 'ill' has 351 samples and 'well' 9, 39 times fewer"),
    "absent class": (_one_class_at_a_site, "1 of 3 clients train without a sample of some class: north lacks 'well'"),
    "missing values": (
        lambda data: changed(data, lambda x: x[:100, 2].fill_(torch.nan)),
        "Numbers are missing at 1 of 3 sites, most of all north 50 % of column 2.",
    ),
    "value ranges": (
        lambda data: changed(data, lambda x: x[:200, 4].mul_(1000)),
        "1 of 3 sites have values of another range: north, column 4 (",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_found_with_its_numbers(kind: str):
    """Each with what necessarily comes with it: sites of other values are told apart."""
    plant, words = ODD[kind]
    report = reported(plant(clean()))
    assert set(kinds(report)) - {"feature drift"} == {kind}
    assert any(words in finding.text for finding in report.findings)


def test_a_class_that_nobody_trains_on_is_found():
    data = clean()
    y = data.y.where(data.domain != 2, 2)
    report = reported(replace(data, y=y, classes=(*data.classes, "dead")), LeaveOneDomainOut(hold_out="west"))
    absent = [finding.text for finding in report.findings if finding.kind == "absent class"]
    assert absent[0] == "1 of 3 classes have samples, but nobody trains on one: 'dead'."


# Duplicates ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.sampled_from([torch.uint8, torch.float32, torch.int64]))
def test_samples_of_equal_bytes_have_one_number(values: list[int], dtype: torch.dtype):
    x = torch.tensor(values).to(dtype).view(-1, 1).expand(-1, 3)
    found = contents(x).tolist()
    for (one, a), (other, b) in combinations(zip(values, found, strict=True), 2):
        assert (one == other) == (a == b)
    assert sorted(set(found)) == list(range(len(set(values))))


def copied(data: DomainData, pairs: list[tuple[int, int]]) -> DomainData:
    """Some samples become what others are."""
    to, of = zip(*pairs, strict=True)
    return changed(data, lambda x: x.index_copy_(0, torch.tensor(to), data.x[list(of)]))


def test_equal_samples_on_both_sides_of_a_split_are_found():
    data = clean()
    roles = roles_of(data)
    trained, tested, validated = (
        roles.masks[role].nonzero().flatten().tolist() for role in ("training", "test", "validation")
    )
    pairs = [(tested[0], trained[-1]), (tested[1], trained[-1]), (validated[0], trained[5])]
    report = reported(copied(data, pairs))
    texts = [finding.text for finding in report.findings if finding.kind == "duplicates"]
    assert texts[0].startswith(
        f"1 of 120 samples of validation are also in training, bit by bit (sample {validated[0]} "
    )
    assert texts[1].startswith(f"2 of 120 samples of test are also in training, bit by bit (sample {tested[0]} ")


def test_equal_samples_of_sites_and_classes_are_found():
    data = clean()
    trained = roles_of(data).masks["training"]
    a, b, c = ((trained & (data.domain == site) & (data.y == 0)).nonzero().flatten().tolist() for site in range(3))
    ill = (trained & (data.domain == 2) & (data.y == 1)).nonzero().flatten().tolist()
    pairs = [(b[0], a[0]), (b[1], a[1]), (c[0], a[1]), (c[4], c[3]), (c[5], c[3]), (ill[7], c[9])]
    report = reported(copied(data, pairs))
    found = {each.where: each for each in report.duplicates}
    assert set(found) == {"sites", "labels"}
    assert (found["sites"].samples, found["sites"].count, found["sites"].sites) == (5, 2, SITES)
    one, other = sorted([(c[9], "ill"), (ill[7], "well")])
    assert found["labels"].sets == (tuple(f"sample {row} is '{label}'" for row, label in (one, other)),)
    texts = {finding.kind: finding.text for finding in report.findings}
    assert "2 samples are equal bit by bit to one of another class" in texts["conflicting labels"]
    assert set(texts) == {"duplicates", "conflicting labels"}


def test_equal_samples_are_named_by_file_where_that_is_known(tmp_path: Path, make: Make):
    """An image that lies at two sites."""
    for site in ("a", "b"):
        for number in range(8):
            file = tmp_path / site / ("ill" if number % 2 else "well") / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (6, 6), 10 * number + 100 * (site == "b")).save(file)
    twin, of = tmp_path / "b" / "well" / "2.png", tmp_path / "a" / "well" / "4.png"
    twin.write_bytes(of.read_bytes())
    settings = {"data.path": str(tmp_path), "data.size": 6, "data.channels": 1, "protocol.hold_out": "b"}
    report = fedshift.inspect_data(make(), data="folder", settings=settings, progress=Progress())
    assert [each.where for each in report.duplicates] == ["test", "sites"]
    assert str(twin) in report.findings[0].text
    assert str(of) in report.findings[0].text


# Drift --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "signals", "images", "text", "arrays"])
def test_a_shift_of_features_is_told(kind: str):
    """One site's samples are moved, of any kind, and only its pairs differ."""
    data = changed(clean(kind))
    moved = data.x[:200] * (2 if kind != "images" else 0.6)
    data.x[:200] = (moved.clamp(0, 9) if kind == "text" else moved).to(data.x.dtype)
    drift = reported(data).features
    assert drift is not None
    assert [each.significant for each in drift] == [True, True, False]
    assert [(each.one, each.other) for each in drift] == [("north", "south"), ("north", "west"), ("south", "west")]


def _skewed(seed: int) -> DomainData:
    """A site has 300 of one class and 30 or 60 of the other, another site the other way round; else they are alike."""
    data = clean(sites=2, per_class=300, seed=seed)
    kept = torch.arange(1200) % 20 < torch.where(data.y == data.domain, 20, 3)
    return replace(data, x=data.x[kept], y=data.y[kept], domain=data.domain[kept], group=data.group[kept])


def test_a_shift_of_labels_is_no_shift_of_features():
    """Of 10 such pairs of sites more than 4 have p below 0.05 by chance in less than one of a thousand cases."""
    count = 0
    for seed in range(10):
        data = _skewed(seed)
        (pair,) = feature_drift(data, torch.ones_like(data.y, dtype=torch.bool), "rows", Streams(seed))
        count += pair.significant
    assert count <= scipy.stats.binom.ppf(0.999, 10, 0.05)


def test_samples_of_one_original_are_no_independent_samples():
    """Each site has patients of its own, with ten nearly equal samples each; sites are alike but for who is there.

    Taken as independent, the samples of a patient on both halves give its site away.
    """
    patients = drawn(60, 6)
    x = patients.repeat_interleave(10, dim=0) + 0.01 * drawn(600, 6, seed=1)
    y, domain = torch.arange(60).repeat_interleave(10) % 2, torch.arange(600) // 300
    data = DomainData(x, y, domain, SITES[:2], ("ill", "well"), torch.arange(600))
    looked = torch.ones(600, dtype=torch.bool)
    known = replace(data, group=torch.arange(60).repeat_interleave(10))
    alone = feature_drift(data, looked, "rows", Streams(0))
    assert alone[0].p < 0.01
    assert feature_drift(known, looked, "rows", Streams(0)) == ()  # 30 patients of a site are too few


@pytest.mark.parametrize("kind", ["rows", "signals", "arrays"])
def test_the_largest_numbers_can_be_compared(kind: str):
    drift = reported(changed(clean(kind), lambda x: x.mul_(1e37))).features
    assert drift is not None
    assert [each.significant for each in drift] == [False] * 3


def test_of_many_sites_each_is_compared_with_the_others():
    """Of 18, one of which is moved."""
    x, domain = drawn(18 * 60, 3), torch.arange(18).repeat_interleave(60)
    x[:60] += 2
    names = tuple(f"site {number}" for number in range(18))
    data = DomainData(x, torch.arange(18 * 60) % 2, domain, names, ("ill", "well"), torch.arange(18 * 60))
    report = reported(data)
    drift = report.features
    assert drift is not None
    assert [each.one for each in drift] == list(names)
    assert {each.other for each in drift} == {REST}
    assert [each.one for each in drift if each.significant] == ["site 0"]
    text = str(report)
    assert "1 of 18 sites and the others are told apart by a classifier, site 0 and the others best" in text


def test_sites_of_no_common_class_are_not_compared():
    data = clean(sites=2)
    data = replace(data, y=data.domain)
    assert feature_drift(data, torch.ones(400, dtype=torch.bool), "rows", Streams(0)) == ()
    assert any(
        "2 of 2 sites have too few samples of common classes" in note for note in reported(data).table()["notes"]
    )


def test_without_scikit_learn_all_else_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.stats", None)
    report = reported(clean())
    assert report.features is None
    assert any("pip install 'fedshift[sklearn]'" in note for note in report.notes)
    assert report.sites


# Where it is read ---------------------------------------------------------------------------------


def test_channels_are_all_named_or_none():
    with refuses("channels names 1 of the 2 channels"):
        replace(clean("signals"), channels=("left",))


@pytest.mark.parametrize("kind", ["rows", "text"])
def test_everything_is_in_the_text_the_notebook_and_the_json(kind: str):
    data = replace(clean(kind), domains=("a|b", "<i>", "*"))
    report = reported(_one_class_at_a_site(data), notes=["Something else."])
    Strict(report._repr_html_())
    for finding in report.findings:
        assert finding.text in str(report)
    assert "Note: Something else." in repr(report)
    table = json.loads(json.dumps(report.table(), allow_nan=False))
    assert [site["name"] for site in table["sites"]] == ["a|b", "<i>", "*"]
    assert table["findings"][0]["kind"] == "absent class"
    assert table["sites"][1]["classes"] == {"ill": 100, "well": 100}


# Tables -------------------------------------------------------------------------------------------


def table_of(drugs: dict[str, str], shift: float = 0.0, seed: int = 0) -> DomainData:
    """Three sites of 200 rows: an age, a drug of those that a site gives, and a code that is the same at one site."""
    draw, sites = np.random.default_rng(seed), ("north", "south", "west")
    names = tuple(sorted({drug for some in drugs.values() for drug in some}))
    drug = np.concatenate([draw.choice([names.index(each) for each in drugs[site]], 200) for site in sites])
    domain = np.repeat(np.arange(3), 200)
    code = np.where(domain == 1, 2, draw.integers(0, 2, 600))
    x = np.stack([draw.normal(50, 10, 600) + shift * domain, drug, code], axis=1)
    x[:4, 1] = np.nan
    columns = (Column("age"), Column("drug", names), Column("code", ("7", "8", "9000")))
    return DomainData(
        x=torch.from_numpy(x),
        y=torch.from_numpy(np.tile([0, 1], 300)),
        domain=torch.from_numpy(domain),
        domains=sites,
        classes=("ill", "well"),
        group=torch.arange(600),
        columns=columns,
    )


ALIKE = dict.fromkeys(("north", "south", "west"), "abc")


def test_columns_of_a_table_are_called_by_name_and_codes_are_no_numbers():
    report = reported(table_of(ALIKE))
    assert [each.column for each in report.values] == ["age"] * 3 + ["drug"] * 3 + ["code"] * 3
    assert {each.mean for each in report.values[3:]} == {None}
    found = [str(each) for each in report.findings]
    assert any("north" in each and "of column drug" in each for each in found), found
    assert "value ranges" not in kinds(report)


def test_sites_that_give_other_drugs_are_told_apart():
    """North and west give each other drug of six, south the rest: their names tell them apart, codes hardly."""
    data = table_of({"north": "ace", "south": "bdf", "west": "ace"})
    x = data.x.clone()
    x[:, 2] = 0
    found = reported(replace(data, x=x)).features
    assert found is not None
    values = {(each.one, each.other): (each.accuracy > 0.97, each.significant) for each in found}
    assert values == {
        ("north", "south"): (True, True),
        ("north", "west"): (False, False),
        ("south", "west"): (True, True),
    }


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def ok(tmp_path: Path) -> Callable[..., str]:
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(override(TINY, {"run.out": str(tmp_path / "runs")})))

    def invoke(*words: str) -> str:
        return RUNNER.invoke(app, ["data", str(file), *words], catch_exceptions=False).stdout

    return invoke


def test_the_command_prints_and_writes_the_page(ok: Callable[..., str], tmp_path: Path):
    """The tiny data: brightness is the site, and 3 of 30 images of a site are validated on."""
    page = tmp_path / "page.html"
    output = ok("--html", str(page))
    assert re.search(r"Found: \d\n1\. ", output)
    assert "2 validation environments have few samples, dark: 3" in output
    assert f"Written: {page}" in output
    Strict(page.read_text(encoding="utf-8"))
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").touch()
    for words, said in (
        (["--dry-run"], "--dry-run"),
        (["--hold-out", "nowhere"], "'nowhere'"),
        (["--html", str(tmp_path / "file" / "page.html")], "cannot be written"),
    ):
        with refuses(said):
            ok(*words)


def test_the_command_prints_json_alone(ok: Callable[..., str]):
    table = json.loads(ok("--json", "--method", "fedavg,fedsr"))
    assert [each["site"] for each in table["values"]] == ["dark", "gray"]
    assert (table["experiment"], table["data"], table["kind"], table["samples"]) == ("tiny", "tiny", "images", 90)
    assert not any("divide data" in note for note in table["notes"])
    assert table["sites"][2]["roles"] == {"training": 0, "validation": 0, "test": 30, "nobody": 0}


def test_a_division_that_a_run_refuses_is_reported(make: Make):
    """One image of a class: none is left for validation."""
    report = fedshift.inspect_data(make({"data.per_class": 1}), progress=Progress())
    assert report.findings[0].kind == "refused"
    assert "No validation sample of 'dark' is left to score" in report.findings[0].text
    assert [each.samples for each in report.scored if each.role == "validation"] == [0, 0]


# The page of the docs -----------------------------------------------------------------------------

DOCS = (Path(__file__).parents[1] / "docs" / "check-data.md").read_text(encoding="utf-8")


def test_the_example_of_the_docs_runs_and_finds_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    code, found = (re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", DOCS, re.DOTALL) for marker in ("check", "found"))
    assert code is not None
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], "check-data.md", "exec"), names)  # the point of the test
    text = str(names["report"]).replace(f"{tmp_path}/", "")
    accuracy = partial(re.sub, r"\d+ % of", "some % of")  # its last digit is that of a version of scikit-learn
    assert accuracy(text[text.index("Found: ") : text.index("Note: ")]) == accuracy(found[1])
    assert names["page"].is_file()


def test_every_kind_of_finding_is_in_the_docs():
    table = DOCS.partition("| found | when |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")}
    made = re.findall(r'Finding\(\s*f?"([^"]+)"', Path(findings.__file__).read_text(encoding="utf-8"))
    assert set(made) == listed
