"""Checks of what is installed: Spark, the other libraries, and those of the systems that a pipeline may use."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from holdfast.setup.finding import Finding

DEVELOPERS = ("dev", "demo")
"""Extras of whoever changes Holdfast: no run needs them."""
HOME = "SPARK_HOME"

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


@dataclass(frozen=True)
class Library:
    """A library that Holdfast asks for.

    Parameters
    ----------
    name : str
        Its distribution.
    bounds : str
        Versions, as ``>=4.3,<4.4``.
    extra : str
        The extra that asks for it; empty: Holdfast itself.
    """

    name: str
    bounds: str
    extra: str = ""

    @property
    def command(self) -> str:
        """What installs it."""
        return f"pip install 'holdfast[{self.extra}]'" if self.extra else f"pip install '{self.name}{self.bounds}'"

    def fits(self, version: str) -> bool:
        """Return whether a version is within the bounds."""
        number = _number(version)
        compared = {
            ">=": lambda bound: number >= bound,
            "<=": lambda bound: number <= bound,
            "<": lambda bound: number < bound,
            ">": lambda bound: number > bound,
            "==": lambda bound: number == bound,
            "!=": lambda bound: number != bound,
        }
        return all(compared[sign](_number(bound)) for sign, bound in _BOUND.findall(self.bounds))


def spark(
    wanted: list[Library] | None = None,
    installed: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Finding:
    """Whether the Spark that runs is the one that Holdfast is made for."""
    (pyspark,) = [one for one in (wanted_by_holdfast() if wanted is None else wanted) if one.name == "pyspark"]
    version = _versions([pyspark], installed).get("pyspark")
    if version is None:
        return Finding("spark", "fail", "PySpark is not installed", pyspark.command)
    if not pyspark.fits(version):
        return Finding("spark", "fail", f"PySpark {version}; Holdfast needs {pyspark.bounds}", pyspark.command)
    home = (os.environ if environ is None else environ).get(HOME)
    package = importlib.util.find_spec("pyspark")
    own = Path(package.origin).parent if package and package.origin else None
    if home and own and Path(home).resolve() != own.resolve():
        found = f"PySpark {version}, and {HOME} names another Spark: {home}"
        return Finding("spark", "warn", found, f"unset {HOME}, unless that one is {version} too.")
    return Finding("spark", "ok", f"PySpark {version}")


def libraries(wanted: list[Library] | None = None, installed: Mapping[str, str] | None = None) -> Finding:
    """Whether the libraries that every run needs are there, in versions that work."""
    needed = [one for one in (wanted_by_holdfast() if wanted is None else wanted) if not one.extra]
    versions = _versions(needed, installed)
    wrong = [one for one in needed if one.name not in versions or not one.fits(versions[one.name])]
    if wrong:
        found = ", ".join(f"{one.name} {versions.get(one.name, 'missing')} ({one.bounds})" for one in wrong)
        return Finding("libraries", "fail", found, "; ".join(one.command for one in wrong))
    return Finding("libraries", "ok", f"{len(needed)} libraries in versions that work")


def clients(wanted: list[Library] | None = None, installed: Mapping[str, str] | None = None) -> Finding:
    """Which systems can be used, and whether their libraries are in versions that work."""
    known = [one for one in (wanted_by_holdfast() if wanted is None else wanted) if one.extra]
    versions = _versions(known, installed)
    wrong = [one for one in known if one.name in versions and not one.fits(versions[one.name])]
    if wrong:
        found = ", ".join(f"{one.name} {versions[one.name]} ({one.bounds})" for one in wrong)
        return Finding("clients", "fail", found, "; ".join(dict.fromkeys(one.command for one in wrong)))
    extras = dict.fromkeys(one.extra for one in known)
    missing = {one.extra for one in known if one.name not in versions}
    there = [extra for extra in extras if extra not in missing]
    without = ", ".join(extra for extra in extras if extra in missing)
    found = ", ".join(there) or "none of a system"
    return Finding(
        "clients", "ok", found + (f"; not installed: {without} (pip install 'holdfast[NAME]')" if without else "")
    )


def wanted_by_holdfast() -> list[Library]:
    """Return what the installed Holdfast asks for, extras for developers left out."""
    return list(_libraries(metadata.requires("holdfast") or []))


def _libraries(texts: list[str]) -> Iterator[Library]:
    for text in texts:
        parts = _REQUIREMENT.match(text)
        if parts is None:
            continue
        extra = _EXTRA.search(parts["marker"] or "")
        name = re.sub(r"[-_.]+", "-", parts["name"]).lower()
        if name != "holdfast" and (extra is None or extra[1] not in DEVELOPERS):
            yield Library(name, parts["bounds"].strip(), extra[1] if extra else "")


def _versions(wanted: list[Library], given: Mapping[str, str] | None) -> Mapping[str, str]:
    if given is not None:
        return given
    found = {}
    for one in wanted:
        try:
            found[one.name] = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at the end: 4.3 is 4.3.0."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
