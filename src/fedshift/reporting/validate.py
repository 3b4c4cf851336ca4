"""Score a trained model on labelled samples, and put together what may be published of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedshift.clients.domains import DomainData
from fedshift.clients.federated import FederatedData
from fedshift.core.disclosure import fewer
from fedshift.core.metrics import check_metrics
from fedshift.core.reliability import count
from fedshift.datasets import DATASETS
from fedshift.errors import FedshiftError
from fedshift.reporting.validation import Balance, Validation
from fedshift.runs.drift_of_columns import column_drift
from fedshift.runs.released import Released, read_labelled
from fedshift.runs.scoring import (
    DEFAULT,
    EVERYTHING,
    OperatingPoint,
    Performance,
    Predicted,
    at_threshold,
    bins,
    chosen_on_validation,
    coefficients,
    environment,
    of_model,
    paired,
    subgroups,
)

NO_RUN = "the model's folder does not lead to the samples of its run"
NOT_HERE = "the samples of its run cannot be read here"
NO_VALIDATION = "its run has no validation samples of both classes"


def validated(
    model: Released,
    path: str,
    *,
    against: Released | None = None,
    metrics: Sequence[str] = (),
    by: str = "",
    floor: int = 10,
    settings: Mapping[str, Any] | None = None,
) -> Validation:
    """Score a model on labelled samples; see :func:`fedshift.validate`."""
    declared = tuple(metrics) or model.metrics or DEFAULT
    check_metrics(declared, "accuracy")
    if floor < 1:
        raise FedshiftError(f"--min-count = {floor}: give 1 or more.")
    if against is not None and against.classes != model.classes:
        raise FedshiftError(
            f"'{against.name}' has the classes {', '.join(against.classes)}, and '{model.name}' "
            f"{', '.join(model.classes)}: give two models of the same classes, in the same order."
        )
    data, groups = read_labelled(model, path, settings or {}, by)
    if count(data.group.numpy()) < floor:
        what = "samples" if count(data.group.numpy()) == len(data.y) else "groups of samples"
        raise FedshiftError(
            f"'{path}' has {fewer(floor)} {what}, of which no number is published: give more, or lower --min-count."
        )
    scored, (trained, why) = of_model(model, data, floor), _read_again(model)
    points, remarks = _points(model, scored, trained, why)
    other = None if against is None else _beside(scored, against, path, settings or {})
    overall, parts = environment(scored, EVERYTHING, declared), subgroups(scored, groups, declared) if by else []
    return Validation(
        model=model.name,
        against="" if against is None else against.name,
        dataset=DATASETS.name_of(model.dataset),
        floor=floor,
        by=by,
        overall=overall,
        subgroups=tuple(parts),
        classes=tuple(_balance(model, overall)),
        calibration=tuple(coefficients(scored)),
        reliability=tuple(bins(scored)),
        points=points,
        drift=tuple(column_drift(model, data, trained, floor)),
        differences=() if other is None else tuple(paired(scored, other)),
        remarks=(*remarks, *_remarks(scored, data, floor, by, parts)),
        reading=(*data.notes, *([f"{why[:1].upper()}{why[1:]}"] * bool(why))),
        rows=tuple(_rows(scored, data)),
    )


def _beside(scored: Predicted, model: Released, path: str, settings: Mapping[str, Any]) -> Predicted:
    """What another model predicts for the same samples."""
    data, _ = read_labelled(model, path, settings)
    if not data.y.equal(scored.y):
        raise FedshiftError(
            f"'{model.name}' excludes other samples of '{path}', so the two models cannot be compared on the same."
        )
    return of_model(model, data, scored.floor)


def _read_again(model: Released) -> tuple[FederatedData | None, str]:
    """The samples of the model's own run; where they are not here, why."""
    if model.reread is None:
        return None, NO_RUN
    try:
        return model.reread(), ""
    except FedshiftError as error:
        return None, str(error)


def _points(
    model: Released, scored: Predicted, trained: FederatedData | None, why: str
) -> tuple[tuple[OperatingPoint, ...], list[str]]:
    """The scores at thresholds that the run's validation samples choose; without any, a note with the reason."""
    if len(model.classes) != 2:
        return (), []
    if trained is None:
        return (), [f"There is no threshold, as {NO_RUN if why == NO_RUN else NOT_HERE}; none is chosen on these."]
    chosen = chosen_on_validation(model, trained)
    if not chosen:
        return (), [f"There is no threshold, as {NO_VALIDATION}; none is chosen on these."]
    return tuple(at_threshold(scored, point) for point in chosen), [
        "Thresholds were chosen on the run's validation samples, and not on these."
    ]


def _balance(model: Released, overall: Performance) -> Iterator[Balance]:
    total = sum(model.trained_classes)
    for place, name in enumerate(model.classes):
        trained = round(model.trained_classes[place] / total, 3) if total else None
        yield Balance(name, overall.support[name], trained)


def _remarks(scored: Predicted, data: DomainData, floor: int, by: str, parts: Sequence[Performance]) -> Iterator[str]:
    grouped = count(data.group.numpy()) < len(data.y)
    what = "samples or groups of samples" if grouped else "samples"
    yield (
        f"A number of fewer than {floor} {what} is withheld, and so is one from which it would follow. Intervals are "
        f"for 95 %{', between groups of samples' if grouped else ''}."
    )
    if by and not parts:
        yield f"There are no subgroups by '{by}': one has all samples, or the others have fewer than {floor} each."
    if scored.cells.small.any():
        few = [name for name, small in zip(scored.classes, scored.cells.small, strict=True) if small]
        if len(few) < len(scored.classes) and len(scored.classes) > 2:
            yield "Of some classes there are few samples, so metrics over all classes are withheld."


def _rows(scored: Predicted, data: DomainData) -> Iterator[dict[str, Any]]:
    p = scored.log_probabilities.exp().tolist()
    for row, (label, predicted) in enumerate(zip(scored.labels, scored.predicted, strict=True)):
        yield {
            "sample": data.place(row),
            "group": int(data.group[row]),
            "label": scored.classes[label],
            "predicted": scored.classes[predicted],
            **{f"p_{name}": value for name, value in zip(scored.classes, p[row], strict=True)},
        }
