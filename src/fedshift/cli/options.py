"""What several commands have alike: the options that make an experiment, and how they say what of it has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer


def names_of(kind: str) -> Any:
    """Tab completion of the names in a catalogue, after the last comma."""

    def complete(incomplete: str) -> list[str]:
        import fedshift

        before, comma, word = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in getattr(fedshift, kind) if name.startswith(word)]

    return complete


def _experiments(incomplete: str) -> list[str]:
    from fedshift.study.shipped import shipped

    files = [str(path) for path in Path().glob("*.toml")]
    return [name for name in [*shipped(), *files] if name.startswith(incomplete)]


def folder_names(incomplete: str) -> list[str]:
    """Tab completion of folders."""
    above, slash, word = incomplete.rpartition("/")
    folder = Path(f"{above}{slash}" or ".")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [f"{above}{slash}{name}/" for name in names if name.startswith(word)]


def among(names: Sequence[str]) -> Any:
    """Tab completion of a few names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def set_names(incomplete: str) -> list[str]:
    """Tab completion of dotted names of settings, as --set takes them."""
    from fedshift.experiments import NAMED, PLAIN

    specs = [(table, cls.settings()) for table, cls in PLAIN.items()]
    specs += [(table, catalogue.get(name).settings()) for table, catalogue in NAMED.items() for name in catalogue]
    names = dict.fromkeys(f"{table}.{name}=" for table, settings in specs for name in settings)
    return [name for name in names if name.startswith(incomplete)]


def listed(text: str) -> list[str]:
    """Names between commas.

    Raises:
        FedshiftError: one is empty.
    """
    from fedshift.written import parse_words

    words = parse_words(text)
    return words if isinstance(words, list) else [words]


def names_known_to(module: str, function: str, *given: str) -> Callable[[str], list[str]]:
    """Tab completion of the names that a function gives, after the last comma; its module is imported when needed."""

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        known = getattr(import_module(module), function)(*given)
        return [f"{before}{comma}{name}" for name in known if name.startswith(word)]

    return complete


def paths_of(texts: Sequence[str]) -> dict[str, str]:
    """Paths by data set, of texts such as pacs=FILE.

    Raises:
        FedshiftError: one is not of that form, or names a data set again.
    """
    from fedshift.errors import FedshiftError

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
        autocompletion=_experiments,
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
ModelOption = Annotated[str | None, typer.Option("--model", help="Model.", autocompletion=names_of("MODELS"))]
HoldOutOption = Annotated[
    str | None,
    typer.Option(
        "--hold-out",
        help="Domain held out, several (0,75), or all. Quotes keep a name with commas together: "
        """'"Berlin, Mitte"'; a domain that is called all is '["all"]'.""",
    ),
]
SeedOption = Annotated[str | None, typer.Option("--seed", help="Seed, or several: 0,1,2.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Communication rounds.", min=1)]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
OutOption = Annotated[str | None, typer.Option("--out", help="Folder that holds run folders.")]
NameOption = Annotated[str | None, typer.Option("--name", help="Label; run folders lie in OUT/NAME.")]
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
        autocompletion=set_names,
    ),
]
TunedOption = Annotated[
    Path | None,
    typer.Option("--tuned", help="File of `fedshift tune`: the best settings of each method; --set counts before it."),
]
TrialsOption = Annotated[int, typer.Option("--trials", help="Choices that are tried for each method.", min=1)]
SamplerOption = Annotated[
    str,
    typer.Option(
        "--sampler", help="tpe (learns from earlier trials) or random.", autocompletion=among(("tpe", "random"))
    ),
]
ParallelOption = Annotated[
    int,
    typer.Option("--parallel", help="Trials chosen, and carried out, side by side; it decides what is tried.", min=1),
]
SearchOption = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        help="Where to look beside the declared ranges: train.lr=0.001..0.1, or method.mu=0.1,0.5,1.",
        autocompletion=set_names,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would run and what it would cost; write nothing.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Also write a page: a file, or a folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
TestOption = Annotated[
    bool, typer.Option("--test", help="Judge test samples as well; by default they are only counted.")
]


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print what of an experiment has no effect as notes, beside the output."""
    import warnings

    from fedshift.errors import FedshiftWarning

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
