"""What is built: all that a user needs and nothing else, of the commit alone (design/0050, section 2)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.arch.trees import MODULES
from tests.arch.trees import ROOT as PACKAGE
from tools import sbom
from tools.vendor import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = {
    "py.typed",
    "write.pyi",
    "page/assets/page.js",
    "page/assets/page.css",
    "page/assets/uPlot.LICENSE",
    "setup/templates/ci.yml.txt",
    "spark/launch/jvm_classes/LocalFiles.java",
    "spark/launch/jvm_classes/local_files.jar",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = place.iterdir()
    return made


@pytest.mark.slow
def test_the_wheel_has_all_modules_and_their_data_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = f"holdfast-{PROJECT['version']}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{information}/METADATA").decode())
        scripts = archive.read(f"{information}/entry_points.txt").decode()
    assert {f"holdfast/{path.relative_to(PACKAGE).as_posix()}" for path in MODULES} <= names
    assert {f"holdfast/{name}" for name in DATA} <= names
    assert f"{information}/licenses/LICENSE" in names
    assert {name.partition("/")[0] for name in names} == {"holdfast", information}
    assert [name for name in names if "__pycache__" in name or "/out/" in name] == []
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert {line.partition(", ")[0] for line in metadata.get_all("Project-URL")} == set(PROJECT["urls"])
    assert "holdfast = holdfast.cli:main" in scripts


def test_the_bill_of_materials_lists_what_is_asked_for_and_what_is_not_ours() -> None:
    bill = sbom.bill(1_800_000_000)
    assert bill == sbom.bill(1_800_000_000)
    told = json.loads(bill)
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    assert told["metadata"]["component"]["version"] == PROJECT["version"]
    assert told["metadata"]["timestamp"].startswith("2027-01-15T08:00:00")
    components = {each["name"]: each for each in told["components"]}
    assert components["pyspark"]["version"]
    assert components["py4j"]["purl"].startswith("pkg:pypi/py4j@"), "what it needs is there too"
    assert ">=3.2" in components["psycopg"]["properties"][0]["value"]
    assert "holdfast[postgres]" in components["psycopg"]["properties"][0]["value"]
    hashes = {file["hashes"][0]["content"] for file in components["uplot"]["components"]}
    assert hashes == {sha256 for package in PACKAGES for _, sha256 in package.files.values()}
    assert not {"pytest", "mypy"} & set(components)


@pytest.mark.nightly
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """At different times of two machines, one of which is in another zone and lets nobody else read."""
    hashes = []
    for number, (zone, mask) in enumerate([("UTC", 0o022), ("Pacific/Auckland", 0o077)]):
        place = tmp_path / str(number)
        environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(number), "SOURCE_DATE_EPOCH": "1800000000"}
        command = [sys.executable, "-m", "tools.dist", str(place)]
        subprocess.run(command, cwd=ROOT, env=environment, umask=mask, check=True, capture_output=True)
        hashes.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()})
    version = PROJECT["version"]
    names = [f"holdfast-{version}-py3-none-any.whl", f"holdfast-{version}.cdx.json", f"holdfast-{version}.tar.gz"]
    assert sorted(hashes[0]) == names
    assert hashes[0] == hashes[1]
    with tarfile.open(place / names[2]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "tools/dist.py"} <= inside
