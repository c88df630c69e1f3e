"""What the hooks of a clone do: the linters of ``make lint``, and the subject of a commit's message."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tools.commit_subject import CHARACTERS_MAX, faults, main

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {
    hook["id"]: hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
}


@pytest.mark.parametrize(
    "message",
    [
        "Add a hook",
        "Add a hook\n\nThe body is as long as it must be, and may end with a dot.\n",
        "Pass headers through",
        "Bring the archive once",
        "Process needs no class",
        "Merge branch 'sinks' into main",
        'Revert "Add a hook"',
        "fixup! added a hook.",
        "\n# comments of git\nAdd a hook\n# more of them\n",
        "Add a hook\n# ------------------------ >8 ------------------------\ndiff --git a/x b/x\n",
        "A" + "d" * (CHARACTERS_MAX - 1),
        "",
    ],
)
def test_a_subject_that_says_what_the_commit_does_is_taken(message: str) -> None:
    assert faults(message) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Add a hook.", "dot"),
        ("Add a hook.  ", "dot"),
        ("Add a hook\nthat goes on", "one line"),
        ("A" + "d" * CHARACTERS_MAX, f"{CHARACTERS_MAX + 1} characters"),
        ("add a hook", "small letter"),
        ("hooks: Add one", "prefix"),
        ("Hooks: one more", "prefix"),
        ("Added a hook", "imperative"),
        ("Adds a hook", "imperative"),
        ("Adding a hook", "imperative"),
        ("The hook is there", "imperative"),
        ("# a comment\nThe hook is there", "imperative"),
    ],
)
def test_a_subject_of_another_form_is_refused_with_the_reason(message: str, fault: str) -> None:
    (found,) = faults(message)
    assert fault in found


def test_the_program_says_what_is_wrong_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "message"
    message.write_text("Added a hook.\n")
    assert main([str(message)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    message.write_text("Add a hook\n")
    assert main([str(message)]) == 0


def test_every_linter_of_make_lint_is_a_hook_of_the_same_environment() -> None:
    recipe = re.search(r"^lint: setup\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    wanted = [line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in recipe[1].splitlines()]
    entries = [hook["entry"].removesuffix(" --force-exclude") for hook in HOOKS.values()]
    assert [*wanted, ".venv/bin/python -m tools.commit_subject"] == entries


def test_nothing_is_brought_for_a_hook() -> None:
    assert {hook["language"] for hook in HOOKS.values()} == {"system"}
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in HOOKS.values()}
    assert all(Path(sys.executable).with_name(program).exists() for program in programs)


def test_the_subject_is_checked_when_a_message_is_written_and_all_else_before() -> None:
    assert [name for name, hook in HOOKS.items() if hook.get("stages") == ["commit-msg"]] == ["commit-subject"]
