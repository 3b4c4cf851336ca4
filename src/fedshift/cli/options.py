"""How commands are built: the options that describe an experiment, completion, and notes."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fedshift.cli.console import interruptible
from fedshift.errors import FedshiftError, FedshiftWarning, UnknownNameError
from fedshift.written import parse_assignments, parse_value, parse_words

if TYPE_CHECKING:
    from fedshift.experiments import Experiment


class Commands(TyperGroup):
    """Commands that refuse a repeated option, of which typer would use the last.

    Contexts and commands are Any, since the package that defines them differs between releases of typer.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command and its arguments."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UnknownNameError("command", args[0], list(self.commands))  # which releases of typer word differently
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            within = type(ctx)(command, parent=ctx, info_name=name)
            order: list[Any] = command.make_parser(within).parse_args([*rest])[2]
            for given, times in Counter(order).items():
                if times > 1 and given.param_type_name == "option" and not (given.multiple or given.is_flag):
                    raise FedshiftError(
                        f"{given.opts[0]} is given {times} times: give it once. Where it takes several values, commas "
                        "stand between them, as in --method fedavg,fedsr."
                    )
        return name, command, rest


# Completion ---------------------------------------------------------------------------------------


def complete(names: Callable[[], Iterable[str]]) -> Any:
    """Tab completion of names, after the last comma."""

    def completed(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(word)]

    return completed


def names_of(kind: str) -> Any:
    return complete(lambda: getattr(import_module("fedshift"), kind))


def names_known_to(module: str, function: str, *given: str) -> Any:
    """Tab completion of the names that a function returns; its module is imported when needed."""
    return complete(lambda: getattr(import_module(module), function)(*given))


def experiment_names() -> list[str]:
    """The shipped experiments, and TOML files here."""
    from fedshift.study.grid import shipped

    return [*shipped(), *(str(path) for path in Path().glob("*.toml"))]


def all_names() -> list[str]:
    from fedshift.cli.catalogues import shown_names

    return [*dict.fromkeys([*shown_names(), *experiment_names()])]


def setting_names() -> list[str]:
    from fedshift.experiments import NAMED, PLAIN

    specs = [(table, cls.settings()) for table, cls in PLAIN.items()]
    specs += [(table, catalogue.get(name).settings()) for table, catalogue in NAMED.items() for name in catalogue]
    return [*dict.fromkeys(f"{table}.{name}=" for table, settings in specs for name in settings)]


def folder_names(incomplete: str) -> list[str]:
    above, slash, word = incomplete.rpartition("/")
    folder = Path(f"{above}{slash}" or ".")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [f"{above}{slash}{name}/" for name in names if name.startswith(word)]


# Options ------------------------------------------------------------------------------------------


def listed(text: str) -> list[str]:
    """Names between commas."""
    words = parse_words(text)
    return words if isinstance(words, list) else [words]


def paths_of(texts: Sequence[str]) -> dict[str, str]:
    """Paths by data set, from texts such as pacs=FILE."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name.strip() and equals and path) or name.strip() in found:
            raise FedshiftError(f"--data {text}: give each data set once with its path, as in --data pacs=FILE.")
        found[name.strip()] = path
    return found


ExperimentArgument = Annotated[
    str,
    typer.Argument(
        help="A TOML file, or the name of an experiment that comes with fedshift.",
        autocompletion=complete(experiment_names),
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option("--method", "-m", help="Method, or several: fedavg,fedsr.", autocompletion=names_of("METHODS")),
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", help="Data set (its path: --set data.path=...).", autocompletion=names_of("DATASETS")),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="What is held out and who is scored on what: in-domain, leave-one-domain-out, ... "
        "(`fedshift list protocols`).",
        autocompletion=names_of("PROTOCOLS"),
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Model.", autocompletion=names_of("MODELS"))]
SeedOption = Annotated[str | None, typer.Option("--seed", help="Seed, or several: 0,1,2.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Communication rounds.", min=1)]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file that registers methods, models or data of yours."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override any field: method.l2r=0.05. A list makes a run for each: train.lr=0.1,0.01. Text is taken as "
        "typed; quotes keep commas: data.path='\"a,b\"'.",
        autocompletion=complete(setting_names),
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; write nothing.")]
ShardOption = Annotated[
    str | None,
    typer.Option("--shard", help="Share the runs with other processes in the same folder, on any machine: 3/16."),
]
SlurmOption = Annotated[
    int | None,
    typer.Option(
        "--slurm", help="Write the script of a Slurm job array with this number of shards; run nothing.", min=1
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Import plugins that never ran on this machine; read them first.")
]
RunsArgument = Annotated[
    Path, typer.Argument(help="A run folder, or a folder of them.", autocompletion=folder_names, show_default=False)
]


HOLD_OUT = (
    "Domain held out, several (0,75), or all. Quotes keep a name with commas together: "
    """'"Berlin, Mitte"'; a domain that is called all is '["all"]'."""
)
TUNED = "File of `fedshift tune`: the best settings of each method; --set counts before it."
OPTIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "method": (MethodOption, parse_words),
    "data": (DataOption, str),
    "protocol": (ProtocolOption, str),
    "model": (ModelOption, str),
    "hold_out": (Annotated[str | None, typer.Option("--hold-out", help=HOLD_OUT)], parse_words),
    "seed": (SeedOption, parse_value),
    "rounds": (RoundsOption, int),
    "device": (Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")], str),
    "out": (Annotated[str | None, typer.Option("--out", help="The parent of the run folders.")], str),
    "name": (Annotated[str | None, typer.Option("--name", help="Label; run folders lie in OUT/NAME.")], str),
    "plugins": (PluginOption, list),
    "settings": (SetOption, parse_assignments),
    "tuned": (Annotated[Path | None, typer.Option("--tuned", help=TUNED)], Path),
}
"""By the names of :class:`fedshift.study.api.Options`: what makes an experiment, and how it is read."""


# Commands -----------------------------------------------------------------------------------------


Command = Callable[..., None]
app = typer.Typer(
    name="fedshift",
    cls=Commands,
    help="Federated learning when clients' features differ: run, compare and report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with [bold]fedshift compare[/bold]: FedAvg and FedSR on RotatedMNIST, one angle held out.",
)


def command(*examples: str, more: str = "", name: str | None = None) -> Callable[[Command], Command]:
    """Make a command of a function; its docstring is the help, followed by examples."""
    lines = ["Examples:", *(f"  fedshift {example}" for example in examples), more]
    return app.command(name, epilog="\n\n".join(lines).strip())


@dataclass(frozen=True)
class CommandLine:
    """The command line's description of experiments."""

    source: str  # the experiment's name or file
    options: dict[str, Any]  # changes to it, as :class:`fedshift.study.api.Options`
    experiments: list[Experiment]  # the resulting runs
    dry_run: bool  # print the plan and exit


def on_experiment(*examples: str, more: str = "", method: str | None = None) -> Callable[[Command], Command]:
    """Make a command that reads an experiment, with the command line's changes, and acts on its runs.

    Args:
        examples: shown below the help.
        more: a text below them.
        method: the default method.
    """

    def make(act: Command) -> Command:
        def read(experiment: str, dry_run: bool, **given: Any) -> None:
            from fedshift.study import api

            values = {name: given.pop(name) for name in OPTIONS}
            requested = {name: OPTIONS[name][1](value) for name, value in values.items() if value not in (None, [])}
            if method is not None:
                requested.setdefault("method", method)
            with warnings_as_notes():
                experiments = api.grid(experiment, **requested)
            with interruptible("."):
                act(CommandLine(experiment, requested, experiments, dry_run), **given)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("experiment", kind, default="rotated-mnist", annotation=ExperimentArgument),
            *(inspect.Parameter(name, kind, default=None, annotation=one) for name, (one, _) in OPTIONS.items()),
            inspect.Parameter("dry_run", kind, default=False, annotation=DryRunOption),
            *[*inspect.signature(act, eval_str=True).parameters.values()][1:],
        ]
        read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        read.__annotations__ = {each.name: each.annotation for each in parameters}
        read.__doc__ = act.__doc__
        return command(*examples, more=more, name=act.__name__)(read)

    return make


def load_plugins(paths: list[Path] | None) -> None:
    from fedshift import experiments

    experiments.load_plugins([str(path) for path in paths or []])


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print settings without effect as notes, next to the output."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FedshiftWarning)
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, FedshiftWarning):
                typer.echo(f"Note: {message}", err=True)
            else:
                default(message, category, *where, **more)

        warnings.showwarning = show
        yield
