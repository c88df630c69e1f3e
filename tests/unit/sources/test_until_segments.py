"""Segments stores that are read up to a time: exactly its rows, in any division (design/0021, section 8)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import segments
from holdfast.capabilities import offers
from holdfast.commit.ledger import Ledger
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.parts import in_parts, part_of
from holdfast.connectors.reading.rounds_log import UNIT
from holdfast.connectors.reading.until import has_passed, up_to
from holdfast.connectors.reading.wrapped import innermost
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.ports import Carried, EpochRecord, Exhaustible, Held, Publication, RunIdentity, Source
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.store import scratch
from holdfast.store.scratch import ScratchedStore, scratch_of
from holdfast.testing.store import SimulatedStore
from tests.contract.division import positions_of_part
from tests.everyday import examples

numbers = itertools.count()
PLACES = ("left", "right", "top")
SEGMENTS = tuple(f"place={each}" for each in PLACES)
SCHEMA = pa.schema([("id", pa.string()), ("place", pa.string()), ("t", pa.int64())])

Row = tuple[str, int | None]


class Store:
    """A segments store with files of some partitions, and rows that are in its journal still."""

    def __init__(self, path: Path, files: list[list[tuple[int, int | None]]], growing: int) -> None:
        self.path = os.fspath(path)
        self.rows: list[Row] = []
        spec = SegmentsSinkSpec(self.path, partition_by=("place",))
        sink: Any = spec.connected("out", "p", SCHEMA, is_tended=False)
        sink.open(RunIdentity("p", 1))
        for epoch, of in enumerate(files, 1):
            rows = [{"id": f"{epoch}/{n}", "place": PLACES[p], "t": t} for n, (p, t) in enumerate(of)]
            self.rows += [(f"{epoch}/{n}", t) for n, (_, t) in enumerate(of)]
            record = EpochRecord("p", epoch, 1, {"given": {"log": epoch}})
            sink.publish([Publication(record, (Carried(pa.Table.from_pylist(rows, schema=SCHEMA)),))], Held())
            if epoch <= len(files) - growing:
                places = sorted({PLACES[p] for p, _ in of})
                segments.flush(path, [f"place={each}" for each in places], pipeline="p", sink="out")
                sink.sealing.tend()

    def spec(self, **arguments: Any) -> Any:
        return hf.read.segments(self.path, timestamp="t", name="rows", **arguments).node.spec


class Run:
    """A run over parts of a source, as the engine does it: positions are logged, then rows are read."""

    def __init__(
        self, specs: list[Any], work: str, starts: Sequence[SourcePositions], until: int | None, at: int | None = None
    ) -> None:
        self.specs = specs
        self.sources: list[Source] = [from_time(up_to(spec, until), at).open("rows", work) for spec in specs]
        self.at = [dict(source.initial()) | dict(start) for source, start in zip(self.sources, starts, strict=True)]
        self.rows: list[Row] = []
        self.epochs: list[tuple[Any, SourcePositions, SourcePositions, list[Row]]] = []

    def step(self, part: int, limit: ReadLimit | None = None) -> bool:
        """Plan and read an epoch of a part; return whether there was any."""
        source, start = self.sources[part], self.at[part]
        end = dict(source.latest(start, bounded=False, limit=limit))
        if end == start:
            return False
        rows = read(source, start, end)
        low = int(start.get("@bound", -1))
        assert all(t is None or t >= low for _, t in rows), "a bound is a promise"
        self.rows += rows
        self.epochs.append((self.specs[part], start, end, rows))
        self.at[part] = end
        return True

    def finish(self) -> None:
        for part in range(len(self.sources)):
            while self.step(part):
                pass

    def has_passed(self) -> bool:
        return all(has_passed(source, at) for source, at in zip(self.sources, self.at, strict=True))


def read(source: Source, start: SourcePositions, end: SourcePositions) -> list[Row]:
    found: list[Row] = []
    for span in source.spans(start, end, parallelism=2):
        for batch in source.read(span):
            table = pa.Table.from_batches([batch])
            if "__bound__" in table.schema.names:
                table = table.filter(pa.compute.invert(table.column("__bound__").fill_null(False)))
            found += zip(table.column("id").to_pylist(), table.column("t").to_pylist(), strict=True)
    return found


def parts_of(spec: Any, count: int, cut: int) -> list[tuple[Any, SegmentSet]]:
    """Divide a source among so many readers; the last one has the rest."""
    whole = in_parts(spec, 0)
    named = [frozenset({SEGMENTS[(each + cut) % len(SEGMENTS)]}) for each in range(count - 1)]
    sets = [*map(SegmentSet, named), SegmentSet(frozenset().union(*named), is_rest=True)]
    return [(part_of(whole, of), of) for of in sets]


def below(rows: list[Row], until: int | None) -> list[Row]:
    return sorted((row for row in rows if row[1] is not None and (until is None or row[1] < until)), key=str)


row_of = st.tuples(st.integers(0, len(PLACES) - 1), st.none() | st.integers(0, 20))
files = st.lists(st.lists(row_of, min_size=1, max_size=4), min_size=1, max_size=5)
run_of = st.tuples(st.none() | st.integers(0, 22), st.integers(0, 3), st.integers(1, 2))
"""Its time; after how many epochs it is killed, 0: it ends; and among how many readers the source is divided."""


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    files,
    st.integers(0, 2),
    st.lists(run_of, max_size=4),
    st.sampled_from([{}, {"max_files_per_epoch": 1}]),
    st.integers(0, 5),
)
def test_each_run_has_exactly_the_rows_below_its_time_however_the_source_is_divided(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[tuple[int, int | None]]],
    growing: int,
    runs: list[tuple[int | None, int, int]],
    options: dict[str, Any],
    divided_from: int,
) -> None:
    """The model: what is below the time of a run that ended is there, once; no run has a row at or above its time.

    Runs are killed when a position was planned that nobody has logged; from some run on the source is divided.
    """
    directory = tmp_path_factory.getbasetemp() / f"until-segments{next(numbers)}"
    store, work = Store(directory / "out", files, growing), str(directory / "work")
    spec = store.spec(**options)
    rows: list[Row] = []
    merged: dict[str, Any] = {}
    epochs: list[tuple[Any, SourcePositions, SourcePositions, list[Row]]] = []
    for number, (until, killed_after, parts) in enumerate([*runs, (None, 0, 1)]):
        is_divided = number >= divided_from
        pairs = parts_of(spec, parts + 1, number) if is_divided else [(spec, SegmentSet(is_rest=True))]
        run = Run(
            [each for each, _ in pairs], work, [positions_of_part([merged], SEGMENTS, of) for _, of in pairs], until
        )
        if killed_after:
            for epoch in range(killed_after):
                run.step(epoch % len(pairs))
            for source, at in zip(run.sources, run.at, strict=True):
                source.latest(at, bounded=False)
        else:
            run.finish()
            assert until is None or run.has_passed()
            assert set(below(store.rows, until)) <= {*rows, *run.rows}
            assert until is not None or all(has_ended(*each) for each in zip(run.sources, run.at, strict=True))
        assert all(t is None or until is None or t < until for _, t in run.rows), "no row at or above the time"
        rows += run.rows
        epochs += run.epochs
        assert len(rows) == len(set(rows)), "no row twice"
        merged = merged_of(run)
    assert sorted(rows, key=str) == sorted(store.rows, key=str)
    for each, start, end, of in epochs:
        again = each.open("rows", work)
        assert sorted(read(again, start, end), key=str) == sorted(of, key=str), "a replay gives the same rows"


play_of = st.tuples(
    st.sampled_from([None, 4, 9, 14, 100]), st.integers(0, 4), st.integers(1, 2), st.none() | st.integers(0, 9)
)
"""A run: its time; after how many epochs it is killed, 0: after it has only planned one; its readers; and to the
beginning of which epoch everything is rewound then, None: of none."""


@pytest.mark.slow
@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.lists(row_of, min_size=1, max_size=3), min_size=2, max_size=5),
    st.integers(0, 1),
    st.lists(play_of, min_size=2, max_size=6),
    st.integers(0, 7),
)
def test_after_rewinds_to_any_epoch_every_row_is_read_once_and_below_the_time(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[tuple[int, int | None]]],
    growing: int,
    plays: list[tuple[int | None, int, int, int | None]],
    divided_from: int,
) -> None:
    """What stands in the sinks are the epochs that no rewind has made void: at the end they are exactly the rows."""
    directory = tmp_path_factory.getbasetemp() / f"until-segments{next(numbers)}"
    store, work = Store(directory / "out", files, growing), str(directory / "work")
    spec = store.spec(max_files_per_epoch=1)
    at: dict[str, Any] = {}
    chain: list[tuple[dict[str, Any], list[Row]]] = []
    for number, (until, epochs, parts, back) in enumerate([*plays, (14, 99, 1, None), (None, 99, 1, None)]):
        pairs = parts_of(spec, parts + 1, number) if number >= divided_from else [(spec, SegmentSet(is_rest=True))]
        starts = [positions_of_part([at], SEGMENTS, of) for _, of in pairs]
        run = Run([each for each, _ in pairs], work, starts, until)
        for epoch in range(epochs):
            begin = merged_of(run)
            if run.step(epoch % len(pairs)):
                chain.append((begin, run.epochs[-1][3]))
        for source, planned in zip(run.sources, run.at, strict=True):
            source.latest(planned, bounded=False)
        assert all(t is None or until is None or t < until for _, t in run.rows), "no row at or above the time"
        if epochs == 99:
            assert until is None or run.has_passed()
            assert set(below(store.rows, until)) <= {row for _, rows in chain for row in rows}
        at = merged_of(run)
        if back is not None and back < len(chain):
            at, chain = chain[back][0], chain[:back]
    assert sorted((row for _, rows in chain for row in rows), key=str) == sorted(store.rows, key=str)


def merged_of(run: Run) -> dict[str, Any]:
    """Return the positions of all parts of a run."""
    merged = dict(positions_of_part(run.at, SEGMENTS, SegmentSet(is_rest=True)))
    if any("@bound" not in at for at in run.at):
        merged.pop("@bound", None)  # who has none yet promises nothing
    return merged


def has_ended(source: Source, at: SourcePositions) -> bool:
    inner = innermost(source)
    assert offers(inner, Exhaustible)
    return inner.has_ended({each: of for each, of in at.items() if each != "@bound"})


def test_after_a_rewind_runs_go_on_from_there(tmp_path: Path) -> None:
    """A round never changes: what was read after the point is read again, by whatever time (design/0021)."""
    store, work = Store(tmp_path / "out", [[(0, 5), (1, 15)], [(0, 12), (1, 3)]], 0), str(tmp_path / "work")
    first = Run([store.spec()], work, [{}], 10)
    first.finish()
    point = first.at
    assert sorted(first.rows) == [("1/0", 5), ("2/1", 3)]
    for until in (13, None, 14, None):
        again = Run([store.spec()], work, point, until)
        again.finish()
        assert sorted([*first.rows, *again.rows]) == below(store.rows, until)
    begun = Run([store.spec()], work, [{"files": 0}], None)
    begun.finish()
    assert sorted(begun.rows) == sorted(store.rows), "all of it is void, also what the first run has read"


def test_a_rewind_to_before_a_round_begins_does_not_go_on_in_it(tmp_path: Path) -> None:
    """The second round begins where the first one ended; from the beginning on neither is its time kept by the first
    one, nor is a position below its own beginning one of it.
    """
    several: list[list[tuple[int, int | None]]] = [
        [(0, 5), (0, 30), (0, 50)],
        [(0, 6), (0, 60)],
        [(0, 7), (0, 70)],
        [(0, 8), (0, 80)],
    ]
    store, work = Store(tmp_path / "out", several, 0), str(tmp_path / "work")
    spec = store.spec(max_files_per_epoch=1)
    first = Run([spec], work, [{}], 35)
    first.finish()
    Run([spec], work, first.at, 10).sources[0].latest(first.at[0], bounded=False)  # is killed with its round logged
    again = Run([spec], work, [{}], 10)
    again.step(0)
    assert again.rows == [("1/0", 5)], "one file, and no row at or above the time"
    rest = Run([spec], work, again.at, None)
    rest.finish()
    assert sorted([*again.rows, *rest.rows]) == sorted(store.rows)


def test_a_rewind_reads_what_was_owed_then_also_where_nothing_is_owed_any_more(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5), (0, 15), (0, 25)]], 0), str(tmp_path / "work")
    first = Run([store.spec()], work, [{}], 10)
    first.finish()
    at = first.at
    for until in (100, 50):
        run = Run([store.spec()], work, at, until)
        run.finish()
        at = run.at
    again = Run([store.spec()], work, first.at, 50)
    again.finish()
    assert again.has_passed()
    assert sorted([*first.rows, *again.rows]) == sorted(store.rows)


def test_a_run_up_to_a_time_goes_on_divided(tmp_path: Path) -> None:
    """It was killed when its end was logged, as one of the whole."""
    store, work = Store(tmp_path / "out", [[(0, 5), (1, 15)], [(1, 7)]], 0), str(tmp_path / "work")
    Run([store.spec()], work, [{}], 10).sources[0].latest({"files": 0}, bounded=False)
    pairs = parts_of(store.spec(), 2, 0)
    run = Run([each for each, _ in pairs], work, [{}, {}], 10)
    run.finish()
    assert run.has_passed()
    assert sorted(run.rows) == [("1/0", 5), ("2/0", 7)]


def test_a_position_of_a_round_says_when_its_log_is_lost(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5), (0, 15)]], 0), str(tmp_path / "work")
    run = Run([store.spec()], work, [{}], 10)
    run.finish()
    at = {each: of for each, of in run.at[0].items() if each != "@bound"}
    assert all(int(of) > UNIT for of in at.values())
    spec = store.spec().given.given
    assert spec.obstacle("rows", work, at) == ""
    assert spec.reached("rows", work) == at
    os.rename(tmp_path / "work" / "until", tmp_path / "aside")
    assert "has no round 1" in spec.obstacle("rows", work, at)


def test_a_log_that_was_restored_without_its_empty_directory_goes_on(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5), (0, 15)]], 0), str(tmp_path / "work")
    run = Run([store.spec()], work, [{}], 10)
    run.finish()
    os.rmdir(tmp_path / "work" / "until" / "aside")
    rest = Run([store.spec()], work, run.at, None)
    rest.finish()
    assert rest.rows == [("1/1", 15)]


def test_a_log_in_an_object_store_is_there_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks know nothing of this source, so its log is kept as its list of files is."""
    objects = SimulatedStore()
    monkeypatch.setattr(scratch, "objects_of", lambda address: objects)
    address = "s3://bucket/trips"
    first, other = (ScratchedStore(objects, scratch_of(address, str(tmp_path / name))) for name in "ab")
    first.prepare()
    store = Store(tmp_path / "out", [[(0, 5), (0, 6)]], 0)
    run = Run([store.spec()], os.path.join(first.directory, "sources", "rows"), [{}], 10)
    run.finish()
    ledger = Ledger(first, "trips")
    ledger.take_generation(0, 0)
    ledger.fence()
    other.prepare()
    there = os.path.join(other.directory, "sources", "rows")
    at = {each: of for each, of in run.at[0].items() if each != "@bound"}
    assert store.spec().given.given.obstacle("rows", there, at) == ""
    again = Run([store.spec()], there, run.at, 10)
    again.finish()
    assert (again.rows, again.has_passed()) == ([], True)
    later = Run([store.spec()], there, run.at, 20)
    later.finish()
    assert len(objects.keys("sources/rows/until/")) == 2, "and it goes on there"


def test_what_is_owed_is_owed_by_the_timestamp_that_it_was_left_by(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5), (0, 15)]], 0), str(tmp_path / "work")
    run = Run([store.spec()], work, [{}], 10)
    run.finish()
    spec = store.spec().given.given
    other = replace(spec, schema=spec.schema.append(pa.field("u", pa.int64())), timestamp="u").open("rows", work)
    at = {each: of for each, of in run.at[0].items() if each != "@bound"}
    with pytest.raises(InvalidPipeline, match="owes rows by the timestamp t BIGINT, and now has u BIGINT"):
        other.latest(at, bounded=False)


def test_a_file_is_not_opened_for_a_time_that_it_has_no_row_of(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5)], [(0, 15)], [(0, 7), (0, 18)]], 0), str(tmp_path / "work")
    run = Run([store.spec()], work, [{}], 10)
    run.finish()
    assert sorted(run.rows) == [("1/0", 5), ("3/0", 7)]
    source = store.spec().given.given.open("rows", work)
    of_run = {each: at for each, at in run.at[0].items() if each != "@bound"}
    assert source.rows_between({"files": 0}, of_run) == 3, "the file of 15 stays for later"
    assert source.rows_between(of_run, source.latest(of_run, bounded=False)) == 2, "of 5 nothing is owed"


def test_a_run_may_begin_at_a_time_and_end_at_another_one(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, t) for t in range(20)]], 0), str(tmp_path / "work")
    run = Run([store.spec()], work, [{}], 10, at=5)
    run.finish()
    assert [t for _, t in run.rows] == [5, 6, 7, 8, 9]
    rest = Run([store.spec()], work, run.at, None, at=5)
    rest.finish()
    assert [t for _, t in rest.rows] == list(range(10, 20))


def test_links_stay_while_rows_of_them_are_owed(tmp_path: Path) -> None:
    store, work = Store(tmp_path / "out", [[(0, 5), (0, 15)]], 0), str(tmp_path / "work")
    at: list[Any] = [{}]
    for until, is_there in ((10, True), (None, False)):
        run = Run([store.spec()], work, at, until)
        run.finish()
        at = run.at
        run.sources[0].committed(at[0])
        assert os.path.isdir(os.path.join(work, "files")) is is_there
