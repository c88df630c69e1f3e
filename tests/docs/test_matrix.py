"""The matrix's page says what was measured, has every point and sink, and its harness counts what is twice and lost."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from bench.matrix import ours, peers
from bench.matrix.lives import EXPECTED, Death, NotReached, Side, run_chain
from bench.matrix.table import COMMITTED, PAGE, published
from bench.matrix.targets import TARGETS
from holdfast import faults, write

FIGURES = json.loads(COMMITTED.read_text())
TARGETS_OF = {"files in S3": "files"}

PROGRAM = """
import os, signal, sqlite3, sys
path, ending = sys.argv[1:]
table = sqlite3.connect(path)
table.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER)")
low = {"exact": "SELECT coalesce(max(id) + 1, 0) FROM rows",
       "twice": "SELECT max(0, coalesce(max(id), 0) - 9) FROM rows",
       "lost": "SELECT coalesce(max(id) + 11, 0) FROM rows"}[ending]
first = table.execute(low).fetchone()[0]
for number in range(first, 3000):
    table.execute("INSERT INTO rows VALUES (?)", (number,))
    if str(number) == os.environ.get("DIE_AT"):
        table.commit()
        os.kill(os.getpid(), signal.SIGKILL)
table.commit()
"""


def test_the_page_has_the_rendering_of_the_committed_figures() -> None:
    page = PAGE.read_text()
    assert page == published(page, FIGURES), "run: make matrix SINKS= PEERS= PUBLISH=1"


def test_every_sink_is_in_the_matrix_or_has_its_reason() -> None:
    there = {TARGETS_OF.get(name, name) for name in TARGETS}
    assert there | set(ours.NOT_RUN) == {name for name in dir(write) if name[0] != "_"} - {"later"}
    assert not there & set(ours.NOT_RUN)
    assert set(FIGURES["ours"]) <= set(TARGETS)


def test_every_point_is_in_the_matrix_or_has_its_reason() -> None:
    assert {*ours.POINTS, *ours.COMMANDS} == set(faults.POINTS)
    assert sorted(point for chain in ours.chains(ours.POINTS) for point in chain) == sorted(ours.POINTS)
    page = PAGE.read_text()
    assert all(f"| `{point}` |" in page for point in ours.POINTS)
    assert all(f"- `{point}`: {why}." in page for point, why in ours.COMMANDS.items())
    for sink, cells in FIGURES["ours"].items():
        assert set(cells) <= set(ours.POINTS), sink
        assert not {(sink, point) for point in cells} & set(ours.NOT_REACHED)


def test_no_death_of_ours_has_cost_or_doubled_a_row() -> None:
    for sink, cells in FIGURES["ours"].items():
        for point, found in cells.items():
            assert (found["duplicates"], found["lost"], found["wrong"]) == (0, 0, 0), (sink, point)


def test_every_peer_has_a_script_that_names_its_documentation() -> None:
    for peer in peers.PEERS.values():
        assert "https://" in (Path(peers.ROOT) / "bench" / "peers" / peer.script).read_text().split('"""')[1]


@pytest.mark.parametrize(("ending", "expected"), [("exact", (0, 0)), ("twice", (10, 0)), ("lost", (0, 10))])
def test_what_is_twice_and_lost_after_each_death_is_counted(
    ending: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "out.db"

    def ids() -> list[int]:
        if not path.exists():
            return []
        with sqlite3.connect(path) as table:
            return [number for (number,) in table.execute("SELECT id FROM rows")]

    deaths = [Death("first", {"DIE_AT": "1000"}, 1000), Death("second", {"DIE_AT": "2000"}, 1900)]
    side = Side([sys.executable, "-c", PROGRAM, str(path), ending], {}, deaths)
    found = run_chain(side, ids, tmp_path / "log")
    twice, lost = expected
    counted = [(found[point]["duplicates"], found[point]["lost"]) for point in ("first", "second")]
    assert counted == [(twice, lost), (twice, 2 * lost)], "what is lost once stays lost"
    assert len(set(ids())) == len(EXPECTED) - 2 * lost


def test_a_life_that_does_not_come_to_its_point_is_no_cell(tmp_path: Path) -> None:
    side = Side([sys.executable, "-c", ""], {}, [Death("nowhere", {})])
    with pytest.raises(NotReached, match="nowhere was not reached: exit code 0"):
        run_chain(side, list, tmp_path / "log")


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_each_target_has_a_place_without_rows(name: str, tmp_path: Path) -> None:
    with TARGETS[name]() as opener:
        assert list(opener(tmp_path).ids()) == []
