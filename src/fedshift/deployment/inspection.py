"""Whether a site can take part: its folder and its data against what was agreed, before anything starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch

from fedshift.core.setup import Setup
from fedshift.datasets.images import files_below
from fedshift.deployment.agreement import SITE, Agreement, SiteSettings, read_site
from fedshift.deployment.leaving import Leaves, leaving, refusal, refused, what_leaves
from fedshift.deployment.local import site_data, site_federation
from fedshift.errors import FedshiftError, Problems, UnknownNameError, needs
from fedshift.reporting.data_report.duplicates import find_duplicates
from fedshift.reporting.data_report.findings import crossing
from fedshift.reporting.data_report.roles import Roles
from fedshift.reporting.units import bytes_text

KEY, PUBLIC, AUTHORITY = "keys/site.key", "keys/site.pub", "certificates/ca.crt"
COPIES = 4  # of a model and its states that a run keeps on the disk, at most at a time


@dataclass(frozen=True)
class Held:
    """The samples that a site has.

    Attributes:
        path: where they are read from; empty for a data set that names no file.
        files: how many files lie there.
        bytes: how large those are together.
        samples: how many samples there are.
        shape: of one.
        dtype: their type, such as uint8.
        counts: by part of the split (training, validation, test), how many samples each class has, by its name.
        notes: what a reader of results made from them must know.
    """

    path: str
    files: int
    bytes: int
    samples: int
    shape: tuple[int, ...]
    dtype: str
    counts: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]

    @property
    def lacking(self) -> list[str]:
        """The classes of which no part has a sample, which is normal for a site."""
        classes = next(iter(self.counts.values()))
        return [name for name in classes if not any(count[name] for count in self.counts.values())]


@dataclass(frozen=True)
class Inspection:
    """What was found at a site; what could not be is empty or None.

    Attributes:
        folder: the site's.
        federation: the federation's name.
        site: the site's name.
        held: its samples.
        free: bytes that are free on the disk of its folder.
        leaves: every tensor that may leave the site in a run.
        page: the same for a reader, in Markdown.
        notes: what is no error, but should be known.
        problems: what keeps the site from taking part.
    """

    folder: Path
    federation: str = ""
    site: str = ""
    held: Held | None = None
    free: int = 0
    leaves: tuple[Leaves, ...] = ()
    page: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[FedshiftError, ...] = ()

    def check(self) -> None:
        """Raise an error that names whatever keeps the site from taking part.

        Raises:
            FedshiftError: something does.
        """
        problems = Problems("things keep this site from taking part")
        for problem in self.problems:
            problems.add(problem)
        problems.check()

    def table(self) -> dict[str, Any]:
        """What was found, as JSON can hold it."""
        held = None if self.held is None else {**asdict(self.held), "lacking": self.held.lacking}
        return {
            "folder": str(self.folder.resolve()),
            "federation": self.federation,
            "site": self.site,
            "ready": not self.problems,
            "problems": [str(problem) for problem in self.problems],
            "notes": list(self.notes),
            "data": held,
            "free": self.free,
            "leaves": [asdict(each) for each in self.leaves],
        }


class _Finding:
    """An inspection as it comes about: each step adds to it, and a step that fails does not end it."""

    def __init__(self, folder: Path) -> None:
        self.found = Inspection(folder)

    def add(self, **found: Any) -> None:
        self.found = replace(self.found, **found)

    def note(self, *notes: str) -> None:
        self.add(notes=(*self.found.notes, *notes))

    def problem(self, error: FedshiftError) -> None:
        if str(error) not in map(str, self.found.problems):  # of a file that several steps read
            self.add(problems=(*self.found.problems, error))

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Add an error that is raised within to the problems, and go on."""
        try:
            yield
        except FedshiftError as error:
            self.problem(error)


def inspect(folder: Path) -> Inspection:
    """Look at a site's folder and its data. Nothing is written there, and nothing leaves the machine.

    Where a frozen network stands for images, their features are kept in the cache, as in any run.
    """
    finding = _Finding(folder)
    agreement = site = None
    with finding.gathered():
        agreement = Agreement.read(folder)
        finding.add(federation=agreement.federation.name)
    with finding.gathered():
        site = read_site(folder)
        finding.add(site=site[0].name)
    with finding.gathered():
        finding.note(*_readable_by_others(folder))
    with finding.gathered():
        with needs("flower", "Taking part in a federation"):
            distribution("flwr")
        for check in (_check_pair, _check_authority):
            with finding.gathered():
                check(folder)
    if agreement is None:
        return finding.found
    setup = None
    with finding.gathered():
        setup = agreement.setup(torch.device("cpu"))
        finding.add(leaves=tuple(leaving(setup)), page=what_leaves(setup, agreement.federation))
    if folder.is_dir() and setup is not None:
        finding.add(free=disk_usage(folder).free)
        with finding.gathered():
            _check_disk(folder, finding.found.free, setup)
    if site is not None:
        settings, data = site
        if setup is not None and refused(setup, settings.refuse):
            finding.problem(refusal(setup, settings.name, settings.refuse))
        with finding.gathered():
            held, notes = _held(agreement, settings, data)
            finding.add(held=held)
            finding.note(*notes)
    if any("--set data." in str(problem) for problem in finding.found.problems):
        finding.note(f"What a message writes as --set data.NAME=VALUE is NAME = VALUE here, below [data] in {SITE}.")
    return finding.found


# Data ---------------------------------------------------------------------------------------------


def _held(agreement: Agreement, settings: SiteSettings, data: Mapping[str, Any]) -> tuple[Held, list[str]]:
    """The site's samples, and notes on them.

    Raises:
        FedshiftError: they are not what was agreed.
    """
    if settings.name not in agreement.federation.sites:
        raise UnknownNameError("site (name in site.toml)", settings.name, agreement.federation.sites)
    samples = site_data(agreement, settings, data)
    federation = site_federation(agreement, settings, samples)
    path = getattr(agreement.with_data(data).data, "path", "")
    files = _files(path)
    size = sum(file.stat().st_size for file in files)
    roles = Roles.of(federation, len(samples.y))
    counts = {
        role: dict(zip(samples.classes, count, strict=True))
        for role, count in roles.counts(samples.y, len(samples.classes)).items()
    }
    kind = str(samples.x.dtype).removeprefix("torch.")
    shape = tuple(samples.x.shape[1:])
    notes = tuple(dict.fromkeys([*samples.notes, *federation.notes]))
    held = Held(path if files else "", len(files), size, len(samples.y), shape, kind, counts, notes)
    return held, [str(finding) for finding in crossing(find_duplicates(samples, roles), samples, roles)]


def _files(path: str) -> list[Path]:
    """The files that a data set's path names; none where it names something else, such as the hub."""
    there = Path(path).expanduser()
    if not path or not there.exists():
        return []
    return [file for file in files_below(there) if file.is_file()] if there.is_dir() else [there]


# The folder ---------------------------------------------------------------------------------------


def _check_disk(folder: Path, free: int, setup: Setup) -> None:
    tensors = (tensor for part in setup.parts.values() for tensor in part.module.state_dict().values())
    needed = COPIES * sum(tensor.nbytes for tensor in tensors)
    if free < needed:
        raise FedshiftError(
            f"{bytes_text(free)} are free on the disk of '{folder}'; a run needs about {bytes_text(needed)}. Make room."
        )


def _readable_by_others(folder: Path) -> list[str]:
    """A note if others can read the site's private key, which must be there with the public one."""
    _content(folder / KEY), _content(folder / PUBLIC)
    mode = (folder / KEY).stat().st_mode
    if os.name != "nt" and mode & (stat.S_IRGRP | stat.S_IROTH):
        return [f"Other users of this machine can read '{folder / KEY}': chmod 600 '{folder / KEY}'"]
    return []


def _check_pair(folder: Path) -> None:
    """The site's two keys belong together."""
    with needs("flower", "Checking the keys"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    private, public = _content(folder / KEY), _content(folder / PUBLIC)
    try:
        key = load_ssh_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedshiftError(
            f"'{folder / KEY}' is no private key in OpenSSH's format without a password ({error}); get it again."
        ) from error
    own = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if own.split()[:2] != public.split()[:2]:
        raise FedshiftError(
            f"'{folder / PUBLIC}' is not the public key of '{folder / KEY}'; the coordinator must have the one that "
            "belongs to it, or nobody will believe that this is the site."
        )


def _check_authority(folder: Path) -> None:
    """The authority's certificate is there and valid."""
    with needs("flower", "Checking the certificate"):
        from cryptography import x509

    content = _content(folder / AUTHORITY)
    try:
        certificate = x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise FedshiftError(f"'{folder / AUTHORITY}' is no certificate in PEM ({error}); get it again.") from error
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= datetime.now(UTC) <= end:
        raise FedshiftError(
            f"'{folder / AUTHORITY}' is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d} only; get a new one, or set this "
            "machine's clock."
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedshiftError(
            f"'{path}' cannot be read ({error.strerror or error}); get it from whoever made the federation."
        ) from error
