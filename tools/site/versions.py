"""Sites of several releases in one directory: ``<version>/`` each, which its pages let a reader choose between.

The theme asks for ``versions.json`` above the site; ``index.html`` there leads to the newest one.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tools.site.tree import ROOT

NEWEST = "latest"
"""The other name of the newest version."""


def present() -> str:
    """Return the version of the project."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def write_list(directory: Path) -> list[str]:
    """Write which versions there are, and where to begin; return them, newest first.

    Parameters
    ----------
    directory : Path
        With a site for each version.
    """
    found = [path.parent.name for path in directory.glob("*/sitemap.xml")]
    versions = sorted(found, key=numbers, reverse=True)
    listed = [
        {"version": version, "title": version, "aliases": [NEWEST] if version == versions[0] else []}
        for version in versions
    ]
    (directory / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (directory / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Holdfast</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
        f'<a href="{versions[0]}/index.html">Holdfast {versions[0]}</a>\n',
        encoding="utf-8",
    )
    return versions


def numbers(version: str) -> tuple[int, ...]:
    """Return what versions are ordered by.

    Examples
    --------
    >>> sorted(["0.10.0", "0.2.0"], key=numbers)
    ['0.2.0', '0.10.0']
    """
    return tuple(int(part) for part in version.split("."))
