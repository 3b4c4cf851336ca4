"""A model that an export wrote, ready to be scored on labelled samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedshift.clients.inputs import Inputs
from fedshift.clients.preparation import Column
from fedshift.datasets import DATASETS
from fedshift.errors import FedshiftError
from fedshift.reporting.export.export import ABOUT
from fedshift.reporting.export.formats import Predict, read_onnx, read_safetensors, read_torch
from fedshift.runs.released import Released

READERS: Mapping[str, Callable[[Path], Predict]] = {
    "model.onnx": read_onnx,
    "model.pt2": read_torch,
    "model.py": read_safetensors,
}
SAFE = ("model.onnx",)  # whose content is data alone


def is_exported(folder: Path) -> bool:
    """Whether a folder is one that ``fedshift export`` wrote."""
    return (folder / ABOUT).is_file()


def exported(folder: Path, trust: bool) -> Released:
    """The model of an exported folder, by its first file of model.onnx, model.pt2 and model.py.

    Args:
        folder: the folder.
        trust: whether code may be executed that came with the model.
    """
    found = [name for name in READERS if (folder / name).is_file()]
    if not found:
        raise FedshiftError(f"'{folder}' has none of {', '.join(READERS)}: export the model again.")
    if found[0] not in SAFE and not trust:
        raise FedshiftError(
            f"The model of '{folder}' is {found[0]}, which executes code: read it, or know who sent it, and give "
            "--trust (trust=True). A model.onnx needs none."
        )
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        inputs = TypeAdapter(Inputs).validate_python(about["inputs"])
        shape, kind = tuple(about["input"]["shape"][1:]), str(about["input"]["type"])
        classes, metrics = tuple(map(str, about["classes"])), tuple(map(str, about.get("metrics", ())))
        dataset = DATASETS.build({**about["data"], "path": str(folder)}, "data")
    except (OSError, ValueError, LookupError, TypeError, ValidationError) as error:
        raise FedshiftError(f"'{folder / ABOUT}' is damaged ({error}): export the model again.") from error
    prepared, predict = inputs.preparation, READERS[found[0]](folder)
    names = [Column(each["name"]) for each in about.get("columns", ())]
    return Released(
        name=str(about.get("name", folder.resolve().name)),
        predict=lambda x: predict(x).double().log(),
        dataset=dataset,
        classes=classes,
        shape=shape,
        columns=tuple(names) if prepared is None else prepared.columns,
        inputs=inputs,
        type="" if prepared is not None else kind,
        metrics=metrics,
    )
