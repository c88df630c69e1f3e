"""The pages on the command line and on operations keep up with the code."""

from pathlib import Path
from typing import Any

import pytest
import typer.main

from holdfast.cli.app import app
from holdfast.cli.failures import exit_code
from holdfast.errors import KINDS

DOCS = Path(__file__).parents[3] / "docs"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_documented(command):
    text = (DOCS / "cli.md").read_text()
    assert f"\n## {command}\n" in text
    section = text.split(f"\n## {command}\n")[1].split("\n## ")[0] + text.split("```")[1]
    every = [COMMANDS[command], *getattr(COMMANDS[command], "commands", {}).values()]
    options = [name for one in every for option in one.params for name in option.opts if name.startswith("--")]
    assert [name for name in options if name not in section] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_error_has_a_section_and_its_exit_code(kind):
    text = (DOCS / "operations.md").read_text()
    assert f"\n## It says {kind}\n" in text
    assert f"| [{kind}](#it-says-{kind.lower()}) | {exit_code(KINDS[kind]('it'))} |" in text


@pytest.mark.parametrize("kind", ["InDoubt", "Fenced", "Diverged", "Corrupt", "Unavailable"])
def test_each_serious_error_says_what_it_means_what_to_look_at_what_to_type_and_what_never_to_do(kind):
    section = (DOCS / "operations.md").read_text().split(f"\n## It says {kind}\n")[1].split("\n## ")[0]
    for part in ("What it means", "What to look at", "What to type", "What never to do"):
        assert f"**{part}.**" in section
