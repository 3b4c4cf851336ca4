"""federation.toml, which is the same at every member: the members, the form of a sample, and deadlines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from pydantic import AfterValidator

from fedshift.clients.data_checks import check_names as check_spelling
from fedshift.deployment.shell import check_address
from fedshift.errors import FedshiftError, needs
from fedshift.spec import NonNegative, Spec, setting
from fedshift.written import read_toml

FEDERATION = "federation.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # what file systems, shells, Flower and Docker all take
TAKEN = ("default",)  # the word for something else where Flower looks for a connection's name


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(
            "it names files, containers and keys: give 1 to 63 letters (A to Z), digits, dots, hyphens and "
            "underscores, with a letter or digit first"
        )
    return name


MemberName = Annotated[str, AfterValidator(_name)]
Seconds = Annotated[float, Ge(1), Le(10**7)]
Megabytes = Annotated[int, Ge(1), Le(2000)]


class FederationSettings(Spec):
    """federation.toml: the members, the form of a sample, and deadlines."""

    section: ClassVar[str] = FEDERATION

    name: MemberName = setting(help="what the federation is called")
    sites: tuple[MemberName, ...] = setting(help="the institutions' names; their order numbers the clients")
    shape: tuple[int, ...] = setting(help="the shape of a sample, such as [1, 28, 28]")
    classes: tuple[str, ...] = setting(help="the classes' names; a site may lack some")
    columns: tuple[tuple[str, ...], ...] = setting(
        (), help="for a prepared table, each column's name, followed by its categories if it is not numeric"
    )
    address: str = setting(help="host and port at which sites reach the coordinator's SuperLink")
    deadline: Seconds = setting(600.0, help="seconds that sites have for an exchange; a later answer is not merged")
    wait: Seconds = setting(600.0, help="seconds that the coordinator waits for sites to connect before a run")
    largest: Megabytes = setting(1000, help="megabytes of a message at most")
    environments: tuple[str, ...] = setting(
        (),
        help="the environments that every site scores, if the data define them; empty: one, a site's data",
    )
    norm_factor: NonNegative = setting(
        20.0, help="how many times the median norm of its cohort an update may have to be merged; 0: any"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind, names in (("site", self.sites), ("class", self.classes), ("environment", self.environments)):
            check_spelling(kind, dict.fromkeys(names, "in federation.toml"))
        if len(set(self.sites)) < len(self.sites) or not self.sites:
            raise FedshiftError(f"sites = {list(self.sites)}: list at least one site, each once.")
        if self.name in TAKEN:
            raise FedshiftError(f"'{self.name}' means something else to Flower; give the federation another name.")
        if 0 < self.norm_factor <= 1:
            raise FedshiftError(
                f"norm_factor = {self.norm_factor:g} in federation.toml would exclude every update above the median: "
                "give a factor above 1, such as 20, or 0 for no comparison."
            )
        if len(self.classes) < 2 or not self.shape or min(self.shape) < 1:
            raise FedshiftError("federation.toml needs two classes at least, and a shape of numbers from 1.")
        if self.columns and (not all(self.columns) or self.shape != (len(self.columns),)):
            raise FedshiftError(
                f"federation.toml: shape = {list(self.shape)}, but columns names {len(self.columns)} of them; name "
                "each column of a sample."
            )
        check_address(self.address, "address")


def read_federation(folder: Path, required: Sequence[str] = ()) -> FederationSettings:
    """Read a member's federation.toml without its experiment, which may include plugins.

    Args:
        folder: the member's folder.
        required: further files that the member's processes need in it.
    """
    if required:
        with needs("flower", "A federation"):
            import flwr  # noqa: F401
    federation = FederationSettings(**read_member_file(folder / FEDERATION))
    for file in required:
        if not (folder / file).is_file():
            raise FedshiftError(f"'{folder / file}' does not exist. Is this the folder of the right member?")
    return federation


def read_member_file(path: Path) -> dict[str, Any]:
    """The tables of a TOML file in a member's folder."""
    if not path.is_file():
        raise FedshiftError(
            f"'{path}' does not exist: give the folder of a member, as `fedshift federation init` makes them."
        )
    return read_toml(path)
