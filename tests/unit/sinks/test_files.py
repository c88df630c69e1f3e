"""The files sink: what readers see, what is refused before a run, and what a stale writer can do."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from holdfast import faults
from holdfast.connectors.files.sink import sink as files_sink
from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec, files
from holdfast.connectors.kit.files import rows as files_rows
from holdfast.errors import Corrupt, Diverged, Fenced, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, RunIdentity, Staged, Task
from holdfast.store.entry_log import KEPT
from tests.disks import small_disk, unprivileged

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "words"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _opened(directory: Path, generation: int = 1, *, name: str = "out", **arguments: object) -> FilesSink:
    spec = FilesSinkSpec(os.fspath(directory), **arguments)  # type: ignore[arg-type]
    sink = spec.connect(name, PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def _table(*ids: int, word: str | None = "w") -> pa.Table:
    return pa.table({"id": ids, "word": [word] * len(ids)}, schema=SCHEMA)


def _staged(sink: FilesSink, epoch: int, *tables: pa.Table, task: int = 0, generation: int = 1) -> Staged:
    writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, task, 0))
    for table in tables:
        for batch in table.to_batches():
            writer.write(batch)
    return writer.stage()


def _publication(epoch: int, *parts: Part) -> Publication:
    return Publication(EpochRecord(PIPELINE, epoch, 1, {"lines": {"log": epoch}}), parts)


def _carried(epoch: int, *ids: int) -> Publication:
    return _publication(epoch, Carried(_table(*ids)))


def _ids(directory: Path) -> list[int]:
    found = dataset.dataset(directory, format="parquet", schema=SCHEMA, partitioning="hive")
    return sorted(found.to_table()["id"].to_pylist())


def _visible(directory: Path) -> list[str]:
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(os.fspath(path) for path in paths if path.parts[0] != "_holdfast")


def _staged_files(directory: Path) -> list[Path]:
    return [path for path in (directory / "_holdfast").rglob("*.staged") if path.is_file()]


@contextmanager
def _at(point: str, act: object) -> Iterator[None]:
    """Call ``act`` the first time the block reaches the point."""

    def hook(reached: str, epoch: int) -> None:
        if reached == point:
            faults.install(None)
            act()

    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)


class _Killed(BaseException):
    pass


def _kill() -> None:
    raise _Killed


# --- what readers see -------------------------------------------------------------------------------


def _readers(directory: Path) -> list[list[int]]:
    pattern = f"{directory}/**/*.parquet"
    return [
        sorted(dataset.dataset(directory).to_table()["id"].to_pylist()),
        sorted(pq.read_table(directory)["id"].to_pylist()),
        sorted(polars.read_parquet(pattern)["id"].to_list()),
        sorted(polars.read_parquet(f"{directory}/*.parquet")["id"].to_list()),
        sorted(row[0] for row in duckdb.sql(f"SELECT id FROM read_parquet('{pattern}')").fetchall()),
        sorted(row[0] for row in duckdb.sql(f"SELECT id FROM '{directory}/*.parquet'").fetchall()),
    ]


def test_any_reader_sees_the_published_rows_and_no_others(directory: Path) -> None:
    """Staged files, orphans, the log: all there, none seen."""
    sink = _opened(directory)
    sink.publish([_publication(1, _staged(sink, 1, _table(1), task=0), _staged(sink, 1, _table(2), task=1))], Held())
    sink.publish([_carried(2, 3)], Held())
    _staged(sink, 3, _table(4))
    assert _staged_files(directory)
    assert _readers(directory) == [[1, 2, 3]] * 6


def test_file_names_sort_by_epoch_and_tell_pipelines_and_sinks_apart(directory: Path) -> None:
    ours, theirs = _opened(directory, name="ours"), _opened(directory, name="theirs")
    ours.publish([_carried(7, 1)], Held())
    theirs.publish([_carried(7, 2)], Held())
    ours.publish([_carried(10, 3)], Held())
    names = _visible(directory)
    assert [name[:24] for name in names] == ["part-000000000007-00000-"] * 2 + ["part-000000000010-00000-"]
    assert len({name.split("-")[3] for name in names}) == 2
    assert _ids(directory) == [1, 2, 3]


def test_json_lines_are_written_as_any_reader_expects(directory: Path) -> None:
    sink = _opened(directory, format="json")
    sink.publish([_publication(1, Carried(_table(1, word='say "hé"\n')), Carried(_table(2, word=None)))], Held())
    lines = [line for name in _visible(directory) for line in (directory / name).read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"id": 1, "word": 'say "hé"\n'}, {"id": 2, "word": None}]
    assert sorted(polars.read_ndjson(f"{directory}/*.json")["id"].to_list()) == [1, 2]
    assert duckdb.sql(f"SELECT count(*) FROM '{directory}/*.json'").fetchall() == [(2,)]


def test_empty_parts_write_no_file(directory: Path) -> None:
    sink = _opened(directory)
    sink.publish([_publication(1, Carried(_table()), _staged(sink, 1), _staged(sink, 1, _table()))], Held())
    assert sink.outcome(1) is Outcome.PUBLISHED
    assert _visible(directory) == []


def test_a_relative_path_is_resolved_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors have working directories of their own."""
    monkeypatch.chdir(tmp_path)
    sink = FilesSinkSpec("out").connect("out", PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, 1))
    factory = sink.writer_factory()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    writer = factory(Task(PIPELINE, 1, 1, 0, 0))
    writer.write(_table(1).to_batches()[0])
    sink.publish([_publication(1, writer.stage())], Held())
    assert _ids(tmp_path / "out") == [1]


# --- partitions -------------------------------------------------------------------------------------

_WORDS = ["plain", "a/b", "c=d", "e%20f", "ü", "with space", "..", "q\"'", "x:y?*", None]


def test_partition_values_come_back_as_they_were(directory: Path) -> None:
    sink = _opened(directory, partition_by=("word",))
    rows = pa.table({"id": range(len(_WORDS)), "word": _WORDS}, schema=SCHEMA)
    sink.publish([_publication(1, _staged(sink, 1, rows))], Held())
    expected = list(enumerate(_WORDS))
    found = dataset.dataset(directory, schema=SCHEMA, partitioning="hive").to_table().sort_by("id")
    assert [(row["id"], row["word"]) for row in found.to_pylist()] == expected
    query = f"SELECT id, word FROM read_parquet('{directory}/**/*.parquet', hive_partitioning=true) ORDER BY id"
    assert duckdb.sql(query).fetchall() == expected
    frame = polars.read_parquet(f"{directory}/**/*.parquet", hive_partitioning=True).sort("id")
    assert frame.select("id", "word").rows() == expected
    assert (directory / "word=a%2Fb").is_dir()
    assert (directory / "word=__HIVE_DEFAULT_PARTITION__").is_dir()


def test_partition_columns_are_not_in_the_files(directory: Path) -> None:
    sink = _opened(directory, partition_by=("word",))
    sink.publish([_carried(1, 1)], Held())
    (name,) = _visible(directory)
    assert pq.ParquetFile(directory / name).schema_arrow.names == ["id"]


def test_two_tasks_with_one_partition_value_do_not_collide(directory: Path) -> None:
    sink = _opened(directory, partition_by=("word",))
    handles = [_staged(sink, 1, _table(task), task=task) for task in range(3)]
    sink.publish([_publication(1, *handles, Carried(_table(3)))], Held())
    assert _ids(directory) == [0, 1, 2, 3]
    assert len(_visible(directory)) == 4


def test_a_partition_value_that_is_too_long_for_a_name_is_a_bad_row(directory: Path) -> None:
    sink = _opened(directory, partition_by=("word",))
    with pytest.raises(HoldfastError, match="a directory's name has at most 255 bytes"):
        sink.publish([_publication(1, Carried(_table(1, word="x" * 300)))], Held())
    assert _staged_files(directory) == []
    assert sink.outcome(1) is Outcome.ABSENT


# --- refused before anything runs -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["hdfs://host/x", "abfss://a:hunter2@b/c"])
def test_a_remote_path_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(InvalidPipeline, match="not atomic") as caught:
        files(path)
    assert "mounted path" in caught.value.do
    assert "hunter2" not in str(caught.value)


def test_a_secret_in_the_address_of_a_bucket_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidPipeline, match="credentials are never part of it") as caught:
        files("s3://key:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_wrong_arguments_are_refused_when_the_graph_is_built() -> None:
    with pytest.raises(InvalidPipeline, match="'csv'"):
        files("out", format="csv")  # type: ignore[arg-type]
    with pytest.raises(InvalidPipeline, match="twice"):
        files("out", partition_by=["a", "a"])
    for column in ("_day", ".day"):
        with pytest.raises(InvalidPipeline, match=f"'{column}'.*\n.*readers of a directory skip"):
            files("out", partition_by=["id", column])
    with pytest.raises(InvalidPipeline, match="'day'"):
        files("out", partition_by="day").spec.check_columns(["id"])
    files("out", partition_by="day").spec.check_columns(["id", "day"])
    files("out", partition_by="day").spec.check_columns(None)


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (SCHEMA, ("day",), "'day'"),
        (SCHEMA, ("id", "word"), "all of its columns"),
        (pa.schema([("x", pa.float64()), ("y", pa.int64())]), ("x",), "'x' of type double"),
    ],
)
def test_partition_columns_that_cannot_be_are_refused_before_the_run(
    directory: Path, schema: pa.Schema, partition_by: Sequence[str], message: str
) -> None:
    with pytest.raises(InvalidPipeline, match=message):
        FilesSinkSpec(os.fspath(directory), partition_by=tuple(partition_by)).connect("out", PIPELINE, schema)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("existing", "message"),
    [
        (pa.table({"id": ["1"], "word": ["a"]}), "column 'id' is int64 in the sink and string in the files"),
        (pa.table({"id": [1]}), "column 'word' is string in the sink and absent in the files"),
        (pa.table({"id": [1], "word": ["a"], "extra": [1.5]}), "column 'extra' is absent in the sink and double"),
    ],
)
def test_files_of_another_schema_are_refused_naming_column_and_types(
    directory: Path, existing: pa.Table, message: str
) -> None:
    directory.mkdir()
    pq.write_table(existing, directory / "theirs.parquet")
    with pytest.raises(InvalidPipeline, match=message):
        FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA)
    assert os.listdir(directory) == ["theirs.parquet"]


def test_files_of_another_format_or_partitioning_are_refused(directory: Path) -> None:
    _opened(directory, partition_by=("word",)).publish([_carried(1, 1)], Held())
    with pytest.raises(InvalidPipeline, match="partitioned by word, the sink by nothing"):
        FilesSinkSpec(os.fspath(directory)).connect("other", PIPELINE, SCHEMA)
    with pytest.raises(InvalidPipeline, match="are parquet, the sink writes json"):
        FilesSinkSpec(os.fspath(directory), "json").connect("other", PIPELINE, SCHEMA)


def test_what_is_no_parquet_file_is_named(directory: Path) -> None:
    directory.mkdir()
    (directory / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidPipeline, match=r"broken\.parquet is not a Parquet file"):
        FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA)


def test_files_that_differ_only_in_encoding_or_order_are_accepted(directory: Path) -> None:
    directory.mkdir()
    words = pa.array(["a"]).dictionary_encode()
    pq.write_table(pa.table({"word": words, "id": [1]}), directory / "theirs.parquet")
    _opened(directory).publish([_carried(1, 2)], Held())
    assert _ids(directory) == [1, 2]


def test_an_unwritable_directory_is_refused_before_the_run(directory: Path) -> None:
    directory.mkdir(mode=0o500)
    with unprivileged(), pytest.raises(InvalidPipeline, match="write permission"):
        FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA)


# --- crashes ----------------------------------------------------------------------------------------


def test_a_crash_between_renames_shows_a_part_until_the_sink_is_opened_again(directory: Path) -> None:
    """The one weakness of the commit by rename; docs/sinks/files.md says it."""
    sink = _opened(directory)
    parts = [_staged(sink, 1, _table(task), task=task) for task in range(3)]
    reached: list[int] = []

    def hook(point: str, epoch: int) -> None:
        if point == "publish-begun":
            reached.append(epoch)
            if len(reached) == 2:
                raise _Killed

    faults.install(hook)
    try:
        with pytest.raises(_Killed):
            sink.publish([_publication(1, *parts)], Held())
    finally:
        faults.install(None)
    assert len(_ids(directory)) == 1
    assert sink.outcome(1) is Outcome.STAGED

    again = FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA)
    assert again.open(RunIdentity(PIPELINE, 2)).epoch == 1
    assert again.outcome(1) is Outcome.PUBLISHED
    assert _ids(directory) == [0, 1, 2]
    assert _staged_files(directory) == []


def test_a_file_that_cannot_be_renamed_leaves_the_epoch_in_doubt_and_publishing_again_completes_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = _opened(directory)
    rename, failures = os.rename, [True]

    def broken(source: str, target: str) -> None:
        if target.endswith(".parquet") and failures:
            failures.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(InDoubt, match="not all of its files are visible"):
        sink.publish([_carried(1, 1)], Held())
    assert sink.outcome(1) is Outcome.STAGED
    assert sink.sweep(below_epoch=5) == 0
    sink.publish([_carried(1, 1)], Held())
    assert sink.outcome(1) is Outcome.PUBLISHED
    assert _ids(directory) == [1]


def test_sweeping_leaves_what_is_committed_and_not_yet_renamed(directory: Path) -> None:
    sink = _opened(directory)
    handle = _staged(sink, 1, _table(1))
    with _at("publish-begun", _kill), pytest.raises(_Killed):
        sink.publish([_publication(1, handle)], Held())
    assert sink.sweep(below_epoch=9) == 0
    assert len(_staged_files(directory)) == 1
    _opened(directory, 2)
    assert _ids(directory) == [1]


def test_a_published_file_that_somebody_removed_is_not_missed(directory: Path) -> None:
    """Retention runs beside us; the log remembers the epoch, not the files."""
    _opened(directory).publish([_carried(1, 1)], Held())
    (directory / _visible(directory)[0]).unlink()
    sink = _opened(directory, 2)
    assert sink.outcome(1) is Outcome.PUBLISHED
    sink.publish([_carried(1, 1), _carried(2, 2)], Held())
    assert _ids(directory) == [2]


def test_a_partition_directory_removed_during_the_publish_is_made_again(directory: Path) -> None:
    sink = _opened(directory, partition_by=("word",))
    with _at("publish-begun", (directory / "word=w").rmdir):
        sink.publish([_carried(1, 1)], Held())
    assert _ids(directory) == [1]


def test_staged_rows_that_were_cut_short_are_refused_and_nothing_becomes_visible(directory: Path) -> None:
    sink = _opened(directory)
    whole, cut = _staged(sink, 1, _table(1), task=0), _staged(sink, 1, _table(2), task=1)
    (path,) = [p for p in _staged_files(directory) if f"/{cut.reference['directory']}/" in os.fspath(p)]
    os.truncate(path, 10)
    with pytest.raises(Diverged, match="not what was staged"):
        sink.publish([_publication(1, whole, cut)], Held())
    assert _visible(directory) == []
    assert sink.outcome(1) is Outcome.ABSENT


def _killed_after(directory: Path, renames: int) -> list[Staged]:
    """Publish an epoch, and a second one of three files that dies after so many renames."""
    sink = _opened(directory)
    sink.publish([_carried(1, 1)], Held())
    handles = [_staged(sink, 2, _table(10 + task), task=task) for task in range(3)]
    count = []

    def hook(point: str, epoch: int) -> None:
        if point == "publish-begun":
            count.append(epoch)
            if len(count) == renames + 1:
                raise _Killed

    faults.install(hook)
    try:
        with pytest.raises(_Killed):
            sink.publish([_publication(2, *handles)], Held())
    finally:
        faults.install(None)
    return handles


@pytest.mark.parametrize("renames", [0, 1, 2])
@pytest.mark.parametrize("everything", [True, False], ids=["all", "the last"])
def test_a_staged_file_that_is_removed_behind_the_entry_is_refused_each_time_until_its_rows_are_back(
    directory: Path, renames: int, everything: bool
) -> None:
    """The entry is the commit: what readers may have of it is not taken back (design/0005)."""
    _killed_after(directory, renames)
    gone = sorted(_staged_files(directory))[0 if everything else -1 :]
    kept = {path: path.read_bytes() for path in gone}
    for path in gone:
        path.unlink()
    for generation in (2, 3):
        with pytest.raises(Diverged, match=f"{len(gone)} of its 3 files are gone") as caught:
            _opened(directory, generation)
        assert all(path.name.removesuffix(".staged") in caught.value.what for path in gone)
        assert not caught.value.is_mended_by_start
    for path, data in kept.items():
        path.write_bytes(data)
    assert _opened(directory, 4).outcome(2) is Outcome.PUBLISHED
    assert _ids(directory) == [1, 10, 11, 12]


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_what_a_reader_took_away_before_the_next_start_is_not_taken_for_removed(directory: Path, renames: int) -> None:
    _killed_after(directory, renames)
    for path in _visible(directory):
        if "part-000000000002" in path:
            (directory / path).unlink()
    if renames == 3:  # all were done; it died before it could note that: a person does
        with pytest.raises(Diverged, match="3 of its 3 files are gone") as caught:
            _opened(directory, 2)
        number, note = caught.value.do.rpartition("write ")[2].rstrip(".").split(" into ")
        Path(note).write_text(number)
    sink = _opened(directory, 3)
    assert sink.outcome(2) is Outcome.PUBLISHED
    sink.publish([_carried(3, 30)], Held())
    for path in _visible(directory):
        (directory / path).unlink()
    assert _opened(directory, 4).outcome(3) is Outcome.PUBLISHED, "a reader may take everything that is visible"


# --- stale writers ----------------------------------------------------------------------------------


def test_a_takeover_just_before_the_commit_wins(directory: Path) -> None:
    stale = _opened(directory, 1)
    handle = _staged(stale, 1, _table(1))
    with _at("publish-uncommitted", lambda: _opened(directory, 2)), pytest.raises(Fenced):
        stale.publish([_publication(1, handle, Carried(_table(2)))], Held())
    assert _visible(directory) == []
    assert len(_staged_files(directory)) == 1, "the handle may be named by a decision; the carried rows are gone"
    owner = _opened(directory, 3)
    assert owner.outcome(1) is Outcome.ABSENT
    owner.publish([_publication(1, handle)], Held())
    assert _ids(directory) == [1]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_takeover_in_the_middle_of_the_renames_finishes_them_and_the_stale_writer_finds_them_done(
    directory: Path, renames: int
) -> None:
    stale = _opened(directory, 1)
    parts = [_staged(stale, 1, _table(task), task=task) for task in range(3)]
    count, held = [], []

    def hook(point: str, epoch: int) -> None:
        count.append(point)
        if point == "publish-begun" and count.count(point) == renames + 1:
            faults.install(None)
            owner = FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA)
            held.append(owner.open(RunIdentity(PIPELINE, 2)).epoch)

    faults.install(hook)
    try:
        stale.publish([_publication(1, *parts)], Held())
    finally:
        faults.install(None)
    assert held == [1]
    assert _ids(directory) == [0, 1, 2]
    with pytest.raises(Fenced):
        stale.publish([_carried(2, 9)], Held())


@pytest.fixture
def _idle_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle epochs fill the log as those with rows do: they are published sooner."""
    monkeypatch.setattr(files_sink, "IDLE_KEPT", 0)


@pytest.mark.usefixtures("_idle_counts")
def test_a_stale_writer_that_slept_until_its_place_in_the_log_was_free_again_is_refused(directory: Path) -> None:
    stale = _opened(directory, 1)

    def owner_runs_for_long() -> None:
        owner = _opened(directory, 2)
        for epoch in range(1, KEPT + 10):
            owner.publish([_publication(epoch)], Held())

    with _at("publish-uncommitted", owner_runs_for_long), pytest.raises(Fenced):
        stale.publish([_carried(1, 1)], Held())
    assert _visible(directory) == []
    log = directory / "_holdfast" / PIPELINE / "out" / "log"
    assert not (log / f"{2:012}.json").exists()


def test_a_stale_writer_sweeps_nothing(directory: Path) -> None:
    """The new generation may be about to publish these very files from the decision."""
    stale = _opened(directory, 1)
    handle = _staged(stale, 1, _table(1))
    owner = _opened(directory, 2)
    assert stale.sweep(below_epoch=9) == 0
    owner.publish([_publication(1, handle)], Held())
    assert _ids(directory) == [1]


# --- the log ----------------------------------------------------------------------------------------


def _entries(directory: Path) -> list[Path]:
    return sorted((directory / "_holdfast" / PIPELINE / "out" / "log").iterdir())


@pytest.mark.usefixtures("_idle_counts")
def test_the_log_is_bounded(directory: Path) -> None:
    sink = _opened(directory)
    for epoch in range(1, KEPT + 21):
        sink.publish([_publication(epoch)], Held())
    assert len(_entries(directory)) == KEPT
    assert _opened(directory, 2).outcome(KEPT + 20) is Outcome.PUBLISHED


def _filled(directory: Path) -> EpochRecord:
    """Fill the log; return the record of a rewind to the oldest epoch that it can go back to."""
    sink = _opened(directory)
    for epoch in range(1, KEPT + 1):
        sink.publish([_publication(epoch)], Held())
    sink.publish([_carried(KEPT + 1, 7)], Held())
    oldest = {"lines": {"log": 2}}
    assert not sink.withdrawal(oldest).obstacle
    return EpochRecord(PIPELINE, KEPT + 2, 1, oldest, rewound_to=2)


def test_a_rewind_that_is_decided_is_carried_through_by_whoever_opens_the_sink_next(directory: Path) -> None:
    """Design 0012, section 2: no start takes away the entry that it goes back to."""
    record = _filled(directory)
    for generation in (2, 3, 4):
        sink = _opened(directory, generation)
    sink.publish([Publication(record, ())], Held())
    assert _visible(directory) == []
    assert sink.outcome(record.epoch) is Outcome.PUBLISHED


@pytest.mark.usefixtures("_idle_counts")
def test_runs_that_publish_nothing_fill_no_disk_and_take_no_epoch_from_a_rewind(directory: Path) -> None:
    record = _filled(directory)
    for generation in range(2, 2 * KEPT + 2):
        sink = _opened(directory, generation)
    assert len(_entries(directory)) <= 2 * KEPT
    sink.publish([Publication(record, ())], Held())
    assert _visible(directory) == []


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty", "not json", "renumbered"])
def test_a_damaged_entry_is_never_taken_for_an_answer(directory: Path, damage: str) -> None:
    _opened(directory).publish([_carried(1, 1)], Held())
    last = _entries(directory)[-1]
    text = last.read_text()
    if damage == "renumbered":
        last.rename(last.with_name(f"{9:012}.json"))
    else:
        damaged = {"truncated": text[:50], "changed": text.replace('"epoch": 1', '"epoch": 2'), "empty": ""}
        last.write_text(damaged.get(damage, "[]"))
    with pytest.raises(Corrupt, match="damaged"):
        _opened(directory, 2)


def test_a_log_that_was_removed_during_the_run_stops_it(directory: Path) -> None:
    sink = _opened(directory)
    for path in _entries(directory):
        path.unlink()
    with pytest.raises(Diverged, match="does not hold generation 1"):
        sink.publish([_carried(1, 1)], Held())
    assert _visible(directory) == []


# --- disks ------------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_stage_with_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk:
        sink = _opened(disk / "out", format="json")
        writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
        writer.write(_table(*range(200_000)).to_batches()[0])
        with pytest.raises(Unavailable, match="disk is full"):
            writer.stage()
        writer.abort()
        assert _staged_files(disk / "out") == []


@pytest.mark.parametrize("format_name", ["parquet", "json"])
def test_a_full_disk_fails_the_publish_and_it_succeeds_once_there_is_room(tmp_path: Path, format_name: str) -> None:
    rows = pa.table({"id": range(100_000), "word": [os.urandom(8).hex() for _ in range(100_000)]}, schema=SCHEMA)
    with small_disk(tmp_path / "small") as disk:
        sink = _opened(disk / "out", format=format_name)
        sink.publish([_carried(1, 1)], Held())
        with pytest.raises(Unavailable, match="disk is full"):
            sink.publish([_publication(2, Carried(rows))], Held())
        assert sink.outcome(2) is Outcome.ABSENT
        assert _staged_files(disk / "out") == []
        sink.publish([_publication(2, Carried(rows.slice(0, 10)))], Held())
        assert sink.outcome(2) is Outcome.PUBLISHED
        assert len(_visible(disk / "out")) == 2


# --- writers ----------------------------------------------------------------------------------------


def test_many_small_batches_become_one_row_group(directory: Path) -> None:
    sink = _opened(directory)
    sink.publish([_publication(1, _staged(sink, 1, *[_table(number) for number in range(500)]))], Held())
    (name,) = _visible(directory)
    file = pq.ParquetFile(directory / name)
    assert file.num_row_groups == 1
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_writer_holds_a_bounded_number_of_rows_and_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_rows, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(files_rows, "BUFFER_BYTES", 2_000)
    monkeypatch.setattr(files_rows, "OPEN_FILES", 3)
    sink = _opened(directory, partition_by=("word",))
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    for start in range(0, 4_000, 50):
        ids = range(start, start + 50)
        rows = pa.table({"id": ids, "word": [str(number % 7) for number in ids]}, schema=SCHEMA)
        writer.write(rows.to_batches()[0])
        assert sum(held.size_bytes for held in writer._rows._held.values()) <= 2_000
        assert len(writer._rows._open) <= 3
    sink.publish([_publication(1, writer.stage())], Held())
    assert _ids(directory) == list(range(4_000))


def test_a_large_part_is_cut_into_row_groups(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_rows, "ROW_GROUP_ROWS", 100)
    sink = _opened(directory)
    sink.publish([_publication(1, _staged(sink, 1, *[_table(*range(n, n + 40)) for n in range(0, 1_000, 40)]))], Held())
    (name,) = _visible(directory)
    assert pq.ParquetFile(directory / name).num_row_groups > 5
    assert _ids(directory) == list(range(1_000))


def test_rows_that_do_not_fit_the_declared_columns_are_refused(directory: Path) -> None:
    sink = _opened(directory)
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    with pytest.raises(InvalidPipeline, match="do not fit"):
        writer.write(pa.RecordBatch.from_pydict({"id": ["x"], "word": ["y"]}))
    writer.abort()
    assert _staged_files(directory) == []


def test_a_worker_killed_while_it_stages_leaves_an_orphan_that_is_swept(directory: Path) -> None:
    sink = _opened(directory)
    writer = sink.writer_factory()(Task(PIPELINE, 1, 4, 0, 0))
    with _at("stage-write", _kill), pytest.raises(_Killed):
        writer.write(_table(1).to_batches()[0])
    assert sink.sweep(below_epoch=4) == 0
    assert sink.sweep(below_epoch=5) == 1
    assert sink.sweep(below_epoch=5) == 0


@pytest.mark.parametrize("point", ["publish-begun", "publish-uncommitted"])
def test_what_a_killed_publish_had_not_renamed_yet_can_be_withdrawn(directory: Path, point: str) -> None:
    """A rewind asks before it takes over, when nobody has carried the publish through."""
    sink = _opened(directory)
    sink.publish([_carried(1, 1)], Held())
    with _at(point, _kill), pytest.raises(_Killed):
        sink.publish([_publication(2, _staged(sink, 2, _table(2, 3)))], Held())
    asked = FilesSinkSpec(os.fspath(directory)).connect("out", PIPELINE, SCHEMA).withdrawal({"lines": {"log": 1}})
    assert (asked.obstacle, asked.row_count) == ("", 2 if point == "publish-begun" else 0)
