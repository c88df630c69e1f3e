"""A row has one id in every replay: however epochs, batches, tasks, files and buckets are cut (design/0022)."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.reading.from_time import from_time
from holdfast.errors import InvalidPipeline
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, Span
from holdfast.quarantine.mask import Address, Mask, lettered, one_row
from holdfast.quarantine.refit import refitted
from holdfast.testing import bound, close, drive

pytestmark = pytest.mark.slow

SCHEMA = "n BIGINT, k STRING, at BIGINT"
ROWS = [{"n": n, "k": "abc"[n % 3], "at": n // 4} for n in range(40)]
READ = pa.schema([pa.field("n", pa.int64()), pa.field("row_id", pa.string()), pa.field(REJECT_COLUMN, REJECT_TYPE)])
SLOW = [{"k": k, "at": -1, "v": k.upper()} for k in "abc"]


def rows_source() -> Any:
    return hf.read.rows([], schema=SCHEMA, timestamp="at", name="in") | hf.row_id()


def graphs() -> dict[str, Any]:
    """Streams whose rows keep their ids, or get one of what they say."""
    rows = rows_source()
    slow = hf.read.rows([], schema="k STRING, at BIGINT, v STRING", timestamp="at", name="slow")
    windows = rows | hf.aggregate(window=hf.tumbling(3), by="k", seen=hf.count(), name="windows")
    once = rows | hf.distinct("n", 50, name="once")
    return {
        "filter and select": rows | hf.filter("n % 7 <> 0") | hf.select("n", "at", "row_id as id", "k"),
        "a part of a split": (rows | hf.split(even="n % 2 = 0", otherwise="odd")).odd,
        "distinct": once,
        "accumulate": rows | hf.accumulate(by="k", so_far=hf.count(), name="counted"),
        "over": rows | hf.over(rows=2, by="k", last_two=hf.count(), disorder=500, name="over"),
        "merge": hf.merge(rows, {"slow": slow}, by="k", name="merged"),
        "of columns": rows | hf.row_id("n", into="id"),
        "of columns, behind state": once | hf.filter("n > 3") | hf.row_id("k", "n", into="id"),
        "of a window": windows | hf.row_id("k", "window_start"),
    }


def driven(stream: Any, epochs: list[list[Any]], buckets: int) -> dict[str, str]:
    """Return the ids of a stream's rows, each once, with what the row says."""
    given = {"in": [*epochs, [close()]], "slow": [[*SLOW, close()]]}
    needed = {node.name for node in hf.Pipeline("p", stream | hf.write.memory(name="out")).sources}
    out = drive(stream, {name: given[name] for name in needed}, buckets=buckets)
    ids = stream.shape.ids
    found: dict[str, str] = {}
    for row in (row for epoch in out for row in epoch):
        value = row[ids.column]
        assert value not in found, row
        found[value] = json.dumps(row, default=str, sort_keys=True)
    return found


def cut(rows: Sequence[Any], places: Sequence[int]) -> list[list[Any]]:
    borders = [0, *sorted(place for place in set(places) if place < len(rows)), len(rows)]
    return [list(rows[begin:end]) for begin, end in itertools.pairwise(borders)]


@pytest.mark.parametrize("name", graphs())
def test_ids_do_not_depend_on_where_epochs_end_nor_on_buckets(name: str) -> None:
    stream = graphs()[name]
    whole = driven(stream, [ROWS], 1)
    assert len(whole) > 10

    @settings(max_examples=8, deadline=None)
    @given(st.lists(st.integers(1, 39), max_size=8), st.sampled_from([1, 3]))
    def try_cut(places: list[int], buckets: int) -> None:
        assert driven(stream, cut(ROWS, places), buckets) == whole

    try_cut()


def test_bounds_pass_it_by_the_columns_that_it_does_not_add() -> None:
    """A window leaves at a bound, for all keys or for one, as it does without ids."""
    rows = hf.read.rows([], schema=SCHEMA, timestamp="at", name="in")
    given = [*ROWS[:8], bound(9, {"k": "a"}), *ROWS[8:20], bound(3), *ROWS[20:]]
    epochs: dict[str, Any] = {"in": [given[:9], given[9:22], given[22:]]}

    def windows(stream: Any) -> list[list[tuple[Any, ...]]]:
        made = stream | hf.aggregate(window=hf.tumbling(3), by="k", timestamps="ascending", n=hf.count(), name="w")
        return [
            [(row["k"], row["window_start"], row["n"]) for row in epoch] for epoch in drive(made, epochs, buckets=2)
        ]

    plain = windows(rows)
    assert any(plain)
    assert windows(rows | hf.row_id("k", "n")) == plain
    of_ids = rows | hf.row_id("k", into="id") | hf.aggregate(window=hf.tumbling(3), by="id", n=hf.count(), name="w")
    by_id = [len(epoch) for epoch in drive(of_ids, epochs, buckets=2)]
    assert plain[0]
    assert by_id[0] == 0  # a bound for a key of the source is none for an id


def test_a_changed_graph_elsewhere_changes_no_id() -> None:
    rows = rows_source()
    plain = driven(rows | hf.filter("n > 3"), [ROWS], 1)
    longer = rows | hf.select("*", "k as same") | hf.filter("n > 3") | hf.select("* except (same)")
    assert driven(longer, [ROWS], 1) == plain


def test_a_given_name_is_part_of_ids_of_columns_and_a_derived_one_is_not() -> None:
    rows = rows_source()

    def ids(stream: Any) -> set[str]:
        return set(driven(stream, [ROWS], 1))

    plain = ids(rows | hf.row_id("n", into="id"))
    assert ids(rows | hf.select("n", "at") | hf.row_id("n", into="id")) == plain
    named = ids(rows | hf.row_id("n", into="id", name="other"))
    assert not named & plain


# --- files ------------------------------------------------------------------------------------------------------------


def write(directory: Path, name: str, rows: Sequence[Any], kind: Any) -> None:
    path = directory / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=3)
    elif kind == "csv":
        path.write_text("n,k,at\n" + "".join(f"{row['n']},{row['k']},{row['at']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_all(directory: Path, workspace: Path, kind: Any, arrivals: Sequence[Sequence[str]], **options: Any) -> Any:
    """Return the id of each row, where files arrive by and by in some order."""
    stream = hf.read.files(directory, format=kind, schema=SCHEMA, timestamp="at", name="in", **options) | hf.row_id()
    source = stream.node.source_spec.open("in", os.fspath(workspace))
    found = {}
    at = source.initial()
    for names in arrivals:
        for name in names:
            os.rename(directory / f"_{name}.{kind}", directory / f"{name}.{kind}")
        while (end := source.latest(at, bounded=False)) != at:
            for span in source.spans(at, end, parallelism=len(names)):
                for batch in source.read(span):
                    found.update({row["n"]: row["row_id"] for row in batch.to_pylist()})
            at = end
    assert len(set(found.values())) == len(found) == len(ROWS)
    return found


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("json", {"max_files_per_epoch": 1}),
        ("csv", {"max_files_per_epoch": 1}),
        ("parquet", {"max_files_per_epoch": 1}),
        ("parquet", {"max_rows_per_epoch": 4}),
        ("parquet", {"block_size": "100 B"}),
    ],
)
def test_ids_of_files_do_not_depend_on_when_files_are_found(tmp_path: Path, kind: str, others: dict[str, Any]) -> None:
    """A new checkpoint, another directory, other limits; of Parquet also other blocks."""
    parts = dict(zip("cab", cut(ROWS, [9, 30]), strict=True))
    found = []
    for number, (arrivals, options) in enumerate([([["c", "a", "b"]], {}), ([["b"], ["a"], ["c"]], others)]):
        directory = tmp_path / f"{number}" / "in"
        directory.mkdir(parents=True)
        for name, rows in parts.items():
            write(directory, f"_{name}", rows, kind)
        found.append(read_all(directory, tmp_path / f"log{number}", kind, arrivals, **options))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_small_files_that_are_read_together_have_the_ids_of_each_alone(tmp_path: Path, kind: Any) -> None:
    """With bad rows, empty lines, and files without any row among them."""
    lines = {
        "json": ['{"n": 1}', "", "  ", '{"n": "x"}', "nothing", '{"n": 2}'],
        "csv": ["1", "", "x", '"2', '3"', "4"],
    }
    (tmp_path / "in").mkdir()
    for number in range(40):
        some = [lines[kind][number * place % 7 % 6] for place in range(number % 9)]
        header = ["n"] if kind == "csv" and number % 11 else []
        (tmp_path / "in" / f"{number:02}").write_text("\n".join([*header, *some]) + "\n" * (number % 2))
    stream = hf.read.files(tmp_path / "in", format=kind, schema="n BIGINT", on_bad_row="reject", name="in")
    stream |= hf.row_id()
    source: Any = stream.node.source_spec.open("in", os.fspath(tmp_path / "log"))
    end = source.latest(source.initial(), bounded=False)
    (span,) = source.spans(source.initial(), end, parallelism=1)
    together = pa.Table.from_batches(source.read(span)).to_pylist()
    alone = [pa.Table.from_batches(source.read(Span((part,))), READ) for part in span.value]
    assert pa.concat_tables(alone).to_pylist() == together
    assert len({row["row_id"] for row in together}) == len(together) > 50


# --- rows that are left out, sent again, clipped ----------------------------------------------------------------------


def ids_read(source: Any, start: Any, end: Any) -> dict[int, str]:
    batches = [batch for span in source.spans(start, end, parallelism=1) for batch in source.read(span)]
    return {row["n"]: row["row_id"] for batch in batches for row in batch.to_pylist()}


def test_dead_letters_leave_the_ids_of_others_and_take_theirs_along(tmp_path: Path) -> None:
    node = (hf.read.rows([ROWS[:5], ROWS[5:9]], schema=SCHEMA, timestamp="at", name="in") | hf.row_id()).node
    source: Any = node.source_spec.open("in", os.fspath(tmp_path))
    every = ids_read(source, {"rows": 0}, {"rows": 2})
    (span,) = source.spans({"rows": 0}, {"rows": 1}, parallelism=1)
    again = (one_row(next(source.read(span)), 1),)
    masked = lettered(source, Mask(frozenset({Address("rows", 0, 1), Address("rows", 1, 0)}), again))
    found = ids_read(masked, {"rows": 0}, {"rows": 2, "letters": 1})
    assert found == {n: every[n] for n in every if n != 5}
    row = one_row(pa.RecordBatch.from_pylist([ROWS[0]]), 0)  # kept before its source had ids
    fitted = [pa.ipc.open_stream(refitted(row, node.source_spec, letter)).read_all() for letter in "aba"]
    assert fitted[0] == fitted[2] != fitted[1]
    assert fitted[0].schema == node.source_spec.schema


def test_a_start_at_a_time_and_bound_rows_leave_ids_as_they_are(tmp_path: Path) -> None:
    rows = [{**row, "b": row["n"] % 5 == 0} for row in ROWS]
    stream = hf.read.rows([rows], schema=f"{SCHEMA}, b BOOLEAN", timestamp="at", bounds="b", name="in") | hf.row_id()
    spec = stream.node.source_spec
    assert stream.columns == ("n", "k", "at", "row_id") == tuple(spec.schema.names)
    every = ids_read(spec.open("in", os.fspath(tmp_path)), {"rows": 0}, {"rows": 1})
    assert set(every) == {row["n"] for row in rows if not row["b"]}
    later = ids_read(from_time(spec, 5).open("in", os.fspath(tmp_path)), {"rows": 0}, {"rows": 1})
    assert later == {n: each for n, each in every.items() if n >= 20}


# --- what the graph knows, and refuses --------------------------------------------------------------------------------


def other_source(name: str = "other") -> Any:
    return hf.read.rows([], schema=SCHEMA, timestamp="at", name=name)


def test_the_graph_knows_which_column_identifies_rows_and_where_none_does() -> None:
    rows = rows_source()
    left, right = (rows | hf.split(left="n > 3", otherwise="right"))["left"], rows | hf.filter("n < 9")
    known = {
        rows | hf.select("k", "row_id as id"): "id",
        rows | hf.sql("select row_id as id, n from input where n > 3"): "id",
        rows | hf.clip(start=0, end=9): "row_id",
        hf.union(rows, other_source() | hf.row_id()): "row_id",
        rows | hf.select("n") | hf.row_id("n"): "row_id",
    }
    assert {stream: stream.shape.ids.column for stream in known} == known
    unknown = [
        other_source(),
        rows | hf.select("* except (row_id)"),
        rows | hf.select("*", "explode(array(n, n)) as m"),
        rows | hf.select("upper(row_id) as row_id"),
        rows | hf.sql("select row_id, m from input lateral view explode(array(n, n)) as m"),
        rows | hf.map(lambda df: df),
        rows | hf.map_batches(lambda batch: batch, "row_id STRING"),
        rows | hf.aggregate(by="row_id", window=hf.tumbling(3), seen=hf.count(), name="a"),
        hf.union(left, right),  # both can hold the same row
        hf.union(rows | hf.select("n"), other_source() | hf.select("n")),
        hf.union(*(each | hf.select("n") | hf.row_id("n") for each in (rows, other_source()))),
    ]
    assert [stream.shape.ids for stream in unknown] == [None] * len(unknown)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: rows_source() | hf.filter("n > 3") | hf.row_id(), r"without columns.*behind filter(?s:.*)row_id\(\);"),
        (lambda: rows_source() | hf.row_id(into="id"), r"has ids in 'row_id' already"),
        (lambda: other_source() | hf.row_id(into="K"), r"a column 'K' already(?s:.*)into="),
        (lambda: rows_source() | hf.row_id("n"), r"a column 'row_id' already(?s:.*)into="),
        (lambda: rows_source() | hf.row_id("m", into="id"), r"names the column 'm'"),
        (lambda: other_source() | hf.row_id(timestamp="when"), r"names the column 'when'"),
        (lambda: other_source() | hf.row_id(timestamp="k"), r"'k' is a column of type string"),
        (lambda: other_source() | hf.row_id(name="ids"), r"name='ids' has nothing to be the name of"),
        (lambda: hf.row_id("n", "n"), r"'n' is named twice"),
        (lambda: hf.row_id("n", into=""), r"into=''"),
        (lambda: hf.row_id(3), r"columns\[0\]=3"),
        (lambda: hf.row_id(timestamp=3), r"timestamp=3 is no column"),
        (lambda: rows_source() | hf.row_id("n", into="__holdfast_n"), "reserved"),
        (lambda: hf.read.spark("kafka", schema="value BINARY", name="s") | hf.row_id(), r'"partition", "offset"'),
    ],
)
def test_what_cannot_be_kept_stable_is_refused_with_the_cure(build: Any, match: str) -> None:
    with pytest.raises(InvalidPipeline, match=match):
        build()


def test_segments_have_no_positions_that_stay(tmp_path: Path) -> None:
    rows = hf.read.segments(tmp_path, schema=SCHEMA, name="s")
    with pytest.raises(InvalidPipeline, match=r"compacted(?s:.*)name columns"):
        rows | hf.row_id()


def test_a_source_with_and_without_ids_is_two_sources_of_one_name() -> None:
    plain = other_source()
    assert (plain | hf.row_id()).node is (plain | hf.row_id()).node
    both = [plain | hf.write.memory(name="a"), plain | hf.row_id() | hf.write.memory(name="b")]
    with pytest.raises(InvalidPipeline, match=r"row_id\(\).*everywhere"):
        hf.Pipeline("p", *both)


def test_a_column_that_cannot_be_hashed_is_refused_when_types_are_known() -> None:
    rows = hf.read.rows([], schema="xs ARRAY<INT>", name="in")
    with pytest.raises(InvalidPipeline, match=r"made of 'xs', of type list"):
        drive(rows | hf.row_id("xs"), {"in": [[{"xs": [1]}]]})


def test_explain_says_what_ids_are_made_of() -> None:
    rows = rows_source()
    text = hf.Pipeline("p", rows | hf.row_id("k", "n", into="id", name="pairs") | hf.write.memory(name="a")).explain()
    assert "row ids in row_id, made of the source's name, the number of its list, and of the row in it" in text
    assert "row ids in id, made of the columns k, n and the name 'pairs'" in text
