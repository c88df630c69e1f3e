"""What is published: where it leads, which extras there are, and what an extra that is missing says (design/0050)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import extras
from tests.arch.trees import MODULES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
OF_DEVELOPERS = {"dev", "demo"}


def test_the_project_says_where_it_is():
    assert {"Documentation", "Source", "Issues", "Changelog"} <= set(PROJECT["urls"])
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())


def test_every_extra_that_a_text_names_exists():
    named = {extra for path in MODULES for extra in re.findall(r"holdfast\[([a-z0-9-]+)\]", path.read_text())}
    assert len(named) > 10
    assert named <= set(OPTIONAL)


@pytest.mark.slow
def test_what_lacks_an_extra_says_the_command_that_installs_it():
    program = (
        "import json, sys\n"
        "from tests import extras\n"
        "sys.modules.update(dict.fromkeys(extras.BLOCKED))  # as if they were not installed\n"
        "sys.stdout.write(json.dumps(extras.answers()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    silent = [(extra, text) for extra, texts in said.items() for text in texts if extras.command(extra) not in text]
    assert silent == []
    assert set(OPTIONAL) - OF_DEVELOPERS - {"avro"} == set(said)
