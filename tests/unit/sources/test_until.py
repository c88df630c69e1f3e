"""Runs that end at a time: every row below it has taken effect, none at or above it, and no row is lost (0021)."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.files.source import index
from holdfast.connectors.rate import RateSpec
from holdfast.connectors.reading.identified import IdentifiedSpec
from holdfast.connectors.reading.until import has_passed, up_to
from holdfast.errors import Corrupt, Diverged, InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.testing.clock import SimulatedClock
from tests.contract.source_contract import drain, rows_between
from tests.everyday import examples
from tests.unit.byte_streams import Writing
from tests.unit.sources.until_plays import Driver, Killed, Row, Writes, below

numbers = itertools.count()
WAYS = ("json", "csv", "parquet", "no statistics", "feed")

Arrival = tuple[str, list[int | None]]
"""A source, and the times of the rows of a file that arrives."""


def write(path: Path, rows: list[Row], way: str, group: int = 2) -> None:
    part = path.with_name(f".{path.name}")
    if way == "json":
        part.write_text("".join(json.dumps({"id": name, "t": t}) + "\n" for name, t in rows))
    elif way == "csv":
        part.write_text("id,t\n" + "".join(f"{name},{'' if t is None else t}\n" for name, t in rows))
    else:
        names, times = [name for name, _ in rows], [t for _, t in rows]
        table = pa.table({"id": pa.array(names, pa.string()), "t": pa.array(times, pa.int64())})
        pq.write_table(table, part, row_group_size=group, write_statistics=way == "parquet")
    part.rename(path)


class Arrivals:
    """Files that arrive one after the other, of several sources."""

    def __init__(self, directory: Path, arrivals: list[Arrival], way: str, **options: Any) -> None:
        self.directory, self.way = directory, way
        self.coming = list(arrivals)
        self.rows: list[Row] = []
        names = sorted({name for name, _ in arrivals} | {"a"})
        for name in names:
            (directory / name).mkdir(parents=True)
        self.feeds: dict[str, hf.read.CallbackFeed] = {}
        if way == "feed":
            options.pop("max_files_per_epoch", None)
            schema = "id STRING, t BIGINT"
            self.feeds = {name: hf.read.CallbackFeed(directory / name, schema=schema) for name in names}
            self.streams = {
                name: hf.read.callback(feed, timestamp="t", name=name, **options) for name, feed in self.feeds.items()
            }
            return
        self.streams = {
            name: hf.read.files(
                str(directory / name),
                format="parquet" if way == "no statistics" else way,  # type: ignore[arg-type]
                schema="id STRING, t BIGINT",
                timestamp="t",
                name=name,
                **options,
            )
            for name in names
        }

    def arrive(self) -> bool:
        if not self.coming:
            return False
        name, times = self.coming.pop(0)
        number = 1000 - 10 * len(self.coming)
        rows: list[Row] = [(f"{name}{number + n}", t) for n, t in enumerate(times)]
        if name in self.feeds:
            self.feeds[name].push([{"id": name, "t": t} for name, t in rows])
            self.rows += rows
            return True
        write(self.directory / name / f"{number:04}", rows, self.way)
        self.rows += rows
        return True


times = st.lists(st.none() | st.integers(0, 20), max_size=5)
arrivals = st.lists(st.tuples(st.sampled_from(["a", "b"]), times), max_size=6)
limits = st.sampled_from([{}, {"max_rows_per_epoch": 3}, {"max_files_per_epoch": 1}])


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    arrivals,
    st.sampled_from(WAYS),
    st.lists(st.tuples(st.integers(0, 22), st.booleans()), max_size=3),
    st.none() | st.integers(0, 20),
    limits,
)
def test_whatever_arrives_each_run_ends_exactly_at_its_time_and_the_last_one_has_the_rest(
    tmp_path_factory: pytest.TempPathFactory,
    arrivals: list[Arrival],
    way: str,
    runs: list[tuple[int, bool]],
    at: int | None,
    limits: dict[str, Any],
) -> None:
    """The model: of all that has arrived, what is below the highest time of a run so far is there, once."""
    directory = tmp_path_factory.getbasetemp() / f"until{next(numbers)}"
    world = Arrivals(directory / "in", arrivals, way, **limits)
    driver = Driver(world.streams, str(directory / "work"), world.arrive)
    highest = 0
    for until, is_bounded in sorted(runs):
        highest = max(until, highest)
        has_ended = driver.run(until, at, is_bounded=is_bounded)
        assert timed(driver.rows) == timed(below(world.rows, highest, at))
        if has_ended:
            came = arrivals[: len(arrivals) - len(world.coming)]
            reached = dict.fromkeys(world.streams, -1)
            for name, several in came:
                reached[name] = max([reached[name], *(t for t in several if t is not None)])
            assert all(top >= until for top in reached.values()), "a row below the time may still come"
    while driver.run(None, at) or world.arrive():
        pass
    assert sorted(driver.rows, key=str) == below(world.rows, None, at)


def timed(rows: list[Row]) -> list[Row]:
    """Return the rows with a timestamp: one without comes with the first rows that are read of its block."""
    return sorted(row for row in rows if row[1] is not None)


PACES: list[Arrival] = [
    ("a", [1, 5, None]),
    ("a", [12, 3]),  # the fast one is past the time, and has a row below it
    ("b", [2]),
    ("a", [13, 14]),
    ("b", [4, 9, 11]),  # now both are
    ("b", [30]),
    ("a", [7, 31]),  # late: below the time, behind its end
]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["json", "parquet", "feed"])
def test_a_run_ends_when_the_slower_source_has_passed_the_time(tmp_path: Path, way: str) -> None:
    world = Arrivals(tmp_path / "in", PACES, way)
    driver = Driver(world.streams, str(tmp_path / "work"), world.arrive)
    assert driver.run(10)
    assert len(world.coming) == 2, "by itself, and not before"
    assert sorted(driver.rows, key=str) == below(world.rows, 10)
    assert driver.run(10), "the same command again has nothing to do"
    assert driver.run(13)
    assert sorted(driver.rows, key=str) == below(world.rows, 13)
    assert not driver.run()
    assert sorted(driver.rows, key=str) == sorted(world.rows, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("way", ["json", "parquet", "feed"])
def test_a_death_at_any_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, is_after: bool
) -> None:
    """Two sources of unlike pace; the driver dies at write n, and again at the same write of its next life."""
    for kill_at in itertools.count(1):
        world = Arrivals(tmp_path / f"in{kill_at}", PACES, way, max_rows_per_epoch=3)
        writes = Writes(is_after=is_after)
        driver = Driver(world.streams, str(tmp_path / f"work{kill_at}"), world.arrive, writes)
        deaths = 0
        with monkeypatch.context() as patch:
            writes.watch(patch)
            for until in (10, 13, None):
                for kill in (kill_at, kill_at, None):
                    writes.count, writes.kill_at = 0, kill
                    try:
                        driver.run(until)
                        break
                    except Killed:
                        deaths += 1
                assert timed(driver.rows) == timed(below(world.rows, until)), (kill_at, until)
        assert sorted(driver.rows, key=str) == sorted(world.rows, key=str)
        if not deaths:
            assert kill_at > 10
            break


def test_a_rate_ends_with_the_last_row_before_the_time_and_goes_on_from_there(tmp_path: Path) -> None:
    clock = SimulatedClock(10_000_000)
    for per_second, until, wanted in ((2, 4_000_000, 8), (2, 4_000_001, 9), (3, 1_000_000, 3), (7, 1, 1), (5, 0, 0)):
        spec = RateSpec(per_second, start_us=0, clock=clock)
        work = str(tmp_path / f"{per_second}-{until}")
        source = up_to(spec, until).open("ticks", work)
        end = source.latest({"rows": 0}, bounded=False)
        assert end == {"rows": wanted}
        assert has_passed(source, end)
        assert not (wanted and has_passed(source, {"rows": wanted - 1}))
        rows = [
            row["timestamp"]
            for span in source.spans({"rows": 0}, {"rows": wanted + 1}, parallelism=1)
            for batch in source.read(span)
            for row in batch.to_pylist()
        ]
        micros = [(at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for at in rows]
        assert [at < until for at in micros] == [True] * wanted + [False]
        assert source.latest(end, bounded=True) == end
        assert spec.open("ticks", work).latest(end, bounded=False) == {"rows": 10 * per_second}
    far = up_to(RateSpec(2, start_us=0, clock=clock), 60_000_000).open("ticks", str(tmp_path / "far"))
    assert not has_passed(far, far.latest({"rows": 0}, bounded=False)), "these rows are still to come"


@pytest.mark.slow
def test_streams_of_messages_end_before_their_first_message_at_or_after_the_time(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 60})
    for number in range(10):
        writing.publish((number, "front", True, b"f" * 9), (3 * number, "back", True, b"b" * 9))
    spec = hf.read.byte_stream(writing.path, timestamps="bigint", name="frames").node.source_spec

    def run(start: Any, until: int | None) -> tuple[Any, list[Any], bool]:
        source = up_to(spec, until).open("frames", str(tmp_path / "work"))
        start = start or source.initial()
        end = source.latest(start, bounded=False)
        rows = [
            (row["stream"], row["timestamp"])
            for span in source.spans(start, end, parallelism=2)
            for batch in source.read(span)
            for row in batch.to_pylist()
        ]
        return end, sorted(rows), has_passed(source, end)

    want = sorted([("front", n) for n in range(10)] + [("back", 3 * n) for n in range(10)])
    end, rows, is_done = run(None, 7)
    assert (rows, is_done) == ([row for row in want if row[1] < 7], True)
    end, rows, is_done = run(end, 20)
    assert rows == [row for row in want if 7 <= row[1] < 20]
    assert not is_done, "the front may still have messages below the time"
    writing.publish((20, "front", True, b""))
    end, rows, is_done = run(end, 20)
    assert (rows, is_done) == ([], True)
    end, rows, is_done = run(end, None)
    assert rows == [*[row for row in want if row[1] >= 20], ("front", 20)]
    assert run(end, 5)[1:] == ([], True), "what has passed cannot be taken back"


def test_bound_rows_alone_say_what_a_source_that_has_them_has_reached(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    stream = hf.read.files(
        str(tmp_path / "in"), schema="id STRING, t BIGINT, is_bound BOOLEAN", timestamp="t", bounds="is_bound", name="a"
    )
    files: list[list[dict[str, Any]]] = [
        [{"id": "a", "t": 3}, {"id": "b", "t": 50}],  # nothing is promised by it
        [{"id": "a", "t": 10, "is_bound": True}],  # only of one key
        [{"id": "c", "t": 9}, {"t": 9, "is_bound": True}],
        [{"t": 10, "is_bound": True}, {"id": "late", "t": 4}],
    ]
    coming = list(enumerate(files))

    def arrive() -> bool:
        if not coming:
            return False
        number, rows = coming.pop(0)
        path = tmp_path / "in" / f".{number}"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.rename(tmp_path / "in" / str(number))
        return True

    driver = Driver({"a": stream}, str(tmp_path / "work"), arrive)
    assert driver.run(10)
    assert not coming
    assert sorted(driver.rows) == [("a", 3), ("c", 9), ("late", 4)]
    assert not driver.run()
    assert sorted(driver.rows) == [("a", 3), ("b", 50), ("c", 9), ("late", 4)]


def test_a_limit_of_the_run_holds_for_what_is_owed_and_for_what_is_new(tmp_path: Path) -> None:
    """design/0014, section 5."""
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id BIGINT, t BIGINT")
    spec = hf.read.callback(feed, timestamp="t", name="fed").node.source_spec
    for number in range(4):
        feed.push([{"id": number, "t": 1}, {"id": 10 + number, "t": 50}])
    end: Any = None
    found: list[tuple[int, list[int]]] = []
    for until in (10, 100):
        source = up_to(spec, until).open("fed", str(tmp_path / "work"))
        positions = drain(source, end or source.initial(), limit=ReadLimit(1, 1))
        ids = [row["id"] for pair in itertools.pairwise(positions) for row in rows_between(source, *pair)]
        found.append((len(positions) - 1, ids))
        end = positions[-1]
    assert found == [(4, [0, 1, 2, 3]), (4, [10, 11, 12, 13])]


def test_a_bounded_source_ends_only_when_nothing_of_it_is_owed(tmp_path: Path) -> None:
    world = Arrivals(tmp_path / "in", [("a", [1, 12]), ("a", [30])], "parquet", bounded=True)
    while world.arrive():
        pass
    spec = world.streams["a"].node.source_spec
    short: Any = up_to(spec, 10).open("a", str(tmp_path / "work"))
    end = short.latest(short.initial(), bounded=False)
    assert has_passed(short, end)
    assert not short.has_ended(end)
    rest: Any = spec.open("a", str(tmp_path / "work"))
    assert rest.latest(end, bounded=False) == {"log": 3}
    assert rest.has_ended({"log": 3})
    whole = up_to(spec, 100).open("a", str(tmp_path / "whole"))
    end = whole.latest(whole.initial(), bounded=False)
    assert whole.has_ended(end)  # type: ignore[attr-defined]
    assert has_passed(whole, end), "nothing more comes, below the time or above it"


def test_a_file_that_is_owed_must_stay_as_it_was(tmp_path: Path) -> None:
    world = Arrivals(tmp_path / "in", [("a", [1, 12])], "json")
    world.arrive()
    driver = Driver(world.streams, str(tmp_path / "work"), world.arrive)
    driver.run(10)
    (file,) = (tmp_path / "in" / "a").iterdir()
    file.unlink()
    with pytest.raises(Corrupt, match=r"is gone|is not there"):
        driver.run()


def test_rejected_rows_and_those_without_a_time_come_with_the_first_reading(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0").write_text('{"id": "a", "t": 1}\nnonsense\n{"id": "b"}\n{"id": "c", "t": 12}\n')
    stream = hf.read.files(
        str(tmp_path / "in"), schema="id STRING, t BIGINT", timestamp="t", on_bad_row="reject", name="a"
    )
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    driver.run(10)
    assert sorted(map(str, driver.rows)) == ["('a', 1)", "('b', None)", "(None, None)"]
    driver.run()
    assert driver.rows[-1:] == [("c", 12)]
    assert len(driver.rows) == 4


def test_lists_of_a_program_are_read_up_to_a_time_and_the_rest_of_each_later(tmp_path: Path) -> None:
    lists = [[{"id": "a", "t": 1}, {"id": "b", "t": 15}], [{"id": "c", "t": 30}], [{"id": "d", "t": 2}]]
    stream = hf.read.rows(lists, schema="id STRING, t BIGINT", timestamp="t", name="a", bounded=True)
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    assert driver.run(10), "a source that has no more lists has passed any time"
    assert driver.rows == [("a", 1), ("d", 2)]
    source = stream.node.source_spec.open("a", str(tmp_path / "work" / "a"))
    assert not source.has_ended(driver.offsets[-1]["a"]), "it owes rows"  # type: ignore[attr-defined]
    assert driver.run(20)
    assert driver.rows[2:] == [("b", 15)]
    assert not driver.run()
    assert driver.rows[3:] == [("c", 30)]
    source = stream.node.source_spec.open("a", str(tmp_path / "work" / "a"))
    assert source.has_ended(driver.offsets[-1]["a"])  # type: ignore[attr-defined]
    assert not driver.run()


def test_a_log_that_was_restored_without_its_empty_directory_goes_on(tmp_path: Path) -> None:
    stream = hf.read.rows([[{"id": "a", "t": 1}, {"id": "b", "t": 15}]], schema="id STRING, t BIGINT", timestamp="t")
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    driver.run(10)
    (tmp_path / "work" / "a" / "until" / "aside").rmdir()
    driver.run(20)
    assert driver.rows == [("a", 1), ("b", 15)]


@pytest.mark.parametrize("kind", ["rows", "feed"])
def test_a_run_of_which_no_row_is_below_its_time_ends_too(tmp_path: Path, kind: str) -> None:
    """Nothing is read: its position stays before the first piece that its log will have."""
    later = [{"id": "1", "t": 50}, {"id": "2", "t": 60}]
    if kind == "rows":
        stream = hf.read.rows([later], schema="id STRING, t BIGINT", timestamp="t", name="a")
    else:
        feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id STRING, t BIGINT")
        feed.push(later)
        stream = hf.read.callback(feed, timestamp="t", name="a")
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    for _ in range(2):
        assert driver.run(10)
        assert driver.rows == []
    assert driver.run(55)
    assert driver.rows == [("1", 50)]
    driver.run()
    assert driver.rows[1:] == [("2", 60)]


@pytest.mark.parametrize("kind", ["rows", "feed"])
def test_a_run_ends_too_where_another_one_has_read_all_that_is_below_its_time(tmp_path: Path, kind: str) -> None:
    """The run before had no end, so the log is begun behind entries that were read by their own positions."""
    schema = "id STRING, t BIGINT"
    entries = [[{"id": "1", "t": 1}], [{"id": "2", "t": 2}], [{"id": "3", "t": 30}], [{"id": "4", "t": 10}]]
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema=schema)

    def with_entries(first: int, last: int) -> dict[str, hf.Stream]:
        for entry in entries[first:last]:
            feed.push(entry)
        lists = hf.read.rows(entries[:last], schema=schema, timestamp="t", name="a")
        return {"a": lists if kind == "rows" else hf.read.callback(feed, timestamp="t", name="a")}

    driver = Driver(with_entries(0, 2), str(tmp_path / "work"), lambda: False)
    driver.run()
    driver.streams = with_entries(2, 4)
    for _ in range(2):
        assert driver.run(10), "every row that is left is at or above the time"
        assert driver.rows == [("1", 1), ("2", 2)]
    assert driver.run(20)
    driver.run()
    assert driver.rows == [("1", 1), ("2", 2), ("4", 10), ("3", 30)]


@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize("kind", ["rows", "feed"])
def test_a_run_ends_at_once_where_a_row_at_or_above_its_time_was_read_before(
    tmp_path: Path, kind: str, has_log: bool
) -> None:
    """It waited for the next row: the run before had no end, and nothing noted what it had read."""
    schema = "id STRING, t BIGINT"
    entries = [[{"id": "1", "t": 5}], [{"id": "2", "t": 30}], [{"id": "3", "t": 7}], [{"id": "4", "t": 9}]]
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema=schema)

    def with_entries(first: int, last: int) -> dict[str, hf.Stream]:
        for entry in entries[first:last]:
            feed.push(entry)
        lists = hf.read.rows(entries[:last], schema=schema, timestamp="t", name="a")
        return {"a": lists if kind == "rows" else hf.read.callback(feed, timestamp="t", name="a")}

    # Spark lets a source go of an epoch when the next one is planned: the last one is there still.
    driver = Driver(with_entries(0, 1), str(tmp_path / "work"), lambda: False, lets_go=False)
    if has_log:
        assert not driver.run(6), "5 is below: nothing shows that all is there"
    driver.run()
    driver.streams = with_entries(1, 3)
    driver.run()
    assert driver.run(20), "30 was read"
    assert not driver.run(40), "nothing at or above this one was"
    driver.streams = with_entries(3, 4)
    assert driver.run(20), "with what is new"
    assert [t for _, t in driver.rows] == [5, 30, 7, 9]


def test_a_row_that_a_feed_holds_no_more_does_not_end_a_run(tmp_path: Path) -> None:
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id STRING, t BIGINT")
    feed.push([{"id": "1", "t": 30}])
    feed.push([{"id": "2", "t": 5}])
    stream = hf.read.callback(feed, timestamp="t", name="a")
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    driver.run()
    assert not driver.run(20), "its push was let go of, and the last one is below: the next row decides"
    feed.push([{"id": "3", "t": 31}])
    assert driver.run(20)
    assert driver.rows == [("1", 30), ("2", 5)]


def test_a_run_has_not_passed_the_time_while_positions_from_before_the_log_are_read_again(tmp_path: Path) -> None:
    lists = [[{"id": "a", "t": 1}], [{"id": "b", "t": 2}], [{"id": "c", "t": 10}]]
    schema = "id STRING, t BIGINT"
    driver = Driver({}, str(tmp_path / "work"), lambda: False)
    driver.streams = {"a": hf.read.rows(lists[:2], schema=schema, timestamp="t", name="a")}
    driver.run()
    driver.streams = {"a": hf.read.rows(lists, schema=schema, timestamp="t", name="a")}
    assert driver.run(10)
    source = up_to(driver.streams["a"].node.source_spec, 10).open("a", str(tmp_path / "work" / "a"))
    segment = next(iter(source.initial()))
    assert [has_passed(source, {segment: at}) for at in (0, 1, 2)] == [False, False, True]


def test_a_feed_keeps_what_is_owed_and_lets_go_of_the_rest(tmp_path: Path) -> None:
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id STRING, t BIGINT")
    stream = hf.read.callback(feed, timestamp="t", name="a")
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    for n, t in enumerate((1, 3, 12, 4)):
        feed.push([{"id": str(n), "t": t}])
    driver.run(10)
    spec: Any = stream.node.source_spec
    work = str(tmp_path / "work" / "a")
    assert sorted(path.name for path in (tmp_path / "feed").glob("*.entry")) == [f"{n:012}.entry" for n in (1, 2, 3)]
    positions = driver.offsets[-1]["a"]
    assert spec.obstacle("a", work, positions) == ""
    assert spec.reached("a", work) == positions
    driver.run()
    assert [path.name for path in (tmp_path / "feed").glob("*.entry")] == [f"{3:012}.entry"]
    feed.push([{"id": "4", "t": 0}])
    driver.run()
    assert [name for name, _ in driver.rows] == ["0", "1", "3", "2", "4"]
    assert spec.reached("a", work) == driver.offsets[-1]["a"]


def test_positions_of_a_source_that_owes_come_back_from_the_sinks_or_are_refused(tmp_path: Path) -> None:
    lists = [[{"id": "a", "t": 1}, {"id": "b", "t": 15}], [{"id": "c", "t": 30}]]
    stream = hf.read.rows(lists, schema="id STRING, t BIGINT", timestamp="t", name="a")
    driver = Driver({"a": stream}, str(tmp_path / "work"), lambda: False)
    driver.run(10)
    spec: Any = stream.node.source_spec
    work = str(tmp_path / "work" / "a")
    told = spec.explanations("a", work, 0)
    assert told
    assert spec.explanations("a", work, len(told)) == []
    shutil.rmtree(work)
    assert "is wanted" in spec.obstacle("a", work, driver.offsets[-1]["a"])
    spec.restore("a", work, told)
    spec.restore("a", work, told)
    assert spec.obstacle("a", work, driver.offsets[-1]["a"]) == ""
    driver.run()
    assert sorted(driver.rows) == [("a", 1), ("b", 15), ("c", 30)]
    with pytest.raises(Diverged, match="is not the one that the sinks hold"):
        spec.restore("a", work, [replace(told[0], text="{}")])


@pytest.mark.parametrize("way", ["json", "parquet", "feed"])
def test_a_row_has_the_same_id_in_whichever_run_it_is_read(tmp_path: Path, way: str) -> None:
    """Ids are made of a row's number among all rows that are there (design/0022)."""
    world = Arrivals(tmp_path / "in", [("a", [1, 12, None, 3, 30]), ("a", [20, 5])], way)
    while world.arrive():
        pass
    spec = IdentifiedSpec(world.streams["a"].node.source_spec, "row", "t")

    def ids(directory: Path, ends: list[int | None]) -> dict[str, str]:
        (tmp_path / "in" / "a" / "reader").unlink(missing_ok=True)  # of a feed: it has one reader
        found: dict[str, str] = {}
        start = None
        for until in ends:
            source = up_to(spec, until).open("a", str(directory))
            start = start or source.initial()
            while (end := source.latest(start, bounded=False)) != start:
                for span in source.spans(start, end, parallelism=2):
                    for batch in source.read(span):
                        found |= dict(zip(batch["id"].to_pylist(), batch["row"].to_pylist(), strict=True))
                start = end
        return found

    once = ids(tmp_path / "once", [None])
    assert len(set(once.values())) == 7
    assert ids(tmp_path / "thrice", [4, 13, None]) == once


@pytest.mark.slow
@pytest.mark.parametrize("way", ["json", "parquet"])
def test_the_first_rows_do_not_wait_for_the_times_of_a_large_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    world = Arrivals(tmp_path / "in", [("a", [n, n + 10]) for n in range(9)], way)
    while world.arrive():
        pass
    monkeypatch.setattr(index, "_SPENT_MAX", 90)
    monkeypatch.setattr(index, "_FOOTER", 30)
    source = up_to(world.streams["a"].node.source_spec, 5).open("a", str(tmp_path / "work"))
    end = source.latest(source.initial(), bounded=False)
    assert 1 <= int(end["log"]) < 5
    assert not has_passed(source, end)
    driver = Driver(world.streams, str(tmp_path / "work2"), world.arrive)
    assert driver.run(5)
    assert sorted(driver.rows) == below(world.rows, 5)
    assert not driver.run()
    assert sorted(driver.rows) == sorted(world.rows)


@pytest.mark.parametrize("way", ["json", "feed"])
def test_rows_are_owed_by_the_timestamp_that_they_were_left_by(tmp_path: Path, way: str) -> None:
    world = Arrivals(tmp_path / "in", [("a", [1, 12])], way)
    world.arrive()
    driver = Driver(world.streams, str(tmp_path / "work"), world.arrive)
    driver.run(10)
    spec: Any = world.streams["a"].node.source_spec
    other = replace(spec, schema=spec.schema.append(pa.field("u", pa.int64())), timestamp="u")
    with pytest.raises(InvalidPipeline, match="source 'a' owes rows by the timestamp t BIGINT, and now has u BIGINT"):
        other.open("a", str(tmp_path / "work" / "a")).latest(driver.offsets[-1]["a"], bounded=False)
    driver.run()
    other.open("a", str(tmp_path / "work" / "a")).latest(driver.offsets[-1]["a"], bounded=False)
    assert sorted(driver.rows) == [("a1000", 1), ("a1001", 12)]
