"""What the functions of this room take: a source, and options that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from fedshift.settings.experiment import Experiment
from fedshift.settings.spec import Spec

Source = str | Path | Mapping[str, Any] | Experiment
Choice = str | Spec | Mapping[str, Any]
DEFAULT = "rotated-mnist"
FIELDS = {  # each option's field of an experiment
    "method": "method",
    "data": "data",
    "partition": "partition",
    "protocol": "protocol",
    "model": "model",
    "hold_out": "protocol.hold_out",
    "seed": "seed",
    "rounds": "train.rounds",
    "device": "run.device",
    "out": "run.out",
    "name": "name",
    "plugins": "plugins",
}


class Options(TypedDict, total=False):
    """How experiments differ from their source; None is as good as nothing.

    Attributes:
        method: a name, an instance such as ``FedSR(l2r=0.05)``, or a table with a name; or a list of these, each a run.
            The name of another method than the source's resets the source's table [method]; an instance or a table
            takes its place. A :class:`FedshiftWarning` names the settings that are not used then.
        data: the data set, as a name, instance or table; so are the partition, the protocol and the model, by the same
            rule. Without a source, each domain of other data is scored on samples of its own, unless ``hold_out`` or
            ``protocol`` says otherwise.
        partition: how domains are divided among clients.
        protocol: what is held out, and who is scored on what.
        model: the network.
        hold_out: the domain that is held out, a list of them, or "all" for each in turn; in a list "all" is the name
            of a domain.
        seed: the seed, or a list.
        rounds: communication rounds.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        out: the folder that holds run folders.
        name: a label; run folders lie in a folder of that name.
        plugins: Python files that register methods, models or data sets.
        settings: any other field, dotted: ``{"method.l2r": 0.05}``. A list where one value is expected makes a run for
            each.
        tuned: the file of a search, whose best settings of each method take the place of the source's; ``settings``
            count before them.
    """

    method: Choice | Sequence[Choice] | None
    data: Choice | None
    partition: Choice | None
    protocol: Choice | None
    model: Choice | None
    hold_out: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    rounds: int | None
    device: str | None
    out: str | Path | None
    name: str | None
    plugins: str | Path | Sequence[str | Path] | None
    settings: Mapping[str, Any] | None
    tuned: str | Path | None
