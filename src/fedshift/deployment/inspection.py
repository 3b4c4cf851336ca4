"""Whether a site can take part: its folder and data are checked against the agreement before anything starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path

import torch

from fedshift.clients.missing import notes_on_missing
from fedshift.deployment.agreement import SITE
from fedshift.deployment.leaving import refusal, refused, what_leaves
from fedshift.deployment.shell import AUTHORITY
from fedshift.deployment.site_data import SiteFolder
from fedshift.errors import FedshiftError, Problems, needs
from fedshift.reporting.data_report.duplicates import Roles, find_duplicates
from fedshift.reporting.data_report.findings import duplicates_finding

KEY, PUBLIC = "keys/site.key", "keys/site.pub"


@dataclass(frozen=True)
class SiteSamples:
    """A site's samples."""

    samples: int  # their number
    shape: tuple[int, ...]  # the shape of a sample
    dtype: str  # their type, such as uint8
    # by part of the split (training, validation, test), the number of samples by class name
    counts: Mapping[str, Mapping[str, int]]


@dataclass
class Inspection:
    """The findings at a site; unknown values are empty or None."""

    federation: str = ""  # the federation's name
    site: str = ""  # the site's name
    samples: SiteSamples | None = None  # its samples
    page: str = ""  # every tensor that may leave the site in a run, in Markdown
    notes: list[str] = field(default_factory=list)  # remarks that are not errors
    # everything that keeps the site from taking part
    problems: Problems = field(default_factory=lambda: Problems("things keep this site from taking part"))


def inspect(folder: Path) -> Inspection:
    """Inspect a site's folder and its data. Nothing is written there, and nothing leaves the machine.

    Features of frozen networks are cached, as in any run.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    with needs("flower", "Taking part in a federation"):
        distribution("flwr")
    found, site = Inspection(), SiteFolder(folder)
    with found.problems.gathered():
        found.federation = site.agreement.federation.name
    with found.problems.gathered():
        found.site = site.settings.name
    for check in (_check_pair, _check_authority):
        with found.problems.gathered():
            check(folder)
    if (folder / KEY).exists() and os.name != "nt" and (folder / KEY).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        found.notes.append(f"Other users of this machine can read '{folder / KEY}': chmod 600 '{folder / KEY}'")
    if found.federation:
        with found.problems.gathered():
            setup = site.agreement.setup(torch.device("cpu"))
            found.page = what_leaves(setup, site.agreement.federation)
            if found.site and refused(setup, site.settings.refuse):
                raise refusal(setup, found.site, site.settings.refuse)
    if found.federation and found.site:
        try:
            _read_samples(found, site)
        except FedshiftError as error:
            found.problems.add(error)
            if "--set data." in str(error):
                found.notes.append(
                    f"What a message writes as --set data.NAME=VALUE is NAME = VALUE here, below [data] in {SITE}."
                )
    return found


def _read_samples(found: Inspection, site: SiteFolder) -> None:
    """Add the site's samples, and notes on them."""
    samples = site.samples()
    federation = site.federated(samples)
    roles = Roles.of(federation, len(samples.y))
    counts = roles.counts(samples.y, samples.classes)
    dtype = str(samples.x.dtype).removeprefix("torch.")
    found.samples = SiteSamples(len(samples.y), tuple(samples.x.shape[1:]), dtype, counts)
    lacking = notes_on_missing(samples, federation.inputs.preparation)
    found.notes += dict.fromkeys([*samples.notes, *federation.notes, *lacking])
    crossing = [each for each in find_duplicates(samples, roles) if each.where in roles.masks]
    found.notes += [str(duplicates_finding(each)) for each in crossing]


# The folder ---------------------------------------------------------------------------------------


def _check_pair(folder: Path) -> None:
    """Check that the site's two keys match."""
    with needs("flower", "A federation"):
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
            f"'{folder / PUBLIC}' is not the public key of '{folder / KEY}'; the coordinator must have the key that "
            "matches it, or this site will not be recognised."
        )


def _check_authority(folder: Path) -> None:
    with needs("flower", "A federation"):
        from cryptography import x509

    content = _content(folder / AUTHORITY)
    try:
        certificate = x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise FedshiftError(f"'{folder / AUTHORITY}' is no certificate in PEM ({error}); get it again.") from error
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= datetime.now(UTC) <= end:
        raise FedshiftError(
            f"'{folder / AUTHORITY}' is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d} only; renew it, or set this "
            "machine's clock."
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedshiftError(
            f"'{path}' cannot be read ({error.strerror or error}); get it from the coordinator."
        ) from error
