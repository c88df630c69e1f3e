"""Every command and option says what it does, in a sentence of plain English; and shells complete them."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import typer.main

from holdfast.cli.app import app
from holdfast.config import known_variables
from tests.everyday import everyday

ROOT = typer.main.get_command(app)
JARGON = re.compile(
    r"(?i)\b(?:zombie|watermark|offsets?|batch|savepoint|heal|slave|term|PREPARE|upsert|pts|etc|please|simply|just|"
    r"repeatable|i\.e|e\.g)\b"
)
"""Words of Spark, of other systems and of nobody: none of them helps who asks for help."""


def commands(command=ROOT, path="holdfast"):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


EVERY = dict(commands())
TEXTS = {path: command.help for path, command in EVERY.items()} | {
    f"{path} {parameter.opts[0]}": parameter.help for path, command in EVERY.items() for parameter in command.params
}


def test_there_are_commands_and_options_to_look_at():
    assert len(EVERY) > 20
    assert len(TEXTS) > 100


@pytest.mark.parametrize("what", TEXTS)
def test_each_command_and_option_is_explained_by_sentences(what):
    text = TEXTS[what]
    assert text, "it has no help"
    assert text[0].isupper(), text
    assert text.endswith("."), text
    assert JARGON.search(text) is None, text
    assert set(re.findall(r"HOLDFAST_\w+", text)) <= set(known_variables())


def completed(shell, line, *, cwd):
    """Return what a shell is offered for the last word of a line, by the script that --show-completion gives."""
    words = line.split(" ")
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **variables, "_HOLDFAST_COMPLETE": f"complete_{shell}"}
    command = [sys.executable, "-m", "holdfast"]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120).stdout


def script_of(shell, cwd):
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "holdfast", "--show-completion", shell]
    answer = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize("shell", everyday(["bash", "zsh", "fish"], ["bash"]))
def test_a_shell_gets_a_script_and_is_offered_commands(shell, tmp_path):
    assert f"_HOLDFAST_COMPLETE=complete_{shell}" in script_of(shell, tmp_path)
    assert re.search(r"\binspect\b", completed(shell, "holdfast ins", cwd=tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_a_subcommand_by_the_script(tmp_path):
    script = script_of("bash", tmp_path)
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    asked = 'COMP_WORDS=(holdfast checkpoint cre); COMP_CWORD=2; _holdfast_completion holdfast; echo "${COMPREPLY[@]}"'
    answer = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.stdout.split() == ["create"], answer.stderr
