"""Everything an experiment can name: a frozen dataclass of documented settings, found by its name.

Methods, data sets, models and protocols are all declared the same way, so that listing them, showing
them, reading them from TOML and checking their values is written once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le
from pydantic import AfterValidator, AllowInfNan, ConfigDict, Strict, TypeAdapter, ValidationError

from fedshift.errors import FedshiftError, UnknownNameError

NonNegative = Annotated[float, Strict(), AllowInfNan(False), Ge(0)]
Positive = Annotated[float, Strict(), AllowInfNan(False), Gt(0)]
WholeInt = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Ge(1)]
Pixels = Annotated[int, Strict(), Ge(1), Le(4096)]
WholeNumber = Annotated[int, Strict(), Ge(0)]


def _folder_name(name: str) -> str:
    if not 0 < len(name) <= 100 or name.startswith(".") or set(name) & set("/\\\0"):
        raise ValueError("it names a folder: 1 to 100 characters, no slash, no dot at the start")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
ProperFraction = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(frozen=True)
class Range:
    """Where a search over a setting should look: an interval, uniform or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


Search = Range | tuple[Any, ...]


def setting(
    default: Any = MISSING, *, help: str, source: str = "", search: Search | None = None, path: bool = False
) -> Any:
    """A documented field of a :class:`Spec`.

    Args:
        default: its default value; without one the field must be given.
        help: what it is, in one line, with its unit or range.
        source: the paper's equation or section it comes from.
        search: where a hyper-parameter search should look.
        path: it may name a file or folder of this machine, whose content then counts, not where it lies.
    """
    return field(default=default, metadata={"help": help, "source": source, "search": search, "path": path})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A frozen dataclass whose field values are checked whenever one is made."""

    section: ClassVar[str] = ""  # the table it is in an experiment, where that is not the class's name

    def __post_init__(self) -> None:
        for name, entry in self.entries().items():
            default = self.settings()[name].default
            built = entry.build(getattr(self, name), default, f"{_title(type(self))}.{name}")
            object.__setattr__(self, name, built)
        for name, adapter in _adapters(type(self)).items():  # type: ignore[arg-type]  # classes are hashable
            value = getattr(self, name)
            try:
                checked = adapter.validate_python(_as_list(value, setting_type(type(self), name)))
            except ValidationError as error:
                raise FedshiftError(f"{_title(type(self))}.{name} = {value!r}: {_problem(error)}.") from None
            object.__setattr__(self, name, checked)

    @classmethod
    def settings(cls) -> dict[str, Field[Any]]:
        """The fields that can be set, by name."""
        return {field.name: field for field in fields(cls) if field.init}

    @classmethod
    def check_names(cls, names: Mapping[str, Any], where: str) -> None:
        """Raise an error that names the nearest right one if a name is no setting of this class."""
        for name in names:
            if name not in cls.settings():
                raise UnknownNameError(f"field of [{where}]", name, cls.settings())

    @classmethod
    def entries(cls) -> dict[str, Entry]:
        """The settings that are entries of a catalogue themselves."""
        return _entries(cls)  # type: ignore[arg-type]  # classes are hashable

    def specs(self) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """This spec and those among its settings, each with the names of the settings that lead to it."""
        yield (), self
        for name in self.entries():
            for names, spec in getattr(self, name).specs():
                yield (name, *names), spec

    def paths(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every setting that may name a file or folder of this machine: the names that lead to it, and its value."""
        for names, spec in self.specs():
            for name, about in spec.settings().items():
                if about.metadata.get("path"):
                    yield (*names, name), getattr(spec, name)

    def with_absolute_paths(self) -> Self:
        """The same with every file or folder that exists named from the root, so that a run goes on from anywhere."""
        changes: dict[str, Any] = {name: getattr(self, name).with_absolute_paths() for name in self.entries()}
        for name, about in self.settings().items():
            named = getattr(self, name)
            if about.metadata.get("path") and named and (there := Path(named).expanduser()).exists():
                changes[name] = str(there.resolve())
        return replace(self, **changes) if changes else self

    def table(self) -> dict[str, Any]:
        """The settings and their values, as TOML can hold them."""
        return {name: _as_toml(value) for name in self.settings() if (value := getattr(self, name)) is not None}


def _as_list(value: Any, hint: Any) -> Any:
    """A single value where a list of values is expected is a list of one."""
    if get_origin(hint) is not tuple or isinstance(value, tuple | list):
        return value
    return value if get_origin(get_args(hint)[0]) is tuple else (value,)


def _problem(error: ValidationError) -> str:
    """What is wrong, in the words of a user; several kinds of value may be right."""
    found = [str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list") for one in error.errors()]
    expected = [message.removeprefix("Input should be ") for message in found if message.startswith("Input should be ")]
    return f"it should be {' or '.join(dict.fromkeys(expected))}" if expected else found[0]


def setting_type(cls: type[Spec], name: str) -> Any:
    """The type of one setting, with its limits."""
    return get_type_hints(cls, include_extras=True)[name]


@cache
def _adapters(cls: type[Spec]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    config = ConfigDict(coerce_numbers_to_str=True)
    entries = cls.entries()
    return {
        name: TypeAdapter(hints[name], config=config)
        for name in cls.settings()
        if name not in entries and not (isinstance(hints[name], type) and issubclass(hints[name], Spec))
    }


@cache
def _entries(cls: type[Spec]) -> dict[str, Entry]:
    """The settings that are entries of a catalogue themselves."""
    hints = get_type_hints(cls, include_extras=True)
    marks = {name: getattr(hints[name], "__metadata__", ()) for name in cls.settings()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Entry)}


def _as_toml(value: Any) -> Any:
    if isinstance(value, Spec):
        return {"name": _catalogue_of(type(value)).name_of(type(value)), **value.table()}
    return [_as_toml(item) for item in value] if isinstance(value, tuple) else value


def _catalogue_of(cls: type[Spec]) -> Catalogue[Any]:
    return next(catalogue for catalogue in CATALOGUES if issubclass(cls, catalogue.base()))


def _title(cls: type[Spec]) -> str:
    if cls.section:
        return cls.section
    for catalogue in CATALOGUES:
        if issubclass(cls, catalogue.base()):
            return catalogue.table
    return cls.__name__.lower()


T = TypeVar("T", bound=Spec)


class Catalogue(Generic[T]):
    """Specs by name. Built-in ones are imported when first asked for; users add theirs by a decorator."""

    def __init__(self, kind: str, table: str, base: str, builtin: Mapping[str, str]) -> None:
        """Name the kind ("method"), its table in an experiment, its base class, and the built-in ones.

        Classes are written "module:Class".
        """
        self.kind = kind
        self.table = table
        self.variable = f"fedshift.{kind.upper().replace(' ', '')}S"
        self._base = base
        self._known: dict[str, str | type[T]] = dict(builtin)

    def __iter__(self) -> Any:
        return iter(sorted(self._known))

    def base(self) -> type[T]:
        """The class every entry derives from."""
        base: type[T] = _load(self._base)
        return base

    def get(self, name: str) -> type[T]:
        """The class behind a name.

        Raises:
            UnknownNameError: no entry has that name; the message names the nearest one.
        """
        if name not in self._known:
            raise UnknownNameError(self.kind, name, self._known)
        found = self._known[name]
        cls: type[T] = _load(found) if isinstance(found, str) else found
        return cls

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that makes a user's class known by a name.

        Raises:
            FedshiftError: the name is taken, or the class does not derive from the right base.
        """

        def add(cls: type[T]) -> type[T]:
            if not issubclass(cls, self.base()):
                raise FedshiftError(f"{cls.__name__} is no {self.kind}: it must derive from {self.base().__name__}.")
            held = self._known.get(name)
            if held is not None and _path(held) != _path(cls):
                raise FedshiftError(f"The {self.kind} name '{name}' is taken by {_path(held)}; choose another.")
            self._known[name] = cls
            return cls

        return add

    def name_of(self, cls: type[T]) -> str:
        """The name of a registered class."""
        for name, held in self._known.items():
            if _path(held) == _path(cls):
                return name
        raise FedshiftError(f"{cls.__name__} has no name: decorate it with @{self.variable}.register('name').")

    def build(self, table: Mapping[str, Any], where: str = "") -> T:
        """Make a spec from a table with its ``name`` and settings; ``where`` is the table's name if it is another's."""
        cls = self.get(str(table["name"]))
        values = {key: value for key, value in table.items() if key != "name"}
        where = where or self.table
        cls.check_names(values, where)
        missing = [name for name, f in cls.settings().items() if f.default is MISSING and name not in values]
        if missing:
            example = f"--set {where}.{missing[0]}=..."
            raise FedshiftError(f"The {self.kind} '{table['name']}' needs {', '.join(missing)}: {example}")
        return cls(**values)


@dataclass(frozen=True)
class Entry:
    """Marks a setting that is itself an entry of a catalogue: its name, or a table with a name and settings.

    Write ``encoder: Annotated[Encoder, Entry(ENCODERS)]``.
    """

    catalogue: Catalogue[Any]

    def build(self, value: Any, default: Any, where: str) -> Spec:
        """The spec behind a name or table; a spec is itself, and a table without a name is of the default's.

        Raises:
            FedshiftError: the value is neither, or something in it is wrong.
        """
        if isinstance(value, Spec) and isinstance(value, self.catalogue.base()):
            return value
        table = {"name": value} if isinstance(value, str) else value
        if isinstance(table, Mapping) and ("name" in table or isinstance(default, str)):
            built: Spec = self.catalogue.build({"name": default, **table}, where)
            return built
        raise FedshiftError(
            f"{where} = {value!r}: give the name of a {self.catalogue.kind} ({', '.join(self.catalogue)}), or a table "
            'such as { name = "..." }.'
        )


def _path(held: str | type) -> str:
    return held if isinstance(held, str) else f"{held.__module__}:{held.__qualname__}"


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module) or import_module(module)
    return getattr(loaded, name)


METHODS: Catalogue[Any] = Catalogue(
    "method",
    "method",
    "fedshift.core.method:Method",
    {
        "centralised": "fedshift.methods.references:Centralised",
        "single": "fedshift.methods.references:Single",
        "fedavg": "fedshift.methods.fedavg:FedAvg",
        "fedprox": "fedshift.methods.fedprox:FedProx",
        "fedbn": "fedshift.methods.fedbn:FedBN",
        "fedsr": "fedshift.methods.fedsr:FedSR",
        "fedl2r": "fedshift.methods.fedsr:FedL2R",
        "fedcmi": "fedshift.methods.fedsr:FedCMI",
        "fedcir": "fedshift.methods.fedcir:FedCiR",
        "fedreg": "fedshift.methods.fedcir:FedReg",
        "fedalign": "fedshift.methods.fedcir:FedAlign",
        "fraug": "fedshift.methods.fraug:FRAug",
        "head-retraining": "fedshift.methods.head_retraining:HeadRetraining",
        "client2vec": "fedshift.methods.client2vec.client2vec:Client2Vec",
        "fedpin": "fedshift.methods.fedpin:FedPIN",
        "fedpin-lambda-0": "fedshift.methods.fedpin:WithoutContrast",
        "fedpin-gamma-0": "fedshift.methods.fedpin:WithoutVariance",
        "fedpin-gm": "fedshift.methods.fedpin_global:GlobalModel",
        "fedpin-gm-ft": "fedshift.methods.fedpin_global:FineTuned",
        "fedpin-gm-l2": "fedshift.methods.fedpin:Anchored",
        "ditto": "fedshift.methods.ditto:Ditto",
        "fedavgm": "fedshift.methods.fedavgm:FedAvgM",
        "feddyn": "fedshift.methods.feddyn:FedDyn",
        "moon": "fedshift.methods.moon:MOON",
        "fedlc": "fedshift.methods.fedlc:FedLC",
        "fediir": "fedshift.methods.fediir:FedIIR",
    },
)
DATASETS: Catalogue[Any] = Catalogue(
    "data set",
    "data",
    "fedshift.datasets.dataset:Dataset",
    {
        "rotated-mnist": "fedshift.datasets.rotated_mnist:RotatedMNIST",
        "folder": "fedshift.datasets.folder:ImageFolder",
        "parquet": "fedshift.datasets.parquet:ParquetFile",
        "hub": "fedshift.datasets.hub:HubDataset",
        "colored-mnist": "fedshift.datasets.colored_mnist:ColoredMNIST",
        "colored-fashion-mnist": "fedshift.datasets.colored_mnist:ColoredFashionMNIST",
        "waterbird": "fedshift.datasets.waterbird:WaterBird",
        "digits": "fedshift.datasets.digits:Digits",
        "pacs": "fedshift.datasets.image_sets:PACS",
        "office-home": "fedshift.datasets.image_sets:OfficeHome",
        "office-caltech-10": "fedshift.datasets.image_sets:OfficeCaltech10",
        "domainnet": "fedshift.datasets.image_sets:DomainNet",
        "cifar10": "fedshift.datasets.image_sets:CIFAR10",
        "camelyon17": "fedshift.datasets.wilds:Camelyon17",
        "iwildcam": "fedshift.datasets.wilds:IWildCam",
        "shakespeare": "fedshift.datasets.shakespeare:Shakespeare",
    },
)
MODELS: Catalogue[Any] = Catalogue(
    "model",
    "model",
    "fedshift.core.model:Model",
    {
        "cnn": "fedshift.models.cnn:CNN",
        "mlp": "fedshift.models.mlp:MLP",
        "resnet18": "fedshift.models.backbones:ResNet18",
        "resnet50": "fedshift.models.backbones:ResNet50",
        "mobilenetv2": "fedshift.models.backbones:MobileNetV2",
        "digits-cnn": "fedshift.models.cnn:DigitsCNN",
        "cct-7-3x1": "fedshift.models.cct:CCT7",
        "lstm": "fedshift.models.lstm:LSTM",
    },
)
PARTITIONS: Catalogue[Any] = Catalogue(
    "partition",
    "partition",
    "fedshift.federation.partitions:Partition",
    {
        "domains": "fedshift.federation.partitions:Domains",
        "iid": "fedshift.federation.partitions:IID",
        "dirichlet": "fedshift.federation.partitions:Dirichlet",
        "classes": "fedshift.federation.partitions:ByClass",
        "flwr": "fedshift.federation.partitions:FlowerPartitioner",
    },
)
PROTOCOLS: Catalogue[Any] = Catalogue(
    "protocol",
    "protocol",
    "fedshift.federation.protocols:Protocol",
    {
        "leave-one-domain-out": "fedshift.federation.protocols:LeaveOneDomainOut",
        "in-domain": "fedshift.federation.protocols:InDomain",
        "all-clients": "fedshift.federation.protocols:AllClients",
        "personal-under-shift": "fedshift.federation.protocols:PersonalUnderShift",
    },
)
INDICES: Catalogue[Any] = Catalogue(
    "client index",
    "method.index",
    "fedshift.methods.client2vec.index:ClientIndex",
    {
        "dsa-ign": "fedshift.methods.client2vec.dsa_ign:DSAIGN",
        "feature-average": "fedshift.methods.client2vec.simple:FeatureAverage",
        "class-prototypes": "fedshift.methods.client2vec.simple:ClassPrototypes",
        "model-weights": "fedshift.methods.client2vec.simple:ModelWeights",
        "file": "fedshift.methods.client2vec.file:IndexFile",
    },
)
ENCODERS: Catalogue[Any] = Catalogue(
    "encoder",
    "method.index.encoder",
    "fedshift.methods.client2vec.encoder:Encoder",
    {
        "offline": "fedshift.methods.client2vec.offline:Offline",
        "clip": "fedshift.methods.client2vec.clip:CLIP",
    },
)
CATALOGUES = (METHODS, DATASETS, PARTITIONS, MODELS, PROTOCOLS, INDICES, ENCODERS)
