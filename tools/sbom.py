"""The bill of materials of a wheel: what is in it that is not ours, and what an installation brings (CycloneDX, JSON).

Versions are those that the project is tested with: of ``constraints.txt``.  What one installation has is told by
``pip inspect`` there.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.vendor import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
OF_DEVELOPERS = ("dev", "demo")
OURS = "holdfast"


def bill(built_at: int) -> str:
    """Return the bill of materials as JSON.

    Parameters
    ----------
    built_at : int
        Unix time of the build, in seconds.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = {name: texts for name, texts in project["optional-dependencies"].items() if name not in OF_DEVELOPERS}
    direct = {"": project["dependencies"], **optional}
    us = _component(OURS, project["version"])
    us.licenses.add(DisjunctiveLicense(id=project["license"]))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{OURS}/{project['version']}/{built_at}"))
    bom.metadata.timestamp = datetime.fromtimestamp(built_at, UTC)
    bom.metadata.component = us
    locked = _locked()
    wanted: dict[str, Component] = {}
    for extra, texts in direct.items():
        for requirement in map(Requirement, texts):
            name = canonicalize_name(requirement.name)
            if name == OURS:
                continue
            component = wanted.setdefault(name, _component(name, locked.get(name)))
            bounds = f"{requirement.specifier}" + (f" ({OURS}[{extra}])" if extra else "")
            component.properties.add(Property(name=f"{OURS}:asks-for", value=bounds))
    known = {**{name: _component(name, locked.get(name)) for name in _behind(wanted)}, **wanted}
    for vendored in _vendored():
        bom.components.add(vendored)
        bom.register_dependency(us, [vendored])
    for component in known.values():
        bom.components.add(component)
    bom.register_dependency(us, wanted.values())
    for each, component in known.items():
        bom.register_dependency(component, [known[other] for other in _direct(each) if other in known])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: str, version: str | None) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"pkg:{name}",
        purl=PackageURL("pypi", None, name, version),
    )


def _vendored() -> Iterator[Component]:
    """Yield what is in the wheel, with the hashes of its files."""
    for package in PACKAGES:
        found = re.fullmatch(r".*/([a-z]+)-([\d.]+)\.tgz", package.url)
        assert found is not None, package.url
        name, version = found.groups()
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            bom_ref=f"npm:{name}",
            purl=PackageURL("npm", None, name, version),
            licenses=[DisjunctiveLicense(id="MIT")],
            components=[
                Component(
                    type=ComponentType.FILE,
                    name=f"holdfast/page/assets/{file}",
                    bom_ref=f"file:{file}",
                    hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
                )
                for file, sha256 in package.files.values()
            ],
        )


def _locked() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text()
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.M)}


def _behind(names: dict[str, Component]) -> set[str]:
    """Return what these need, and what that needs: as it is installed here, extras that are asked for left out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        for name in _direct(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def _direct(name: str) -> list[str]:
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    needed = [one for one in map(Requirement, texts) if one.marker is None or one.marker.evaluate({"extra": ""})]
    return sorted(canonicalize_name(one.name) for one in needed)
