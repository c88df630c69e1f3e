"""The page of Nexmark says what was measured, and every side has the queries that it says it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import holdfast as hf
from bench.nexmark import expected, flink_sql, published, spark_sql
from bench.nexmark.__main__ import result_of
from bench.nexmark.compared import compare
from bench.nexmark.events import SCHEMAS, Events
from bench.nexmark.files import FileTables, write_parts
from bench.nexmark.flink import read_changes
from bench.nexmark.running import QUERIES, module_of
from bench.nexmark.sides import SINKS, queries_of, to_sink

FIGURES: dict[str, Any] = json.loads(published.COMMITTED.read_text()) if published.COMMITTED.exists() else {}


def sides(ours: int, flink: int) -> dict[str, Any]:
    figures = {"events_per_core_s": 500_000, "peak_mb": 900, "runs": [{"seconds": 1.0, "cpu_s": 2.0, "peak_mb": 900}]}
    of_sides = {"holdfast": {**figures, "events_per_s": ours}, "flink": {**figures, "events_per_s": flink}}
    return {**of_sides, "events": 10_000_000, "rounds": 3, "date": "2026-12-01", "load": 2.0}


MADE_UP: dict[str, Any] = {
    "discard": {"q0": sides(4_000_000, 1_000_000), "q9": sides(1_000_000, 1_000_000)},
    "recovery": {"q9": {"seconds": 8.5, "is_right": True, "events": 2_000_000, "date": "2026-12-01", "load": 1.0}},
    "machine": {"cores": 2, "memory_gib": 24},
    "versions": {"holdfast": "0.1.0", "pyspark": "4.3.0", "python": "3.11.7"},
}


def test_the_page_has_the_rendering_of_the_committed_figures() -> None:
    page = published.PAGE.read_text()
    assert page == published.published(page, FIGURES), "run: make nexmark PUBLISH=1"


def test_every_query_is_in_the_tables_with_what_is_not_measured() -> None:
    said = published.rendered(MADE_UP)
    for query in published.QUERIES:
        assert f"\n| {query[1:]} | " in said
    assert "| 0 | 4,000 | 1,000 | not measured yet | 4.00 |  |" in said
    assert "| 9 | 1,000 | 1,000 | cannot | 1.00 |  |" in said
    assert "| geometric mean |  |  |  | **2.00** |  |" in said
    assert "| 9 | 8.5 s | right | 2,000,000 |" in said
    assert "\n10,000,000 events, medians of 3 runs.\n" in said


def test_queries_that_ran_less_often_are_named() -> None:
    by_query = {query: {**sides(2, 1), "rounds": 1 if query == "q7" else 3} for query in ("q0", "q10", "q7")}
    said = published.rendered({**MADE_UP, "discard": by_query})
    assert "\n10,000,000 events, medians of 3 runs; 10,000,000 events, one run each (queries 7).\n" in said


def test_the_result_has_the_ratios_of_each_query_and_their_geometric_mean() -> None:
    by_query = {
        query: {side: MADE_UP["discard"][query][side] for side in ("holdfast", "flink")} for query in ("q0", "q9")
    }
    result = result_of(by_query)
    assert (result["q0_vs_flink"], result["q9_vs_flink"], result["geomean_vs_flink"]) == (4.0, 1.0, 2.0)
    assert "geomean_vs_spark" not in result
    assert result["q9_holdfast_peak_mb"] == 900


def test_a_query_that_stands_in_for_another_is_no_part_of_the_mean() -> None:
    by_query = {"q0": sides(4_000_000, 1_000_000), "q13": sides(9_000_000, 1_000)}
    assert published.geomean(by_query, "flink") == 4.0
    assert "| 13 | 9,000 | 1 | not measured yet | (9000.00) |  |" in published.rendered(
        {**MADE_UP, "discard": by_query}
    )


def test_runs_are_added_to_those_of_the_same_events_and_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MEASURED", tmp_path / "nexmark.json")
    published.MEASURED.write_text(json.dumps(MADE_UP))
    figures = published.Figures()
    run = {"seconds": 1.0, "cpu_s": 2.0, "peak_mb": 900}
    assert figures.runs("discard", "q0", ["flink", "holdfast"], 10_000_000) == {"flink": [run], "holdfast": [run]}
    assert figures.runs("discard", "q0", ["flink", "holdfast"], 7) == {}
    assert figures.runs("discard", "q0", ["holdfast"], 10_000_000) == {}
    assert figures.runs("files", "q0", ["holdfast"], 10_000_000) == {}


def test_a_sink_stands_beside_others_that_discard_the_same_events() -> None:
    discarded = {"q0": sides(4_000_000, 1_000_000), "q9": {**sides(1, 2), "events": 7}}
    of_sink = {query: {"holdfast": {"events_per_s": 2_000_000}, "events": 10_000_000} for query in ("q0", "q9")}
    found = published.with_others(of_sink, discarded)
    assert published.geomean(found, "flink") == 2.0
    assert "flink" not in found["q9"]


def test_each_side_has_no_query_that_is_not_expected() -> None:
    assert list(expected.QUERIES) == published.QUERIES == list(flink_sql.QUERIES)
    assert {*QUERIES, *spark_sql.QUERIES} <= set(published.QUERIES)


@pytest.mark.parametrize("sink", SINKS)
def test_every_query_can_be_built_with_each_sink_that_takes_it(sink: str, tmp_path: Path) -> None:
    queries = queries_of(sink)
    assert (len(queries) < len(QUERIES)) == (sink == "files")
    for query in queries:
        rows = module_of(query).result(FileTables(tmp_path))
        hf.Pipeline(query, to_sink(sink, query, rows, tmp_path, "postgresql://somebody@localhost/db", "large"))


def test_changes_leave_the_rows_that_were_not_removed(tmp_path: Path) -> None:
    lines = [
        {"before": None, "after": {"a": 1, "b": "x"}, "op": "c"},
        {"before": None, "after": {"a": 2, "b": "y"}, "op": "c"},
        {"before": {"a": 1, "b": "x"}, "after": None, "op": "d"},
        {"before": None, "after": {"a": 2, "b": "y"}, "op": "c"},
    ]
    (tmp_path / "part-1").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    (tmp_path / "part-0").write_text("".join(json.dumps(line) + "\n" for line in lines[2:]))
    (tmp_path / ".part-2.inprogress").write_text("not finished")
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert read_changes(tmp_path, schema).to_pydict() == {"a": [2, 2], "b": ["y", "y"]}
    assert read_changes(tmp_path / "nothing", schema).num_rows == 0


@pytest.mark.parametrize("parts", [1, 2])
def test_flinks_files_have_the_rows_of_the_events(parts: int, tmp_path: Path) -> None:
    events = Events(rate=1000)
    write_parts(tmp_path, events, 5000, parts, 600)
    for table in SCHEMAS:
        paths = sorted((tmp_path / table).glob("*.parquet"))
        assert len(paths) == parts
        found = [pyarrow.parquet.read_table(path) for path in paths]
        assert all(each["dateTime"].to_pylist() == sorted(each["dateTime"].to_pylist()) for each in found)
        together = pa.concat_tables(found)
        assert sorted(together["extra"].to_pylist()) == sorted(events.make(table, 0, 5000)["extra"].to_pylist())


def test_what_is_missing_and_surplus_is_counted() -> None:
    with expected.database(Events(), 5000) as database:
        right = expected.expected("q2", database)
        assert right.num_rows > 1
        found = compare("q2", pa.concat_tables([right.slice(1), right.slice(1, 1)]), database)
        assert (found.rows, found.missing, found.surplus) == (right.num_rows, 1, 1)
