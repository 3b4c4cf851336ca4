"""Experiments from a source, and options that change it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fedshift.errors import FedshiftError, FedshiftWarning, UnknownNameError
from fedshift.experiments import NAMED, Experiment
from fedshift.spec import Spec
from fedshift.study.grid import expand, override, read
from fedshift.written import plain, shown

if TYPE_CHECKING:
    from torch import nn

Source = str | Path | Mapping[str, Any] | Experiment
Choice = str | Spec | Mapping[Any, Any]
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
YOURS = {
    "data": " Arrays or a torch Dataset of yours: data={site: (x, y), ...}",
    "model": " A module of yours: model=module",
}


class Options(TypedDict, total=False):
    """Changes of a source's experiments; None means no change.

    Attributes:
        method: a name, an instance such as ``FedSR(l2r=0.05)``, or a table with a name; or a list of these, each a run.
            The name of another method than the source's resets the source's table [method]; an instance or a table
            replaces it. A :class:`FedshiftWarning` names the settings that are not used then.
        data: the data set, as a name, instance or table; so are the partition, the protocol and the model, by the same
            rule. Without a source, each domain of other data is scored on separate samples, unless ``hold_out`` or
            ``protocol`` is given. ``{site: (x, y), ...}`` is passed to :func:`fedshift.in_memory`.
        partition: how domains are divided among clients.
        protocol: what is held out, and which model is scored on what.
        model: the network. A module, or a class or function that creates a module, is passed to
            :func:`fedshift.own_model`.
        hold_out: the held-out domain, a list of them, or "all" for each in turn; in a list "all" is the name of a
            domain.
        seed: the seed, or a list.
        rounds: communication rounds.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        out: the folder that contains run folders.
        name: a label; run folders lie in a folder of that name.
        plugins: Python files that register methods, models or data sets.
        settings: any other field, dotted: ``{"method.l2r": 0.05}``. A list where one value is expected makes a run for
            each.
        tuned: the file of a search, whose best settings of each method replace the source's; ``settings`` override
            them.
    """

    method: Choice | Sequence[Choice] | None
    data: Choice | None
    partition: Choice | None
    protocol: Choice | None
    model: Choice | nn.Module | Callable[[], nn.Module] | None
    hold_out: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    rounds: int | None
    device: str | None
    out: str | Path | None
    name: str | None
    plugins: str | Path | Sequence[str | Path] | None
    settings: Mapping[str, Any] | None
    tuned: str | Path | None


def grid(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Experiment]:
    """Every run that a source describes with these options; a list where one value is expected makes a run for each.

    Warns:
        FedshiftWarning: an option names another entry, so that settings of the source are not used.

    Raises:
        FedshiftError: something in it is wrong, or two runs are the same; the message names it and the fix.
    """
    for option in options:
        if option not in (*FIELDS, "settings", "tuned"):
            hint = 'Any field of an experiment can be given as settings={"train.lr": 0.1}.'
            raise UnknownNameError("option", option, [*FIELDS, "settings", "tuned"], hint=hint)
    yours = _of_yours(options)
    given: dict[str, Any] = {option: plain(value) for option, value in yours.items() if value is not None}
    settings, tuned, method = given.pop("settings", {}), given.pop("tuned", None), given.pop("method", None)
    if not isinstance(settings, Mapping) or not all(isinstance(field, str) for field in settings):
        raise FedshiftError(f'settings = {settings!r}: give dotted fields and values, as in {{"method.l2r": 0.05}}.')
    found: list[Experiment] = []
    lines: dict[str, None] = {}
    for item in sources(source):
        for choice in _methods(method):
            changes = _changes({**given, **choice}, settings)
            if isinstance(item, Experiment) and not changes:
                found.append(item)
            else:
                found += expand(override(_document(item, changes), changes, lambda line: lines.update({line: None})))
    for line in lines:
        warnings.warn(line, FedshiftWarning, stacklevel=2)
    if len({experiment.fingerprint for experiment in found}) < len(found):
        raise FedshiftError("The grid contains the same run twice; give every experiment and every method once.")
    if tuned is None:
        return found
    from fedshift.study.tuned import TunedSettings

    return TunedSettings.read(tuned).apply(found, settings, str(tuned))


def experiment(source: Source = DEFAULT, **options: Unpack[Options]) -> Experiment:
    """The single run that a source describes with these options; of several methods in the source, the first method's.

    Warns:
        FedshiftWarning: the source has several methods, and the options choose none.

    Raises:
        FedshiftError: something in it is wrong, or it describes several runs.
    """
    return only(grid(source, **options), options)


def only(experiments: Sequence[Experiment], options: Mapping[str, Any]) -> Experiment:
    """The single experiment of a list that :func:`grid` returned for these options.

    Warns and raises as :func:`experiment`.
    """
    methods = list(dict.fromkeys(each.method_name for each in experiments))
    chosen = options.get("method") is not None or {"method", "method.name"} & {*(options.get("settings") or {})}
    if len(methods) > 1 and not chosen:
        warnings.warn(
            f"The experiment has the methods {', '.join(methods)}, but only one is needed: this takes the first, "
            f"{methods[0]}. Choose another with --method {methods[1]} (method={methods[1]!r} in Python).",
            FedshiftWarning,
            stacklevel=2,
        )
        experiments = [each for each in experiments if each.method_name == methods[0]]
    if len(experiments) > 1:
        names = [e.run_name for e in experiments[:4]] + ["..."] * (len(experiments) > 4)
        raise FedshiftError(
            f"This describes {len(experiments)} runs ({', '.join(names)}). "
            "`fedshift compare` runs them all; for one run choose --method, --seed and --hold-out (method, seed "
            "and hold_out in Python)."
        )
    return experiments[0]


def sources(source: Any) -> list[str | Mapping[str, Any] | Experiment]:
    source, kinds = plain(source), (str, Mapping, Experiment)
    sources = [source] if isinstance(source, kinds) else source
    if not isinstance(sources, list) or not sources or not all(isinstance(item, kinds) for item in sources):
        raise FedshiftError(f"{source!r} is not an experiment; give a TOML file, a name, a table, or Experiments.")
    return sources


def _of_yours(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with data sets and models that read the user's arrays and modules.

    These are written next to the runs' folders, so that they move together.
    """
    found, out = dict(options), options.get("out")
    folder = Path(out if out and isinstance(out, str | Path) else "runs")
    data, model = found.get("data"), found.get("model")
    # A table of settings has a name or a path, which are texts; a site's samples are neither text nor a number.
    if isinstance(data, Mapping) and not any(isinstance(value, str | int | float) for value in data.values()):
        from fedshift.datasets.in_memory import in_memory

        found["data"] = in_memory(data, folder=folder / "data")
    if callable(model) and not (isinstance(model, type) and issubclass(model, Spec)):
        from fedshift.models.own import own_model

        found["model"] = own_model(model, folder=folder / "models")
    return found


def _methods(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return [{}]
    if not isinstance(value, list) or all(isinstance(choice, str) for choice in value):
        return [{"method": value}]
    return [{"method": choice} for choice in value]


def _changes(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for option, value in given.items():
        changes[FIELDS[option]] = _chosen(option, value) if option in NAMED else value
    if isinstance(changes.get("plugins"), str):
        changes["plugins"] = [changes["plugins"]]
    if twice := [key for key in settings if key in changes or key.removesuffix(".name") in given]:
        raise FedshiftError(f"{twice[0]} is given twice, as an option and among the settings; give it once.")
    return {**changes, **settings}


def _document(source: str | Mapping[str, Any] | Experiment, changes: dict[str, Any]) -> Mapping[str, Any]:
    """The tables of a source; of the default source, those for other data, if ``changes`` has other data."""
    if isinstance(source, Experiment):
        tables = source.table()
        for table in NAMED.keys() & changes.keys():  # is replaced: its defaults may not be the other's
            stated = {"name", *getattr(source, table).changed()}
            tables[table] = {name: value for name, value in tables[table].items() if name in stated}
        return tables
    data = changes.get("data")
    name = data.get("name") if isinstance(data, Mapping) else data
    if source != DEFAULT or name in (None, DEFAULT):
        return source if isinstance(source, Mapping) else read(source)
    changes.setdefault("name", name)
    protocol = "leave-one-domain-out" if "protocol.hold_out" in changes else "in-domain"
    return {**read(DEFAULT), "protocol": {"name": protocol}}  # its held-out domain is not a domain of theirs


def _chosen(option: str, value: Any) -> Any:
    """A document's value for a name, an instance or a table; for methods also for a list of names."""
    catalogue = NAMED[option]
    if isinstance(value, Spec) and isinstance(value, catalogue.base()):
        return catalogue.table_of(value)
    if isinstance(value, str) or (isinstance(value, Mapping) and "name" in value):
        return value
    if option == "method" and isinstance(value, list) and value:
        return value
    raise FedshiftError(
        f"{option} = {shown(value)}: give the name of a {catalogue.kind} ({', '.join(catalogue)}), an instance, or a "
        f"table with a name.{YOURS.get(option, '')}"
    )
