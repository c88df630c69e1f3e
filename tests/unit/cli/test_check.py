"""``holdfast check``: findings before anything runs, each with a cure (design/0031)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app

FLOW = """
import holdfast as hf
rides = hf.read.files("in", schema="city STRING, km DOUBLE", name="rides")
billed = rides | hf.select("city", price={item!r}, name="billed")
pipeline = hf.Pipeline("rides", billed | hf.write.sqlite("out.db", table="rides", name="rides_table"))
"""


def checked(item: str) -> tuple[int, list[dict[str, str]]]:
    Path("flow.py").write_text(FLOW.format(item=item))
    found = CliRunner().invoke(app, ["check", "flow.py", "--checkpoint", "ckpt", "--json"])
    return found.exit_code, json.loads(found.stdout)["findings"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "cure"),
    [("roud(km, 1)", "did you mean round?"), ("city * 2", "write try_cast(city as double), or cast it if every text")],
)
def test_a_mistake_in_an_expression_is_found_with_its_cure(item: str, cure: str) -> None:
    code, (finding,) = checked(item)
    assert (code, finding["node"]) == (2, "billed")
    assert cure in finding["do"]


@pytest.mark.slow
def test_a_path_that_is_not_there_is_found_and_nothing_is_made(tmp_path: Path) -> None:
    assert checked("round(km, 1)") == (0, [])
    (tmp_path / "in").rmdir()
    code, (finding,) = checked("round(km, 1)")
    assert (code, finding["node"]) == (2, "rides")
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix != "") == ["flow.py"]


TABLE = "CREATE TABLE rides (city TEXT, price {kind}{more})"


def made(kind: str = "DOUBLE", more: str = "") -> None:
    with closing(sqlite3.connect("out.db")) as connection:
        connection.execute(TABLE.format(kind=kind, more=more))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [("BLOB", "", "price"), ("DOUBLE", ", tip DOUBLE NOT NULL", "tip")],
    ids=["another type", "a column that stays empty"],
)
def test_a_table_into_which_the_rows_do_not_fit_is_refused_before_a_start(
    kind: str, more: str, says: str, command: str
) -> None:
    made(kind, more)
    before = Path("out.db").read_bytes()
    Path("flow.py").write_text(FLOW.format(item="round(km, 1)"))
    found = CliRunner().invoke(app, [command, "flow.py", "--checkpoint", "ckpt"])
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert Path("out.db").read_bytes() == before
    assert not Path("ckpt").exists()


@pytest.mark.slow
def test_a_table_that_fits_or_is_not_there_is_no_finding() -> None:
    assert checked("round(km, 1)") == (0, [])
    assert not Path("out.db").exists()
    made()
    assert checked("round(km, 1)") == (0, [])
