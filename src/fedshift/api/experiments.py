"""Experiments from a source, and options that change it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fedshift.errors import FedshiftError, FedshiftWarning, UnknownNameError
from fedshift.settings.change import Changed, changed
from fedshift.settings.experiment import NAMED, Experiment
from fedshift.settings.grid import EVERY_DOMAIN, expand, read, read_changed
from fedshift.settings.spec import Spec, plain, shown

Source = str | Path | Mapping[str, Any] | Experiment
Choice = str | Spec | Mapping[str, Any]
DEFAULT = "rotated-mnist"
FIELDS = {  # each option's field of an experiment; what they name comes first, as it takes its settings along
    "method": "method.name",
    "data": "data.name",
    "partition": "partition.name",
    "protocol": "protocol.name",
    "model": "model.name",
    "hold_out": "protocol.hold_out",
    "seed": "seed",
    "rounds": "train.rounds",
    "device": "run.device",
    "out": "run.out",
    "name": "name",
    "plugins": "plugins",
}
YOURS = {
    "data": " Arrays or a torch Dataset of yours: data=fedshift.in_memory({site: (x, y), ...})",
    "model": " A module of yours: model=fedshift.own_model(module)",
}


class Options(TypedDict, total=False):
    """How experiments differ from their source; None is as good as nothing.

    Attributes:
        method: a name, an instance such as ``FedSR(l2r=0.05)``, or a table with a name; or a list of these, each a run.
            A name keeps the settings of the source that the method has as well. An instance or table takes the place
            of all that the source says of methods. What is left out is said by a :class:`FedshiftWarning`.
        data: the data set, as a name, instance or table; so are the partition, the protocol and the model. Paths of
            files of another data set are not kept. Without a source, each domain of other data is scored on samples
            of its own, unless ``hold_out`` or ``protocol`` says otherwise.
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


def grid(source: Source | Sequence[Source] = DEFAULT, **options: Unpack[Options]) -> list[Experiment]:
    """Every run that a source describes with these options; a list where one value is expected makes a run for each.

    Warns:
        FedshiftWarning: a setting of the source is left out, as the options replace what it belongs to.

    Raises:
        FedshiftError: something in it is wrong, or two runs are the same; the message names it and the fix.
    """
    for option in options:
        if option not in (*FIELDS, "settings", "tuned"):
            hint = 'Any field of an experiment can be given as settings={"train.lr": 0.1}.'
            raise UnknownNameError("option", option, [*FIELDS, "settings", "tuned"], hint=hint)
    given: dict[str, Any] = {option: plain(value) for option, value in options.items() if value is not None}
    settings, tuned = given.pop("settings", {}), given.pop("tuned", None)
    if not isinstance(settings, Mapping) or not all(isinstance(field, str) for field in settings):
        raise FedshiftError(f'settings = {settings!r}: give dotted fields and values, as in {{"method.l2r": 0.05}}.')
    found: list[Experiment] = []
    said: set[str] = set()
    for item in sources(source):
        for method in _methods(given.get("method")):
            changes = {**given, **method}
            if isinstance(item, Experiment) and not (changes or settings):
                found.append(item)
                continue
            document = _document(item, changes, settings)
            for note in document.left_out:
                if note not in said:
                    warnings.warn(note, FedshiftWarning, stacklevel=_callers())
                said.add(note)
            found += expand(document.document)
    if len({experiment.fingerprint for experiment in found}) < len(found):
        raise FedshiftError("The grid holds the same run twice; give every experiment and every method once.")
    if tuned is None:
        return found
    from fedshift.study.tuned import TunedSettings

    return TunedSettings.read(tuned).apply(found, settings, str(tuned))


def experiment(source: Source = DEFAULT, **options: Unpack[Options]) -> Experiment:
    """The single run that a source describes with these options; of several methods in the source, that of the first.

    Warns:
        FedshiftWarning: the source has several methods, and the options choose none.

    Raises:
        FedshiftError: something in it is wrong, or it describes several runs.
    """
    return only(grid(source, **options), options)


def only(experiments: Sequence[Experiment], options: Mapping[str, Any]) -> Experiment:
    """The single experiment of a list that :func:`grid` made with these options, as :func:`experiment`.

    Warns:
        FedshiftWarning: they have several methods, and the options choose none.

    Raises:
        FedshiftError: there are several.
    """
    methods = list(dict.fromkeys(each.method_name for each in experiments))
    if len(methods) > 1 and not _chooses_method(options):
        warnings.warn(
            f"The experiment has the methods {', '.join(methods)}, and one is needed: this takes the first, "
            f"{methods[0]}. Choose another with --method {methods[1]} (method={methods[1]!r} in Python).",
            FedshiftWarning,
            stacklevel=_callers(),
        )
        experiments = [each for each in experiments if each.method_name == methods[0]]
    if len(experiments) > 1:
        names = [e.run_name for e in experiments[:4]] + ["..."] * (len(experiments) > 4)
        raise FedshiftError(
            f"This describes {len(experiments)} runs ({', '.join(names)}). "
            "`fedshift compare` carries them all out; for one run choose --method, --seed and --hold-out (method, seed "
            "and hold_out in Python)."
        )
    return experiments[0]


def _chooses_method(options: Mapping[str, Any]) -> bool:
    """Whether options say which methods run."""
    settings = options.get("settings") or {}
    return options.get("method") is not None or not settings.keys().isdisjoint(("method", "method.name"))


def sources(source: Any) -> list[str | Mapping[str, Any] | Experiment]:
    """The sources that are given, one or several."""
    source, kinds = plain(source), (str, Mapping, Experiment)
    sources = [source] if isinstance(source, kinds) else source
    if not isinstance(sources, list) or not sources or not all(isinstance(item, kinds) for item in sources):
        raise FedshiftError(f"{source!r} is no experiment; give a TOML file, a name, a table, or Experiments.")
    return sources


def _methods(value: Any) -> list[dict[str, Any]]:
    """The option ``method`` in pieces that a document can hold: names in a row, or a table."""
    if value is None:
        return [{}]
    if not isinstance(value, list):
        return [{"method": value}]
    if not value:
        raise FedshiftError("method is an empty list; give a name or an instance.")
    named = groupby(enumerate(value), key=lambda item: -1 if isinstance(item[1], str) else item[0])
    groups = [[choice for _, choice in group] for _, group in named]
    return [{"method": group if isinstance(group[0], str) else group[0]} for group in groups]


def _document(source: Source, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Changed:
    """What a source says, changed by options and settings."""
    changes: dict[str, Any] = {}
    for option in (option for option in FIELDS if option in given):
        value = _chosen(option, given[option]) if option in NAMED else given[option]
        changes[option if isinstance(value, Mapping) else FIELDS[option]] = value
    if source == DEFAULT and "data" in given:
        data = changes.get("data", {"name": changes.get("data.name")})["name"]
        changes = {"name": data} | changes  # other data are another experiment
        if data != DEFAULT:
            source = _of_other_data(source, {*changes, *settings})
    if isinstance(changes.get("plugins"), str):
        changes["plugins"] = [changes["plugins"]]
    twice = [field for field in settings if field in changes and field != "name"]
    if twice or ("name" in settings and "name" in given):
        field = (twice or ["name"])[0]
        raise FedshiftError(f"{field} is given twice, as an option and among the settings; give it once.")
    changes |= settings
    if isinstance(source, Experiment):
        return changed(_stated(source, changes), changes)
    return changed(source, changes) if isinstance(source, Mapping) else read_changed(source, changes)


def _of_other_data(source: str, given: Collection[str]) -> dict[str, Any]:
    """The default experiment for data that have other domains: none is held out, unless that is asked for."""
    held_out = "protocol.hold_out" in given
    return {**read(source), "protocol": {"name": "leave-one-domain-out" if held_out else "in-domain"}}


def _stated(source: Experiment, changes: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment as a document; of what is replaced only what differs from the defaults, which are another's."""
    document = source.table()
    for name, catalogue in NAMED.items():
        spec = getattr(source, name)
        entry = catalogue.entry_of(spec)
        if changes.get(f"{name}.name", entry.name) != entry.name:
            defaults = {field: about.default for field, about in entry.settings().items()}
            document[name] = {
                field: value
                for field, value in document[name].items()
                if field == "name" or field in spec.nested() or getattr(spec, field) != defaults[field]
            }
    if document["protocol"].get("hold_out") == EVERY_DOMAIN:  # here the name of a domain
        document["protocol"]["hold_out"] = [EVERY_DOMAIN]
    return document


def _chosen(option: str, value: Any) -> Any:
    """What a document says for a name, an instance or a table; of methods also for a list of names."""
    catalogue = NAMED[option]
    if isinstance(value, str) or (option == "method" and isinstance(value, list)):
        return value
    if isinstance(value, catalogue.base()):
        return catalogue.table_of(value)
    if isinstance(value, Mapping) and "name" in value:
        return value
    several = "" if option == "method" else "; only method may be a list"
    raise FedshiftError(
        f"{option} = {shown(value)}: give the name of a {catalogue.kind} ({', '.join(catalogue)}), an instance, or a "
        f"table with a name{several}.{YOURS.get(option, '')}"
    )


def _callers() -> int:
    """How far up the call that entered fedshift is, for a warning to point at it."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("fedshift."):
        frame, depth = frame.f_back, depth + 1
    return depth
