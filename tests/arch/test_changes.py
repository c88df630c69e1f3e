"""Release notes: each file in ``changes/`` has a type, is short, and what it links exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import anchors, links

ROOT = Path(__file__).resolve().parents[2]
CHANGES = ROOT / "changes"
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = [kind["directory"] for kind in RULES["type"]]
LINES_MAX, CHARACTERS_MAX = 3, 200


def faults(path: Path) -> list[str]:
    """Return what is wrong with a fragment."""
    lines = path.read_text().rstrip("\n").splitlines()
    found = []
    if not re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(TYPES)})\.md", path.name):
        found.append(f"the name is +words-of-the-change.<{'|'.join(TYPES)}>.md")
    if not 1 <= len(lines) <= LINES_MAX or any(not line.strip() for line in lines):
        found.append(f"has one to {LINES_MAX} lines, none of them empty")
    if any(len(line) > CHARACTERS_MAX for line in lines):
        found.append(f"a line has at most {CHARACTERS_MAX} characters")
    if any(re.match(r"[#*-]", line) for line in lines):
        found.append("has no heading and no bullet: towncrier makes them")
    for link in links(path):
        target, _, heading = link.partition("#")
        page = ROOT / target
        if not page.exists() or (heading and heading not in anchors(page)):
            found.append(f"links {link}, which is not there (paths begin at the root)")
    return found


def test_a_fragment_has_a_known_type_and_at_most_three_lines() -> None:
    found = {path.name: faults(path) for path in CHANGES.iterdir() if path.name not in RULES["ignore"]}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("+headers.fixed.md", "A header named twice is [kept](docs/kafka.md).\n", 0),
        ("+headers.added.md", "one\ntwo\nthree\n", 0),
        ("+headers.added.md", "one\ntwo\nthree\nfour\n", 1),
        ("+headers.added.md", "one\n\nthree\n", 1),
        ("+headers.added.md", "", 1),
        ("+headers.added.md", "x" * 201, 1),
        ("+headers.added.md", "- a bullet", 1),
        ("+headers.mended.md", "one", 1),
        ("headers.fixed.md", "one", 1),
        ("+headers.fixed", "one", 1),
        ("+headers.fixed.md", "[kept](../docs/kafka.md#no-such-heading)", 1),
        ("+headers.fixed.md", "[kept](docs/kafka.md#no-such-heading)", 1),
    ],
)
def test_what_is_no_fragment_is_found(tmp_path: Path, name: str, text: str, count: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert len(faults(path)) == count


def test_the_rules_name_every_type_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z]+)` \|", (CHANGES / "README.md").read_text(), re.MULTILINE)
    assert named == TYPES


@pytest.mark.slow
def test_a_release_puts_the_fragments_above_the_last_one(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/README.md").write_text("the rules")
    (tmp_path / "changes/+headers.fixed.md").write_text("A header named twice is kept.\n")
    (tmp_path / "changes/+mysql.added.md").write_text("There is `write.mysql`:\na sink.\n")
    command = ["-m", "towncrier", "build", "--keep", "--version", "0.2.0", "--date", "2030-01-01"]
    run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    before, _, last = (ROOT / "CHANGELOG.md").read_text().partition(RULES["start_string"])
    notes = """
## 0.2.0 (2030-01-01)

### Added

- There is `write.mysql`:
  a sink.

### Fixed

- A header named twice is kept.
"""
    now = (tmp_path / "CHANGELOG.md").read_text()
    assert now.startswith(before + RULES["start_string"] + notes)
    assert now.endswith(last)
