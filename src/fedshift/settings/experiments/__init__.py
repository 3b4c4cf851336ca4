"""Experiments that come with fedshift, as TOML files."""

from __future__ import annotations

from importlib import resources


def shipped() -> list[str]:
    """Their names."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(".toml")
    )


def shipped_text(name: str) -> str:
    """The TOML text of one."""
    return (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
