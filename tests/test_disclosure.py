"""Few samples: anyone who has all numbers that are published cannot work out a count that is withheld."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from fedshift.core.disclosure import WITHHELD, CellCounts, Permitted, permitted, pooled, size_alone
from fedshift.runs.released import Subgroups
from fedshift.runs.scoring import Performance, Predicted, environment, subgroups

DECLARED = ("class-sensitivity", "class-precision")


def cells(*table: list[int], floor: int = 10) -> CellCounts:
    """Counts of classes (rows) by predicted classes, every sample a separate group."""
    counts = np.array(table)
    columns = counts.sum(axis=0)
    return CellCounts(counts, counts.sum(axis=1) < floor, (columns > 0) & (columns < floor))


# By hand --------------------------------------------------------------------------------------------------


def test_large_cells_are_told():
    found = permitted(cells([30, 5], [10, 20]), 10)
    assert found == Permitted((35, 30), threshold=True, precision=True)
    assert all(found.metric(name, ("a", "b")) for name in ("accuracy", "auroc", "precision of a", "macro-f1"))


def test_one_small_class_hides_the_other_as_it_would_be_the_rest():
    found = permitted(cells([30, 5], [2, 4]), 10)
    assert found.support == (WITHHELD, WITHHELD)
    published_of = [name for name in ("accuracy", "auroc", "sensitivity of a") if found.metric(name, ("a", "b"))]
    assert published_of == ["accuracy"]  # which no class is known by


def test_two_small_classes_of_three_hide_each_other():
    found = permitted(cells([30, 5, 5], [2, 2, 0], [0, 0, 3]), 10)
    assert found.support == (40, "< 10", "< 10")  # 7 together
    assert found.metric("auroc of a", "abc")
    assert not found.metric("auroc", "abc")


def test_two_absent_classes_would_follow_from_their_sum():
    """Of 40 samples 20 and 20 are of two classes: the others would be 0 and 0 if both were published."""
    found = permitted(cells([20, 0, 0, 0], [0, 20, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]), 10)
    assert found.support == (WITHHELD, 20, WITHHELD, WITHHELD)


def test_a_class_that_is_rarely_predicted_hides_what_gives_the_count():
    """Supports of 40 and 60 with sensitivities of 4 / 40 and 1 would reveal that 4 samples are predicted to be ill."""
    found = permitted(cells([4, 36], [0, 60]), 10)
    assert found == Permitted((40, 60), threshold=False, precision=False)
    assert found.metric("auroc", ("ill", "well"))
    assert not any(found.metric(name, ("ill", "well")) for name in ("accuracy", "sensitivity of ill"))


def test_a_class_that_is_never_predicted_is_no_small_cell():
    assert permitted(cells([0, 40], [0, 60]), 10) == Permitted((40, 60), threshold=True, precision=True)


def test_of_three_classes_sensitivities_leave_open_how_often_a_class_is_predicted():
    """Of 38 and 5 errors of the other classes any number may have been predicted to be of the first."""
    assert permitted(cells([2, 38, 0], [1, 20, 20], [4, 1, 50]), 10) == Permitted(
        (40, 41, 55), threshold=True, precision=False
    )
    assert not permitted(cells([9, 1, 0], [0, 40, 0], [0, 0, 50]), 10).threshold  # with one error it is 9


def test_small_subgroups_are_told_as_one():
    sizes = {"a": 100, "b": 30, "c": 4, "d": 20}
    assert pooled(sizes, sizes, 10) == {"c", "d"}  # alone, 4 would be the rest
    assert pooled({"a": 100, "c": 4, "d": 7}, {"a": 100, "c": 4, "d": 7}, 10) == {"c", "d"}
    assert pooled({"a": 95, "b": 5}, {"a": 95, "b": 5}, 10) == {"a", "b"}
    assert pooled({"a": 95, "b": 15}, {"a": 95, "b": 15}, 10) == set()


def test_a_subgroup_with_a_small_cell_is_not_the_rest_of_the_others():
    large, small = cells([30, 5], [10, 20]), cells([12, 0], [10, 2])
    parts = {"a": large, "b": cells([40, 5], [10, 20]), "c": small}
    assert set(size_alone(parts)) == {"a", "c"}  # the smallest of the others with it
    assert set(size_alone({"a": large, "b": large})) == set()


# Of random tables -----------------------------------------------------------------------------------------


class Attacker:
    """Someone who knows all that is published, and that counts are whole and not negative."""

    def __init__(self, overall: Performance, parts: list[Performance], classes: int) -> None:
        self.environments, self.classes = [overall, *parts], classes
        self.groups = max(1, len(parts))
        self.rows: list[np.ndarray] = []
        self.ends: list[tuple[float, float]] = []
        for place, each in enumerate(self.environments):
            self._learn(place, each)

    def mask(self, place: int) -> np.ndarray:
        """Which counts are of an environment: the first is of all."""
        mask = np.zeros((self.groups, self.classes, self.classes))
        mask[slice(None) if place == 0 else place - 1] = 1
        return mask

    def of_class(self, place: int, number: int) -> np.ndarray:
        mask = self.mask(place)
        mask[:, [each for each in range(self.classes) if each != number]] = 0
        return mask

    def of_predicted(self, place: int, number: int) -> np.ndarray:
        mask = self.mask(place)
        mask[:, :, [each for each in range(self.classes) if each != number]] = 0
        return mask

    def _learn(self, place: int, published: Performance) -> None:
        self._know(self.mask(place), published.n)
        for number, count in enumerate(published.support.values()):
            if isinstance(count, int):
                self._know(self.of_class(place, number), count)
            elif count.startswith("< "):
                self._know(self.of_class(place, number), 0, int(count[2:]) - 1)
        diagonal = np.eye(self.classes)[None]
        for score in published.scores:
            if score.value is None:
                continue
            kind, _, of_class = score.name.partition(" of ")
            assert score.n is not None
            if kind == "accuracy":
                self._know(self.mask(place) * diagonal, round(score.value * score.n))
                continue
            number = list(published.support).index(of_class)
            whole = self.of_class if kind == "sensitivity" else self.of_predicted
            self._know(whole(place, number), score.n)
            self._know(whole(place, number) * diagonal, round(score.value * score.n))

    def _know(self, which: np.ndarray, low: float, high: float | None = None) -> None:
        self.rows.append(which.ravel())
        self.ends.append((low, low if high is None else high))

    def limits(self, which: np.ndarray) -> tuple[int, int]:
        """The least and the most that a sum of counts can be."""
        low, high = zip(*self.ends, strict=True)
        known = LinearConstraint(np.stack(self.rows), low, high)
        found = [
            milp(sign * which.ravel(), constraints=known, integrality=np.ones(which.size), bounds=Bounds(0, np.inf))
            for sign in (1, -1)
        ]
        assert all(each.success for each in found)
        return round(found[0].fun), round(-found[1].fun)


def samples(table: np.ndarray) -> Iterator[tuple[int, int, int]]:
    for (group, label, predicted), count in np.ndenumerate(table):
        yield from [(group, label, predicted)] * int(count)


def scored(table: np.ndarray, floor: int) -> tuple[Predicted, Subgroups]:
    """What a model is that made such predictions, (subgroups, classes, classes)."""
    which, y, predicted = (torch.tensor(each) for each in zip(*samples(table), strict=True))
    classes = tuple("abc"[: table.shape[1]])
    one = torch.nn.functional.one_hot(predicted, len(classes)).double().log_softmax(dim=1)
    names = [f"group {number}" for number in range(len(table))]
    return Predicted(one, y, np.arange(len(y)), classes, floor), Subgroups("by", names, which)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Counts of some subgroups, classes and predicted classes, many of them small, and a floor."""
    classes, floor = draw(st.integers(2, 3)), draw(st.integers(2, 5))
    shape = (draw(st.integers(1, 4)), classes, classes)
    count = st.one_of(st.just(0), st.integers(0, floor), st.integers(0, 4 * floor))
    counts = draw(st.lists(count, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(counts).reshape(shape), floor


@given(tables())
@settings(max_examples=30)
def test_no_withheld_count_follows_from_what_is_told(drawn: tuple[np.ndarray, int]):
    table, floor = drawn
    if table.sum() < floor:
        return
    of_all, groups = scored(table, floor)
    overall, parts = environment(of_all, "all", DECLARED), subgroups(of_all, groups, DECLARED)
    check_told(overall, parts, floor)
    published_as = {each.name: place for place, each in enumerate(parts)}
    inside = [number for number, name in enumerate(groups.names) if name not in published_as and table[number].any()]
    if parts and inside:
        assert len(inside) > 1
        assert parts[published_as["others"]].n >= floor
    own = [table[number] for name in published_as if name != "others" for number in [list(groups.names).index(name)]]
    rows = [table, *(each[None] for each in own), *([table[inside]] if parts and inside else [])]
    attacker = Attacker(overall, parts, table.shape[1])
    for place, counts in enumerate(rows):
        for number in range(table.shape[1]):
            for whole, axis in ((attacker.of_class, 2), (attacker.of_predicted, 1)):
                count = counts.sum(axis=(0, axis))[number]
                if count < floor and (axis == 2 or count):
                    low, high = attacker.limits(whole(place, number))
                    assert low < high, (place, number, axis, count)


def check_told(overall: Performance, parts: list[Performance], floor: int) -> None:
    """No number that is published is of fewer samples."""
    for each in (overall, *parts):
        known: list[Any] = [each.n, *each.support.values(), *(score.n for score in each.scores)]
        assert min(count for count in known if isinstance(count, int)) >= floor
        assert not any(score.value is not None and score.n is None for score in each.scores)


def test_the_attacker_finds_what_is_not_withheld():
    """So that a test that finds nothing means something: of 12 samples 10 and the rest are of two classes."""
    overall = Performance("all", 12, {"a": 10, "b": WITHHELD})
    attacker = Attacker(overall, [], 2)
    assert attacker.limits(attacker.of_class(0, 1)) == (2, 2)


@pytest.mark.parametrize("floor", [1, 3])
def test_groups_count_and_not_samples(floor: int):
    """Thirty slices of two patients are a cell of two."""
    group = np.arange(2).repeat(15)
    found = CellCounts.of(np.zeros(30, int), np.ones(30, int), group, 2, floor)
    assert found.small.tolist() == [floor > 2, floor > 1]
    assert found.rare.tolist() == [False, floor > 2]
