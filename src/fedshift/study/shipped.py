"""Experiments that come with fedshift, as TOML files."""

from __future__ import annotations

from importlib import resources

EXPERIMENTS = resources.files(__package__) / "experiments"


def shipped() -> list[str]:
    """Their names."""
    return sorted(entry.name.removesuffix(".toml") for entry in EXPERIMENTS.iterdir() if entry.name.endswith(".toml"))


def shipped_text(name: str) -> str:
    """The TOML text of one."""
    return (EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8")
