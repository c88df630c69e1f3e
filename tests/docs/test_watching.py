"""``docs/watching.md`` says what the answers of ``--json`` consist of, and they do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from tests.docs import json_schema
from tests.docs.pages import blocks

pytestmark = pytest.mark.slow

PAGE = json_schema.PAGE
PIPELINE = """
import holdfast as hf

rows = hf.read.rows([[{"k": "a"}]], schema="k STRING", name="rows")
counts = rows | hf.accumulate(by="k", n=hf.count(), name="counts")
pipeline = hf.Pipeline("ticks", counts | hf.write.sqlite("out.db", table="t", name="table"))
"""


def test_the_tables_are_those_of_the_classes() -> None:
    """After a change of a class: ``python -m tests.docs.json_schema`` writes them anew."""
    assert f"{json_schema.BEGIN}\n{json_schema.rendered()}\n{json_schema.END}" in PAGE.read_text()


def test_every_field_has_a_meaning() -> None:
    assert json_schema.untold() == []


def fields_of(command: str) -> set[str]:
    """Return the fields that the page says of a command whose answer is put together; not those inside them."""
    (row,) = re.findall(rf"^\| `{command}`[^|]* \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", re.sub(r"\((?!both)[^)]*\)|\[.*", "", row)))


@pytest.mark.parametrize(
    "command",
    ["check TARGET", "explain TARGET", "plan TARGET --checkpoint ckpt", "inspect --config", "inspect TARGET",
     "reset TARGET --checkpoint ckpt --dry-run"],
)  # fmt: skip
def test_an_answer_has_the_fields_that_the_page_says(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ticks.py").write_text(PIPELINE)
    said = CliRunner().invoke(app, [*command.replace("TARGET", "ticks.py").split(), "--json"])
    assert said.exit_code == 0, said.output
    name = command if command in ("inspect --config", "inspect TARGET") else command.split()[0]
    assert set(json.loads(said.stdout)) == fields_of(name)


def test_an_error_has_the_fields_that_the_page_says(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["checkpoint", "list", "--checkpoint", str(tmp_path / "none"), "--json"])
    table = PAGE.read_text().partition("field of `error`")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))
    assert set(json.loads(said.stdout)["error"]) == names


@pytest.mark.spark
def test_the_run_on_the_page_says_where_its_time_went(tmp_path: Path) -> None:
    (block,) = [each for each in blocks(PAGE, "python") if "run.status().time" in each.text]
    run = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, "NodeTime(name='rows'" in run.stdout) == (0, True), run.stderr
