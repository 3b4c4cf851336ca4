"""A inspect data before a run: what was planted is found, with its numbers, and nothing where there is nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor
from typer.testing import CliRunner

import fedshift
from conftest import TINY, Make
from fedshift.cli.app import app
from fedshift.clients.columns import ColumnScore, score_columns
from fedshift.clients.columns import _halves as halves
from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.clients.inputs import Inputs
from fedshift.clients.partitions import Domains
from fedshift.clients.preparation import Column
from fedshift.clients.protocols import InDomain, LeaveOneDomainOut, Protocol
from fedshift.reporting.data_report.drift import REST, feature_drift
from fedshift.reporting.data_report.duplicates import Roles
from fedshift.reporting.data_report.report import DataReport, look_at
from fedshift.runs.events import Progress
from fedshift.streams import Streams
from fedshift.study.grid import override
from refusal import refuses
from test_report import Strict

pytest.importorskip("sklearn")

SITES = ("north", "south", "west")
IN_DOMAIN = InDomain(test=0.2, validation=0.2)
Plant = Callable[[DomainData], DomainData]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clean(kind: str = "rows", seed: int = 0, per_class: int = 100, sites: int = 3) -> DomainData:
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
    report = reported(clean(kind))
    assert (report.kind, report.findings, len(report.features or ())) == (kind, (), 3)
    assert "Nothing odd was found." in str(report)


# What is there ------------------------------------------------------------------------------------


def test_what_was_read():
    """100 of each class at 3 sites, the last held out: of 200, 40 validate, and half of the others train."""
    report = reported(clean(), LeaveOneDomainOut(hold_out="west", validation=0.2, fraction=0.5))
    north, _, west = report.sites
    assert (north.name, north.samples, north.clients, north.classes) == ("north", 200, 1, {"ill": 100, "well": 100})
    assert north.roles == {"training": 80, "validation": 40, "test": 0, "nobody": 80}
    assert west.roles == {"training": 0, "validation": 0, "test": 200, "nobody": 0}
    assert [(each.name, each.site, each.classes) for each in report.clients] == [
        (name, name, {"ill": 40, "well": 40}) for name in SITES[:2]
    ]
    assert {(each.name, each.role, each.clients, each.samples) for each in report.scored} == {
        ("north", "validation", 1, 40),
        ("south", "validation", 1, 40),
        ("west", "test", 0, 200),
    }
    assert (report.originals, report.trained) == (600, {"ill": 80, "well": 80})


def test_values_are_measured_at_each_site():
    data = changed(clean(), lambda x: x[:200, 1].add_(1e6))
    data.x[3, 2] = torch.nan
    looked = Roles.of(federated(data), len(data.y)).judged(test=False)
    values = {(each.column, each.site): each for each in reported(data).values}
    for site, column in product(range(3), range(6)):
        own = data.x[looked & (data.domain == site), column].double()
        known, found = own[~own.isnan()], values[str(column), SITES[site]]
        assert (found.samples, found.low, found.high) == (160, known.min(), known.max())
        assert found.missing == pytest.approx(own.isnan().double().mean().item(), abs=1e-12)
        assert (found.mean, found.std) == pytest.approx((known.mean().item(), known.std(correction=0).item()))


def test_of_test_samples_only_labels_and_equality_are_looked_at():
    """Whatever they contain, nothing changes unless that is requested, and then it does."""
    data, protocol = clean(), LeaveOneDomainOut(hold_out="west", validation=0.2)
    poisoned = changed(data, lambda x: x[400:].fill_(1e9))
    poisoned.x[400:, 0] = torch.arange(200)  # no two are equal
    before, after = (reported(each, protocol) for each in (data, poisoned))
    assert before.table() == after.table()
    assert {each.site for each in before.values} == {"north", "south"}
    assert {"value ranges", "feature drift"} <= set(kinds(reported(poisoned, protocol, test=True)))


# What is odd --------------------------------------------------------------------------------------


def _few(data: DomainData) -> DomainData:
    kept = (data.domain != 1) | (torch.arange(600) < 230)
    return replace(data, x=data.x[kept], y=data.y[kept], domain=data.domain[kept], group=data.group[kept])


# Of _rare's 300 of each class 285 of one become the other: 9 of 180 are trained on.
_RARE = torch.arange(600) % 40 != 1
ODD: dict[str, tuple[Plant, str]] = {
    "few samples": (_few, "1 of 3 clients train on few samples, south: 18, where the median is 120"),
    "imbalance": (
        lambda data: replace(data, y=data.y.where(~_RARE, 0)),
        "the class 'ill' has 351 samples and 'well' 9, 39 times fewer",
    ),
    "absent class": (
        lambda data: replace(data, y=data.y.where(data.domain != 0, 0)),
        "1 of 3 clients train without a sample of some class: north lacks 'well'",
    ),
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
    """Each with what necessarily comes with it: sites of other values are distinguished."""
    plant, words = ODD[kind]
    report = reported(plant(clean()))
    assert set(kinds(report)) - {"feature drift"} == {kind}
    assert any(words in finding.text for finding in report.findings)


def test_columns_that_a_site_hardly_has_are_found():
    """All of north's cells of column 2 are missing, which is the more general finding as well."""
    report = reported(changed(clean(), lambda x: x[:200, 2].fill_(torch.nan)))
    assert set(kinds(report)) - {"feature drift"} == {"mostly missing", "missing values"}
    (found,) = [finding for finding in report.findings if finding.kind == "mostly missing"]
    assert found.text == "Almost all of a column is missing at 1 of 3 sites: north 100 % of '2'."
    assert found.sites == ("north",)
    for setting in ("exclude", "indicate", "pool"):
        assert f"--set data.{setting}=2" in found.remedy


def test_a_class_that_nobody_trains_on_is_found():
    data = replace(clean(), classes=("ill", "well", "dead"))
    report = reported(replace(data, y=data.y.where(data.domain != 2, 2)), LeaveOneDomainOut(hold_out="west"))
    assert "1 of 3 classes have samples, but no client trains on one: 'dead'." in [
        each.text for each in report.findings
    ]


# Duplicates ---------------------------------------------------------------------------------------


def test_equal_samples_are_found_on_both_sides_of_a_split_at_several_sites_and_of_other_classes():
    """A training sample is copied to a test sample, a site, and a class."""
    data = clean()
    masks = Roles.of(federated(data), len(data.y)).masks

    def rows(role: str, site: int, label: int) -> list[int]:
        return (masks[role] & (data.domain == site) & (data.y == label)).nonzero().flatten().tolist()

    a, b, well = rows("training", 0, 0), rows("training", 1, 0), rows("training", 0, 1)
    tested = rows("test", 0, 0)[0]
    to, of = [tested, b[0], well[0]], [a[0], a[1], a[2]]
    report = reported(changed(data, lambda x: x.index_copy_(0, torch.tensor(to), data.x[of])))
    found = {each.where: each for each in report.duplicates}
    assert {where: each.samples for where, each in found.items()} == {"test": 1, "sites": 2, "labels": 2}
    one, other = sorted([(a[2], "ill"), (well[0], "well")])
    assert found["labels"].sets == (tuple(f"sample {row} is '{label}'" for row, label in (one, other)),)
    texts = [finding.text for finding in report.findings]
    assert any(f"1 of 120 samples of test are also in training, bit by bit (sample {tested} " in each for each in texts)
    assert set(kinds(report)) == {"duplicates", "conflicting labels"}


def test_a_division_that_a_run_refuses_is_reported(make: Make):
    """One image of a class: none is left for validation."""
    report = fedshift.inspect_data(make({"data.per_class": 1}), progress=Progress())
    assert report.findings[0].kind == "refused"
    assert "No validation sample of 'dark' is left to score" in report.findings[0].text


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


def test_samples_of_one_original_are_no_independent_samples():
    """Each site has separate patients, with ten nearly equal samples each; sites are equal but for who is there.

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
    report = reported(known)  # 30 patients of a site are too few
    assert report.features == ()
    assert any("2 of 2 sites have too few samples" in note for note in report.table()["notes"])


def test_without_scikit_learn_all_else_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.stats", None)
    report = reported(clean())
    assert report.features is None
    assert any("pip install 'fedshift[sklearn]'" in note for note in report.notes)
    assert report.sites


def test_a_shift_of_labels_is_no_shift_of_features():
    """A site has 300 of one class and 30 or 60 of the other, another site the other way round; else they are equal.

    Of 10 such pairs of sites more than 4 have p below 0.05 by chance in less than one of a thousand cases.
    """
    count = 0
    for seed in range(10):
        data = clean(sites=2, per_class=300, seed=seed)
        kept = torch.arange(1200) % 20 < torch.where(data.y == data.domain, 20, 3)
        data = replace(data, x=data.x[kept], y=data.y[kept], domain=data.domain[kept], group=data.group[kept])
        (pair,) = feature_drift(data, torch.ones_like(data.y, dtype=torch.bool), "rows", Streams(seed))
        count += pair.significant
    assert count <= scipy.stats.binom.ppf(0.999, 10, 0.05)


def test_of_many_sites_each_is_compared_with_the_others():
    """Of 18, one of which is moved."""
    x, domain = drawn(18 * 60, 3), torch.arange(18).repeat_interleave(60)
    x[:60] += 2
    names = tuple(f"site {number}" for number in range(18))
    data = DomainData(x, torch.arange(18 * 60) % 2, domain, names, ("ill", "well"), torch.arange(18 * 60))
    drift = reported(data).features
    assert drift is not None
    assert [(each.one, each.other) for each in drift] == [(name, REST) for name in names]
    assert [each.one for each in drift if each.significant] == ["site 0"]


def test_columns_of_a_table_are_called_by_name_and_categories_are_no_numbers():
    """North and west give each other drug of six, south the rest: their names separate them, codes hardly."""
    draw, names, domain = np.random.default_rng(0), tuple("abcdef"), np.repeat(np.arange(3), 200)
    drug = np.concatenate([draw.choice([names.index(each) for each in some], 200) for some in ("ace", "bdf", "ace")])
    x = np.stack([draw.normal(50, 10, 600), drug], axis=1)
    group, y = torch.arange(600), torch.from_numpy(np.tile([0, 1], 300))
    columns = (Column("age"), Column("drug", names))
    report = reported(
        DomainData(torch.from_numpy(x), y, torch.from_numpy(domain), SITES, ("ill", "well"), group, columns=columns)
    )
    assert [each.column for each in report.values] == ["age"] * 3 + ["drug"] * 3
    assert {each.mean for each in report.values[3:]} == {None}
    assert report.features is not None
    assert [(each.accuracy > 0.97, each.significant) for each in report.features] == [
        (True, True),
        (False, False),
        (True, True),  # north and south, north and west, south and west
    ]


# The command --------------------------------------------------------------------------------------


def test_the_command_prints_and_writes_the_page(tmp_path: Path):
    """The tiny data: brightness is the site, and 3 of 30 images of a site are validated on."""
    file, page = tmp_path / "tiny.toml", tmp_path / "page.html"
    file.write_text(tomli_w.dumps(override(TINY, {"run.out": str(tmp_path / "runs")})))

    def said(*words: str) -> str:
        return CliRunner().invoke(app, ["data", str(file), *words], catch_exceptions=False).stdout

    output = said("--html", str(page))
    assert re.search(r"Found: \d\n1\. ", output)
    assert "2 validation environments have few samples, dark: 3" in output
    Strict(page.read_text(encoding="utf-8"))
    table = json.loads(said("--json"))
    assert [each["site"] for each in table["values"]] == ["dark", "gray"]
    assert (table["experiment"], table["data"], table["kind"], table["samples"]) == ("tiny", "tiny", "images", 90)
    assert table["sites"][2]["roles"] == {"training": 0, "validation": 0, "test": 30, "nobody": 0}
    assert not (tmp_path / "runs").exists()
    with refuses("'nowhere'"):
        said("--hold-out", "nowhere")


def test_everything_is_in_the_text_the_notebook_and_the_json():
    data = replace(clean(), domains=("a|b", "<i>", "*"))
    report = reported(replace(data, y=data.y.where(data.domain != 0, 0)))
    Strict(report._repr_html_())
    assert all(finding.text in str(report) for finding in report.findings)
    table = json.loads(json.dumps(report.table(), allow_nan=False))
    assert [site["name"] for site in table["sites"]] == ["a|b", "<i>", "*"]
    assert table["findings"][0]["kind"] == "absent class"


def test_samples_of_one_group_that_cannot_be_split_are_named():
    data = replace(clean(), where=lambda row: f"row {row} of 'x'")
    one = replace(data, group=data.group.where(data.domain != 1, 200))
    with refuses("sample of 'south'", "its 200 samples share the group of row 200 of 'x'"):
        federated(one).checked(one)
    assert len(federated(data).checked(data).environments) == 6


# Columns by themselves ------------------------------------------------------------------------------


def alone(x: Any, y: Any, *categories: int, group: Any = None) -> list[ColumnScore]:
    x, y = torch.as_tensor(np.asarray(x, float)), torch.as_tensor(y)
    columns = [Column(str(n), ("c",) if n in categories else None) for n in range(x.shape[1])]
    group = torch.arange(len(y)) if group is None else torch.as_tensor(group)
    return list(score_columns(x, y, group, columns, torch.Generator().manual_seed(0)))


def test_a_column_of_few_numbers_has_the_area_of_its_values_or_of_their_shares():
    """Over pairs of a row of the one class and one of the other: 3 of 4 are in order, or half of them and a tie.

    Labels are 20 of each. The first column is 1 for 15 of class 1 and for 5 of class 0: a pair is in order with
    .75 * .75, and equal with .75 * .25 * 2 of it, which counts half: .5625 + .1875 = .75. Upside down it is as good.
    """
    y = np.repeat([0, 1], 20)
    one = np.concatenate([np.repeat([0, 1], [15, 5]), np.repeat([0, 1], [5, 15])])
    first, second, third = alone(np.stack([one, -one, np.zeros(40)], axis=1), y)
    assert first.auroc == pytest.approx(0.75)
    assert second.auroc == pytest.approx(0.75)
    assert third.auroc == 0.5
    assert not (first.reveals or first.unique)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 5]))
def test_the_area_is_scikit_learn_s(seed: int, classes: int):
    """The mean of one class against the rest: of shares in the other half, and of numbers with ties, if that is more.

    A missing cell is the smallest number. Ten categories are as many bins as 200 rows have.
    """
    draw = np.random.default_rng(seed)
    y = np.concatenate([np.repeat(np.arange(classes), 20), draw.integers(0, classes, 200 - 20 * classes)])
    x = np.clip(np.round(2 * draw.normal(size=len(y)) + draw.normal(size=classes)[y]), -4, 4)
    x[draw.random(len(y)) < 0.2] = np.nan
    numbers, categories = alone(np.stack([x, x], axis=1), y, 1)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).numpy()
    x, y = np.nan_to_num(x, nan=-9.0)[order], y[order]
    half, by_share = halves(order, y), []
    assert abs(int(half.sum()) - 100) <= 1
    for own, c in product((half, ~half), range(classes)):
        there, hit = x[~own], y[~own] == c
        share = [((hit & (there == one)).sum() + hit.mean()) / ((there == one).sum() + 1) for one in x[own]]
        by_share.append(roc_auc_score(y[own] == c, share))
    rising = [roc_auc_score(y == c, x) for c in range(classes)]
    assert categories.auroc == pytest.approx(np.mean(by_share))
    in_either = np.mean([max(area, 1 - area) for area in rising])
    assert numbers.auroc == pytest.approx(max(in_either, np.mean(by_share)))


def test_what_reveals_the_label_is_told_from_what_is_another_value_in_every_row():
    """An id from 1000 on for the ill, numbers in the middle of the others, missing cells, and categories of one class.

    A category that no other row has reveals nothing about it, unless rows of one patient are on both sides, which a
    group of theirs prevents.
    """
    draw, y = np.random.default_rng(0), np.arange(400) % 2
    noise, order = draw.normal(size=400), draw.permutation(400)
    middle, missing = np.where(y == 1, noise / 100, np.sign(noise) * 5), np.where(y == 1, np.nan, noise)
    found = alone(np.stack([1000 * y + order, middle, missing, noise + 2 * y, order, noise], axis=1), y)
    assert [each.reveals for each in found] == [True, True, True, False, False, False]
    assert [each.unique for each in found] == [True, False, False, False, True, False]
    of_one_class, code = alone(np.stack([3 * y + draw.integers(0, 3, 400), order], axis=1), y, 0, 1)
    assert (of_one_class.reveals, of_one_class.unique) == (True, False)
    assert (code.auroc, code.unique) == (0.5, True)
    patient = np.repeat(np.arange(40), 10)
    for group, reveals in ((np.arange(400), True), (patient, False)):
        (found_id,) = alone(patient[:, None], patient % 2, 0, group=group)
        assert (found_id.reveals, found_id.auroc == 0.5) == (reveals, not reveals)


def test_rare_classes_have_no_area():
    assert alone([[0.0], [1.0]] * 9, [0, 1] * 9)[0].auroc is None
    assert alone([[0.0], [1.0]] * 10, [0, 1] * 10)[0].auroc == 1.0


def test_columns_that_reveal_the_label_and_ids_are_found_on_training_rows():
    """Whatever stands in test rows; and the setting that the finding names excludes them."""
    data = clean()
    data = changed(replace(data, columns=tuple(map(Column, "abcdef"))), lambda x: x[:, 1].add_(8 * data.y))
    data.x[:, 4] = torch.randperm(600, generator=torch.Generator().manual_seed(0)).float()
    report = reported(data, batch=100_000)
    found = {each.kind: each for each in report.findings}
    assert set(found) == {"revealing column", "unique column", "batch"}
    assert "1 of 6 columns" in found["revealing column"].text
    assert "'b' (AUROC 1.000)" in found["revealing column"].text
    assert "--set data.exclude=b" in found["revealing column"].remedy
    assert "'e'" in found["unique column"].text
    assert "train.batch = 100,000, but no client has more than 120 training samples" in found["batch"].text
    masks = Roles.of(federated(data), len(data.y)).masks
    poisoned = changed(data, lambda x: x.masked_fill_(~masks["training"][:, None], 3.0))
    assert reported(poisoned).alone == report.alone
    assert "b" in str(report).split("AUROC in %")[1].splitlines()[4]
