"""The folders of a federation: one for the coordinator and one for each site, with everything that they need to start.

Files are planned in memory (:func:`planned`), then written next to their destination and renamed (:func:`make`), so
that a federation's folder is complete or absent.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import tomli_w
import torch

from fedshift.content import imported
from fedshift.core.contract import Category
from fedshift.datasets import DATASETS
from fedshift.datasets.column_files import InputColumns
from fedshift.deployment import shell
from fedshift.deployment.agreement import (
    EXPERIMENT,
    SITE,
    Agreement,
    SiteSettings,
    own_files,
    put_setting,
)
from fedshift.deployment.federation_toml import FEDERATION, FederationSettings
from fedshift.deployment.keys import make_certificates, site_pair
from fedshift.deployment.leaving import render, what_leaves
from fedshift.deployment.site_data import Schema
from fedshift.errors import DiskError, FedshiftError
from fedshift.experiments import Experiment
from fedshift.files import make_folder, write
from fedshift.spec import Spec
from fedshift.written import as_toml

DATA, PLUGINS, FILES = "data", "plugins", "files"  # folders of a member
LEAVES = "what-leaves.md"
IN_COMPOSE = "superlink"  # what containers call the coordinator's
UNPRIVILEGED = "1000:1000"  # a user and group without rights, as the Dockerfile has them
MIN_ANSWERS = 0.5  # of the cohort; a round with fewer answers is not aggregated

Content = bytes | str | Path | None  # a file's content; a source file to copy; None: an empty folder
Planned = dict[str, Content]  # by the path in the federation's folder


def for_institutions(experiment: Experiment, sample: Schema) -> Experiment:
    """The experiment with defaults for institutions.

    ``train.min_answers = "all"``, by which one failing site would end the run, becomes :data:`MIN_ANSWERS`; and input
    columns are named, so that every site uses the same order.

    Args:
        experiment: the given experiment.
        sample: from :func:`schema`.
    """
    data, train = experiment.data, experiment.train
    if isinstance(data, InputColumns) and not data.columns:
        columns = tuple(name for name, *_ in sample.columns) or data.input_columns()
        data = data.replace(columns=columns, exclude=())
    if train.min_answers == "all":
        train = train.replace(min_answers=MIN_ANSWERS)
    return experiment.replace(data=data, train=train)


def planned(
    federation: FederationSettings,
    experiment: Experiment,
    domains: Sequence[str] = (),
    at_sites: Mapping[str, Any] | None = None,
) -> Planned:
    """All files of a federation, with new keys.

    Args:
        federation: the members.
        experiment: the experiment. Plugins and local files that it names are copied to every member; data files are
            not, and are expected in each site's folder.
        domains: the domains of the data.
        at_sites: the settings of every site, as :class:`SiteSettings`, if any.
    """
    table, copies = _relative(experiment)
    agreement = Agreement(Path(), federation, experiment.table())
    setup = agreement.setup(torch.device("cpu"))
    agreement.parts_of_model(setup)  # which the site that is held out must have
    own = _own_domains(experiment, federation.sites, domains)
    host, port = shell.host_and_port(federation.address)
    me = f"{os.getuid()}:{os.getgid()}" if hasattr(os, "getuid") else UNPRIVILEGED  # as Docker takes them
    user = UNPRIVILEGED if me.startswith("0:") else me
    trusted, server = make_certificates(federation.name, [host, "localhost", "127.0.0.1", IN_COMPOSE])
    pairs = {site: site_pair() for site in federation.sites}
    target = table["protocol"].get("hold_out")
    page = partial(
        render,
        federation=federation,
        experiment=experiment,
        target=target,
        data_set=DATASETS.name_of(experiment.data),
        about_data=experiment.data.help().splitlines()[0],
        data_help=_help_of_data(experiment, table),
        own=own,
        local=host in shell.LOOPBACK,
        method=experiment.method_name,
        categories=get_args(Category),
        here=Path("$PWD"),
        in_compose=IN_COMPOSE,
        inside=f"{IN_COMPOSE}:{port}",
        gate_address=shell.GATE_ADDRESS,
        port=port,
        user=user,
        unprivileged=UNPRIVILEGED,
        by_root=user != me,
    )
    common: Planned = {
        FEDERATION: commented(federation, f"The federation {federation.name}: this file is the same at every member."),
        EXPERIMENT: _written(table),
        LEAVES: what_leaves(setup, federation),
        shell.AUTHORITY: trusted.public,
        **copies,
    }
    coordinator: Planned = {
        "README.md": page("coordinator.md"),
        **common,
        shell.ENVIRONMENT: page("flower.env"),
        "certificates/superlink.crt": server.public,
        "certificates/superlink.key": server.private,
        **{f"keys/{site}.pub": pair.public for site, pair in pairs.items()},
    }
    sites: dict[str, Planned] = {
        site: {
            "README.md": page("site.md", site=site),
            **common,
            SITE: commented(
                SiteSettings(**{"name": site, "domains": own.get(site, ()), **(at_sites or {})}),
                f"Settings of {site} alone.",
            )
            + page("data.toml"),
            "keys/site.key": pair.private,
            "keys/site.pub": pair.public,
            f"{DATA}/": None,
        }
        for site, pair in pairs.items()
    }
    files: Planned = {
        "README.md": page("README.md"),
        "compose.yaml": page("compose.yaml"),
        "Dockerfile": page("Dockerfile"),
        "authority/ca.crt": trusted.public,
        "authority/ca.key": trusted.private,
        **{f"{shell.COORDINATOR}/{name}": content for name, content in coordinator.items()},
    }
    for site, mine in sites.items():
        files |= {f"{shell.SITES}/{site}/{name}": content for name, content in mine.items()}
    return files


def make(folder: Path, files: Planned) -> None:
    """Write a federation's folder completely or not at all, readable by its owner only.

    Args:
        folder: the federation's folder, which must not exist.
        files: from :func:`planned`.
    """
    check_new(folder)
    make_folder(folder.parent)
    temporary: Path | None = None
    try:
        temporary = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for name, content in files.items():
            _write(temporary / name, content)
        for inner in filter(Path.is_dir, temporary.rglob("*")):
            inner.chmod(0o700)  # each goes to another member, and keeps its mode
        temporary.rename(folder)
    except OSError as error:
        raise DiskError(
            f"'{folder}' cannot be written: {error.strerror or error}. No part of it was created."
        ) from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary)


def check_new(folder: Path) -> None:
    """Raise an error if the path of a new federation's folder exists."""
    if folder.exists() or folder.is_symlink():
        raise FedshiftError(f"'{folder}' exists. Choose another name, or another place (--to), or remove it first.")


def _write(path: Path, content: Content) -> None:
    if content is None:
        make_folder(path)
        return
    make_folder(path.parent)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        write(path, content, private=path.suffix == ".key")


# Checks --------------------------------------------------------------------------------------------


def _own_domains(experiment: Experiment, sites: Sequence[str], domains: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The domain of each site for data that need no user's file, if there are enough."""
    by_itself = all(
        getattr(experiment.data, name) in ("", *words) for name, words in own_files(experiment.data).items()
    )
    if len(sites) > len(domains) or not by_itself:
        return {}
    left = iter(domain for domain in domains if domain not in sites)
    return {site: (site if site in domains else next(left),) for site in sites}


# The experiment at every member ------------------------------------------------------------------


def _relative(experiment: Experiment) -> tuple[dict[str, Any], Planned]:
    """The experiment's table with paths relative to a member's folder, and the files to copy there."""
    table = experiment.table()
    plugins, copies = _plugins(experiment)
    table["plugins"] = plugins
    for names, value in experiment.paths():
        path = Path(value)
        if not value or not path.is_absolute() or not path.exists():
            continue  # a word, a hub id, or a path that is a site's affair
        if names[0] == "data" and names[-1] in own_files(experiment.data):
            there = DATA if names[-1] == "path" else f"{DATA}/{names[-1]}"
        else:
            there = f"{FILES}/{'.'.join(names)}{path.suffix}"
            inside = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else []
            copies |= {f"{there}/{file.relative_to(path).as_posix()}": file for file in inside} or {there: path}
            beside = imported(path) if path.suffix == ".py" else []
            copies |= {f"{FILES}/{file.relative_to(path.parent).as_posix()}": file for file in beside}
        put_setting(table, names, there)
    return table, copies


def _plugins(experiment: Experiment) -> tuple[list[str], Planned]:
    """The plugins' paths at a member, and their files there, with what they import from their folders."""
    names, found = list[str](), dict[str, Path]()
    for plugin in (Path(path).expanduser().resolve() for path in experiment.plugins):
        names.append(f"{PLUGINS}/{plugin.name}")
        for file in (plugin, *imported(plugin)):
            there = f"{PLUGINS}/{file.relative_to(plugin.parent).as_posix()}"
            if found.setdefault(there, file) != file:
                raise FedshiftError(
                    f"'{found[there]}' and '{file}' would both be {there} at the sites; rename one of them."
                )
    return names, dict(found)


def _help_of_data(experiment: Experiment, table: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    about = experiment.data.settings()
    return [(name, table["data"][name], about[name].help) for name in own_files(experiment.data)]


# Texts -------------------------------------------------------------------------------------------


def commented(settings: Spec, head: str) -> str:
    """Settings as TOML with a comment for each; defaults are commented out. The first line is ``head``."""
    lines = [f"# {head}"]
    for name, about in settings.settings().items():
        value = getattr(settings, name)
        written = f"{name} = {json.dumps(as_toml(value), ensure_ascii=False)}"
        lines += ["", f"# {about.help}", f"# {written}" if value == about.default else written]
    return "\n".join(lines) + "\n"


def _written(table: Mapping[str, Any]) -> str:
    head = "# The federation's experiment, with every setting. The file is the same at every member, except for [run]."
    return f"{head}\n\n{tomli_w.dumps(table)}"
