"""Whether a site can take part: its folder and its data against what was agreed, before anything starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch

from fedshift.datasets.listing import files_below
from fedshift.deployment.agreement import SITE, Agreement, SiteSettings, read_site
from fedshift.deployment.leaving import Leaves, leaving, refusal, refused, what_leaves
from fedshift.deployment.site_data import site_data, site_federation
from fedshift.errors import FedshiftError, Problems, UnknownNameError, needs
from fedshift.reporting.data_report.duplicates import Roles, find_duplicates
from fedshift.reporting.data_report.findings import duplicates_finding

KEY, PUBLIC, AUTHORITY = "keys/site.key", "keys/site.pub", "certificates/ca.crt"


@dataclass(frozen=True)
class SiteSamples:
    """The samples that a site has.

    Attributes:
        path: where they are read from; empty for a data set that names no file.
        files: how many files lie there.
        bytes: how large those are together.
        samples: how many samples there are.
        shape: of one.
        dtype: their type, such as uint8.
        counts: by part of the split (training, validation, test), how many samples each class has, by its name.
        lacking: the classes of which no part has a sample, which is normal for a site.
        notes: what a reader of results made from them must know.
    """

    path: str
    files: int
    bytes: int
    samples: int
    shape: tuple[int, ...]
    dtype: str
    counts: Mapping[str, Mapping[str, int]]
    lacking: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class Inspection:
    """What was found at a site; what could not be is empty or None.

    Attributes:
        folder: the site's.
        federation: the federation's name.
        site: the site's name.
        samples: those that it has.
        leaves: every tensor that may leave the site in a run.
        page: the same for a reader, in Markdown.
        notes: what is no error, but should be known.
        problems: what keeps the site from taking part.
    """

    folder: Path
    federation: str = ""
    site: str = ""
    samples: SiteSamples | None = None
    leaves: tuple[Leaves, ...] = ()
    page: str = ""
    notes: list[str] = field(default_factory=list)
    problems: list[FedshiftError] = field(default_factory=list)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Add an error that is raised within to the problems, and go on."""
        try:
            yield
        except FedshiftError as error:
            if str(error) not in map(str, self.problems):  # of a file that several steps read
                self.problems.append(error)

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
        return {
            "folder": str(self.folder.resolve()),
            "federation": self.federation,
            "site": self.site,
            "ready": not self.problems,
            "problems": [str(problem) for problem in self.problems],
            "notes": self.notes,
            "data": None if self.samples is None else asdict(self.samples),
            "leaves": [asdict(each) for each in self.leaves],
        }


def inspect(folder: Path) -> Inspection:
    """Look at a site's folder and its data. Nothing is written there, and nothing leaves the machine.

    Where a frozen network stands for images, their features are kept in the cache, as in any run.
    """
    found = Inspection(folder)
    agreement = site = setup = None
    with found.gathered():
        agreement = Agreement.read(folder)
        found.federation = agreement.federation.name
    with found.gathered():
        site = read_site(folder)
        found.site = site[0].name
    with found.gathered(), needs("flower", "Taking part in a federation"):
        distribution("flwr")
        for check in (_check_pair, _check_authority):
            with found.gathered():
                check(folder)
        found.notes += _readable_by_others(folder)
    if agreement is not None:
        with found.gathered():
            setup = agreement.setup(torch.device("cpu"))
            found.leaves, found.page = tuple(leaving(setup)), what_leaves(setup, agreement.federation)
    if agreement is not None and site is not None:
        settings, data = site
        if setup is not None and refused(setup, settings.refuse):
            found.problems.append(refusal(setup, settings.name, settings.refuse))
        with found.gathered():
            _read_samples(found, agreement, settings, data)
    if any("--set data." in str(problem) for problem in found.problems):
        found.notes.append(
            f"What a message writes as --set data.NAME=VALUE is NAME = VALUE here, below [data] in {SITE}."
        )
    return found


# Data ---------------------------------------------------------------------------------------------


def _read_samples(found: Inspection, agreement: Agreement, settings: SiteSettings, data: Mapping[str, Any]) -> None:
    """Add the site's samples, and notes on them.

    Raises:
        FedshiftError: they are not what was agreed.
    """
    if settings.name not in agreement.federation.sites:
        raise UnknownNameError("site (name in site.toml)", settings.name, agreement.federation.sites)
    samples = site_data(agreement, settings, data)
    federation = site_federation(agreement, settings, samples)
    path = getattr(agreement.with_data(data).data, "path", "")
    files = _files(path)
    roles = Roles.of(federation, len(samples.y))
    counts = roles.counts(samples.y, samples.classes)
    found.samples = SiteSamples(
        path=path if files else "",
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
        samples=len(samples.y),
        shape=tuple(samples.x.shape[1:]),
        dtype=str(samples.x.dtype).removeprefix("torch."),
        counts=counts,
        lacking=tuple(name for name in samples.classes if not any(count[name] for count in counts.values())),
        notes=tuple(dict.fromkeys([*samples.notes, *federation.notes])),
    )
    crossing = [each for each in find_duplicates(samples, roles) if each.where in roles.masks]
    found.notes += [str(duplicates_finding(each)) for each in crossing]


def _files(path: str) -> list[Path]:
    """The files that a data set's path names; none where it names something else, such as the hub."""
    there = Path(path).expanduser()
    if not path or not there.exists():
        return []
    return [file for file in files_below(there) if file.is_file()] if there.is_dir() else [there]


# The folder ---------------------------------------------------------------------------------------


def _readable_by_others(folder: Path) -> list[str]:
    """A note if others can read the site's private key."""
    if (folder / KEY).exists() and os.name != "nt" and (folder / KEY).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
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
