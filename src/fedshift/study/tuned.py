"""Results of studies: the best settings as a TOML file, which experiments read, and all trials as tables and a page."""

from __future__ import annotations

import json
import tomllib
import warnings
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import tomli_w
from annotated_types import Ge
from pydantic import FiniteFloat

from fedshift import files
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.experiments import Experiment
from fedshift.manifest import checked
from fedshift.reporting.results import flat
from fedshift.reporting.table import Table, Tabled
from fedshift.runs.locks import TURN, locked
from fedshift.runs.schema import File
from fedshift.study.search import Study, all_trials
from fedshift.study.space import key_here, settings_of, with_settings
from fedshift.written import LARGEST_TOML, shown

ABOUT = """\
# The best settings that `fedshift tune` found, which `fedshift compare --tuned` takes.

"""
NOT_OF_ALL = ("name", "seed", "plugins", "run", "method")  # what entries may differ in
MOST_SHOWN = 4  # settings in which experiments differ
Natural = Annotated[int, Ge(0)]


class Found(File):
    """What a study found."""

    method: str
    hold_out: str | None = None  # the held-out domain, if there is one
    settings: dict[str, Any]  # the best settings, by dotted name
    value: FiniteFloat  # their validation score, in 0..1, by the metric that selects
    trial: Natural  # the number of the best trial, from 0
    trials: Natural  # the budget
    pruned: Natural  # how many trials were stopped early
    failed: Natural  # how many failed
    repeated: Natural  # how many had the settings of an earlier trial, and cost nothing
    sampler: str  # that chose settings
    seeds: list[int]  # of each trial
    search: dict[str, Any]  # what was searched, by dotted name
    study: str  # the name of the study's folder

    @classmethod
    def of(cls, study: Study) -> Self:
        there, number = study.trials, study.best()
        assert number is not None
        method, held_out = study.case
        return cls(
            method=method,
            hold_out=held_out or None,
            settings={key: value for key, value in there[number].settings.items() if value is not None},  # as in TOML
            value=cast(float, there[number].value),
            trial=number,
            trials=study.count,
            pruned=sum(trial.state == "pruned" for trial in there),
            failed=sum(trial.state == "failed" for trial in there),
            repeated=sum(trial.repeats is not None for trial in there),
            sampler=study.budget.sampler,
            seeds=[*dict.fromkeys(each.seed for each in study.experiments)],
            search=study.space.table(),
            study=study.path.name,
        )

    @property
    def case(self) -> tuple[str, str]:
        return self.method, self.hold_out or ""

    @property
    def complete(self) -> int:
        return self.trials - self.pruned - self.failed

    @property
    def budget(self) -> str:
        """Trials, and ranges of settings that all methods have: the same for methods that are compared."""
        ranges = {key: where for key, where in sorted(self.search.items()) if not key.startswith("method.")}
        return f"{self.trials} trials ({self.sampler}) with {len(self.seeds)} seeds over {ranges or 'no shared ranges'}"


class TunedSettings(File):
    """The best settings of methods on an experiment."""

    format: Literal[2] = 2
    chosen_on: str  # the data on which they were chosen, for a reader
    digest: str  # of the experiment without its method and searched settings
    experiment: dict[str, Any]  # the same, by dotted name
    tuned: list[Found]  # an entry for each method and held-out domain

    @classmethod
    def of(cls, experiment: Experiment, chosen_on: str, searched: Collection[str], entries: Iterable[Found]) -> Self:
        """The entries found on an experiment, any of the tuned ones.

        ``searched`` has the dotted names that a study searched.
        """
        common = _common(experiment, searched)
        return cls(chosen_on=chosen_on, digest=_digest(experiment, common), experiment=common, tuned=list(entries))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        try:
            return checked(tomllib.loads(files.read(Path(path), LARGEST_TOML).decode("utf-8")), cls)
        except OSError as error:
            raise FedshiftError(
                f"'{path}' cannot be read ({error.strerror or error}); `fedshift tune` writes such a file."
            ) from error
        except ValueError as error:  # also what is no TOML, and no UTF-8
            raise FedshiftError(
                f"'{path}' contains no tuned settings ({error}); `fedshift tune` writes such a file."
            ) from error

    def write(self, folder: Path) -> Path:
        """Write it into a folder, together with the file's entries for other methods and domains; returns the file.

        Its name contains the digest. Warns if it replaces an entry of another, or a longer, search. Raises a
        FedshiftError if an existing file cannot be read, or the file cannot be written.
        """
        path = folder / f"tuned-{self.digest[:8]}.toml"
        with locked(folder, TURN):  # other processes may add entries of other methods
            self._merge_into(path)
        return path

    def _merge_into(self, path: Path) -> None:
        entries = {found.case: found for found in (type(self).read(path).tuned if path.exists() else ())}
        for now in self.tuned:
            before = entries.get(now.case, now)
            if before.study != now.study or before.trials > now.trials:
                warnings.warn(
                    f"The entry for {_describe(now.case)} in '{path}' is replaced: there were {before.budget}, now "
                    f"{now.budget}.",
                    FedshiftWarning,
                    stacklevel=3,
                )
            entries[now.case] = now
        whole = self.model_copy(update={"tuned": [entries[case] for case in sorted(entries)]})
        files.remove_abandoned(path)
        files.write(path, ABOUT + tomli_w.dumps(whole.model_dump(exclude_none=True)))

    def apply(
        self, experiments: Sequence[Experiment], given: Collection[str] = (), where: str = ""
    ) -> list[Experiment]:
        """Experiments with the tuned settings for their method and held-out domain.

        Settings in ``given`` (dotted) keep their values; ``where`` is the file's name in messages. Warns if a setting
        keeps its value, budgets of the methods differ, or the experiments differ from that on which settings were
        chosen. Raises a FedshiftError if a method or domain has no entry, or experiments become equal.
        """
        entries = {found.case: found for found in self.tuned}
        cases = dict.fromkeys(each.case for each in experiments)
        if missing := [case for case in cases if case not in entries]:
            methods, domains = (",".join(dict.fromkeys(filter(None, names))) for names in zip(*missing, strict=True))
            held_out = f" --hold-out {domains}" if domains else ""
            raise FedshiftError(
                f"'{where}' has no settings for {'; '.join(map(_describe, missing))}. `fedshift tune EXPERIMENT "
                f"--method {methods}{held_out}`, with its other options, finds them."
            )
        budgets = {entries[case].budget: entries[case] for case in cases}
        notes = [*self._differences(experiments)]
        if len(budgets) > 1:
            words = (f"{_describe(found.case)} {budget}" for budget, found in budgets.items())
            notes.append(f"The methods were not tuned with the same budget: {'; '.join(words)}.")
        applied = []
        for each in experiments:
            entry = entries[each.case]
            kept = {key_here(key, each) for key in given}
            for key in sorted(kept & entry.settings.keys()):
                value, tuned = shown(settings_of(each)[key].value), shown(entry.settings[key])
                notes.append(f"{each.method_name}: {key} = {value} is given, and overrides the tuned {tuned}.")
            applied.append(with_settings(each, {key: v for key, v in entry.settings.items() if key not in kept}))
        for note in dict.fromkeys(notes):
            warnings.warn(note, FedshiftWarning, stacklevel=2)
        if len({each.fingerprint for each in applied}) < len(applied):
            raise FedshiftError(
                "With tuned settings, two of these runs are the same: give no list for a setting that was tuned, or "
                "give it by --set, which overrides the tuned value."
            )
        return applied

    def _differences(self, experiments: Sequence[Experiment]) -> Iterable[str]:
        tuned = [key for found in self.tuned for key in found.settings]
        for now in (_common(each, tuned) for each in experiments):
            differing = [
                f"{name} = {shown(self.experiment.get(name))} there and {shown(now.get(name))} here"
                for name in sorted(self.experiment.keys() | now.keys())
                if self.experiment.get(name) != now.get(name)
            ]
            more = [f"and {len(differing) - MOST_SHOWN} more"] if len(differing) > MOST_SHOWN else []
            if differing:
                yield f"Settings were tuned on another experiment: {', '.join(differing[:MOST_SHOWN] + more)}."


def _describe(case: tuple[str, str]) -> str:
    return f"{case[0]} with {case[1]} held out" if case[1] else case[0]


def _common(experiment: Experiment, searched: Collection[str]) -> dict[str, Any]:
    table = {key: value for key, value in experiment.table().items() if key not in NOT_OF_ALL}
    return {key: value for key, value in flat(table).items() if key not in searched and key != "protocol.hold_out"}


def _digest(experiment: Experiment, common: Mapping[str, Any]) -> str:
    paths = {".".join(names) for names, _ in experiment.paths() if names[0] != "method"}
    contents = {what: content for what, content in experiment.contents.items() if what in paths}
    there = {key: value for key, value in common.items() if key not in contents}
    return files.digest_of(json.dumps([there, contents], sort_keys=True).encode())


# For a reader ---------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Tuning(Tabled):
    """What studies found; prints as tables."""

    path: Path  # the TOML file of the best settings, which ``compare`` takes
    tuned: TunedSettings  # its content
    studies: tuple[Study, ...]  # the studies that found something, with all their trials
    failed: tuple[str, ...] = ()  # a message for each study without a complete trial

    @property
    def found(self) -> list[Found]:
        return [*map(Found.of, self.studies)]

    def tables(self) -> list[Table]:
        several = 1 + any(domain for _, domain in (study.case for study in self.studies))
        values, spent = [], []
        for study, found in zip(self.studies, self.found, strict=True):
            case, best = study.case[:several], study.trials[found.trial]
            values.append([*case, best.percent, study.trials[0].percent, str(found.trial + 1)])
            counts = [found.trials, found.complete, found.pruned, found.failed, found.repeated]
            rounds, seeds = str(study.experiments[0].train.rounds), ", ".join(map(str, found.seeds))
            spent.append([*case, *map(str, counts), rounds, seeds])
        named, metric = ["method", "held out"][:several], self.studies[0].metric
        counted = ["trials", "complete", "pruned", "failed", "repeated"]
        title = f"Validation {metric.title} in %{metric.remark}, at the end"
        return [
            Table(title, [*named, "best", "untuned", "best trial"], values),
            Table("Budget", [*named, *counted, "rounds", "seeds"], spent),
        ]

    def notes(self) -> list[str]:
        words = [
            f"{study.label}: {study.trials[found.trial].words}; searched {study.space}."
            for study, found in zip(self.studies, self.found, strict=True)
        ]
        if any(found.repeated for found in self.found):
            words.append("Trials that repeat the settings of an earlier trial share its outcome, and cost nothing.")
        return [*words, f"Chosen on {self.tuned.chosen_on}.", *self.failed]

    def report(self, path: str | Path | None = None) -> Path:
        """Write an HTML page with tables and plots, and the plots as PNG files into the studies' folders.

        Args:
            path: the page; None: next to the TOML file.

        Returns:
            The page.

        Raises:
            FedshiftError: a file cannot be written.
        """
        from fedshift.reporting.table import render, write_page_to
        from fedshift.study.figures import draw_search

        sections = []
        for study in self.studies:
            drawn = draw_search(study)
            for name, png in drawn.items():
                files.write(study.path / name, png)
            pictures = {name.removesuffix(".png"): b64encode(png).decode() for name, png in drawn.items()}
            sections.append((study.label, pictures, all_trials(study)))
        text = render(
            "tuned.html.jinja",
            title=f"Tuned settings: {self.studies[0].experiments[0].name}",
            tables=self.tables(),
            notes=self.notes(),
            sections=sections,
            toml=self.path.read_text(encoding="utf-8"),
        )
        return write_page_to(Path(path) if path is not None else self.path.with_suffix(".html"), "tuned.html", text)
