"""What a directory of files holds, compared with what it should hold, and repaired (design/0024)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.errors import Corrupt, Fenced, InvalidPipeline
from holdfast.ports import HASH_COLUMN, EpochRecord, Publication, RunIdentity
from holdfast.store import entry_log
from tests.contract.comparable_contract import PIPELINE, Opened, digested, repair_of, repaired

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def opened(path: Path, generation: int = 1, name: str = "out", **arguments: object) -> Opened:
    spec = FilesSinkSpec(os.fspath(path), **arguments)  # type: ignore[arg-type]
    return Opened(spec.connected(name, PIPELINE, SCHEMA, is_tended=False), generation)


def table(*ids: int, word: str = "a") -> pa.Table:
    return pa.table({"id": ids, "word": [word] * len(ids)}, schema=SCHEMA)


def visible(path: Path) -> list[Path]:
    found = (each.relative_to(path) for each in path.rglob("*.parquet"))
    return sorted(path / each for each in found if each.parts[0][0] != "_")


def ids(path: Path) -> list[int]:
    return sorted(number for each in visible(path) for number in pq.ParquetFile(each).read()["id"].to_pylist())


def tend(of: Opened) -> int:
    assert isinstance(of.sink, FilesSink)
    assert of.sink.compaction is not None
    return of.sink.compaction.tend()


def test_rows_of_a_file_that_somebody_removed_are_missing(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(table(1, 2))
    out.publish(table(3))
    visible(tmp_path)[0].unlink()
    with out.content() as content:
        assert [batch["id"].to_pylist() for batch in content.rows(0, [0])] == [[3]]
    assert repaired(out, table(1, 2, 3)) == 2
    assert ids(tmp_path) == [1, 2, 3]


def test_rows_of_a_file_that_somebody_added_are_extra(tmp_path: Path) -> None:
    """In the columns that it has; hidden files, and those of other formats, no reader reads."""
    out = opened(tmp_path, partition_by=("word",))
    out.publish(table(1))
    (tmp_path / "word=a" / "more").mkdir()
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int16()), "note": ["x", "y"]}), tmp_path / "word=a" / "x.parquet"
    )
    pq.write_table(pa.table({"id": ["3"]}), tmp_path / "word=a" / "more" / "y.parquet")
    pq.write_table(table(4), tmp_path / "_hidden.parquet")
    (tmp_path / "word=a" / "readme.txt").write_text("none of ours")
    with out.content() as content:
        found = pa.Table.from_batches(content.rows(0, [0]))
        assert sorted(found["id"].to_pylist(), key=str) == [1, 1, 2, None]
        hashes = found[HASH_COLUMN].to_pylist()
        assert len(set(hashes)) == 3
    assert repaired(out, table(1)) == 3
    assert digested(out, table(1))
    assert len(visible(tmp_path)) == 1


def test_a_directory_that_is_no_value_of_its_column_has_no_row_of_ours(tmp_path: Path) -> None:
    spec = FilesSinkSpec(os.fspath(tmp_path), partition_by=("id",))
    out = Opened(spec.connect("out", PIPELINE, SCHEMA))
    rows = pa.table({"id": [1, None], "word": ["a", "a"]}, schema=SCHEMA)
    out.publish(rows)
    (tmp_path / "id=1").rename(tmp_path / "id=one")
    assert not digested(out, rows)
    assert repaired(out, rows) == 2
    assert digested(out, rows)
    assert [each.parent.name for each in visible(tmp_path)] == ["id=1", "id=__HIVE_DEFAULT_PARTITION__"]


def test_a_file_that_somebody_changed_is_repaired_row_by_row(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(table(*range(1000)))
    (path,) = visible(tmp_path)
    pq.write_table(table(*range(5, 1000), 7, -1), path)
    repair = repair_of(out, table(*range(1000)))
    assert (repair.removed.num_rows, repair.written.num_rows) == (2, 5)
    assert out.sink.repair(repair) == 7  # type: ignore[attr-defined]
    assert ids(tmp_path) == list(range(1000))
    assert len(visible(tmp_path)) == 1


def test_rows_go_where_their_columns_are_kept(tmp_path: Path) -> None:
    """Into no file that would keep other values."""
    out = opened(tmp_path)
    out.publish(table(1))
    (path,) = visible(tmp_path)
    pq.write_table(pa.table({"id": pa.array([1], pa.int8()), "word": ["a"]}), path)
    assert digested(out, table(1))
    assert repaired(out, table(1, 2)) == 1
    assert repaired(out, table(1, 2, 300)) == 1
    assert digested(out, table(1, 2, 300))


def test_files_of_another_sink_are_not_ours(tmp_path: Path) -> None:
    one, other = opened(tmp_path, name="one"), opened(tmp_path, name="other")
    one.publish(table(1))
    other.publish(table(2))
    assert digested(one, table(1))
    assert digested(other, table(2))


def test_a_view_outlives_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "KEPT", 3)
    out = opened(tmp_path, compact=True)
    for number in range(12):
        out.publish(table(number))
    with out.content() as content:
        assert tend(out) == 1
        for path in visible(tmp_path):
            path.unlink()
        assert int(content.digests(0).counts[0]) == 12
    assert not (tmp_path / "_holdfast" / PIPELINE / "out" / "views").exists()
    with out.content() as content:
        assert int(content.digests(0).counts[0]) == 0


def test_a_repaired_directory_is_joined_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rows that were missing are of epochs that had been joined."""
    monkeypatch.setattr(entry_log, "KEPT", 3)
    out = opened(tmp_path, compact=True)
    for number in range(12):
        out.publish(table(number, -number))
    assert tend(out) == 1
    assert repaired(out, table(*range(-5, 20))) is not None
    for number in range(20, 60):
        out.publish(table(number))
        tend(out)
    assert digested(out, table(*range(-5, 60)))
    assert len(visible(tmp_path)) < 20


def test_what_is_joined_while_a_repair_is_prepared_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "KEPT", 3)
    out = opened(tmp_path, compact=True)
    for number in range(12):
        out.publish(table(number))
    repair = repair_of(out, table(*range(1, 13)))
    assert tend(out) == 1
    assert out.sink.repair(repair) is None  # type: ignore[attr-defined]
    assert ids(tmp_path) == list(range(12))
    assert repaired(out, table(*range(1, 13))) == 2


def test_no_rewind_goes_to_before_a_repair(tmp_path: Path) -> None:
    """What its entries name has been replaced; from the repair on there are rewinds again, also of a later run."""
    out = opened(tmp_path)
    for number in (1, 2):
        out.publish(table(number))
    assert repaired(out, table(1, 3)) == 2
    assert isinstance(out.sink, FilesSink)
    assert "go back to epochs 2 to 2" in out.sink.withdrawal({"source": {"": 1}}).obstacle
    out.close()
    out = opened(tmp_path, generation=2)
    out.publish(table(4))
    assert isinstance(out.sink, FilesSink)
    assert out.sink.withdrawal({"source": {"": 1}}).obstacle
    assert out.sink.withdrawal({"source": {"": 2}}).row_count == 1
    out.sink.publish([Publication(EpochRecord(PIPELINE, 4, 2, {"source": {"": 2}}, rewound_to=2), ())], out.expected)
    assert ids(tmp_path) == [1, 3]


def test_another_process_looks_while_the_run_goes_on_and_repairs_when_it_has_taken_over(tmp_path: Path) -> None:
    out = opened(tmp_path, compact=True)
    out.publish(table(1, 2))
    spec = FilesSinkSpec(os.fspath(tmp_path), compact=True)
    other = spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
    with other.content() as content:
        assert content.held.epoch == 1
    with pytest.raises(Fenced):
        other.repair(repair_of(out, table(1, 3)))
    newer = opened(tmp_path, generation=2, compact=True)
    assert repaired(newer, table(1, 3)) == 2
    newer.publish(table(4))
    assert ids(tmp_path) == [1, 3, 4]


def test_a_run_repairs_nothing_where_another_one_has_taken_the_sink(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(table(1))
    repair = repair_of(out, table(2))
    newer = opened(tmp_path, generation=2)
    with pytest.raises(Fenced):
        out.sink.repair(repair)  # type: ignore[attr-defined]
    assert ids(tmp_path) == [1]
    with pytest.raises(Fenced):
        out.publish(table(3))
    assert repaired(newer, table(2)) == 2


def test_a_view_whose_process_has_died_is_removed_and_one_that_is_open_is_not(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(table(1))
    program = (
        "import os, signal, sys; from pathlib import Path; from tests.unit.sinks.test_files_content import opened;"
        "out = opened(Path(sys.argv[1]), generation=2); view = out.content(); view.__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, os.fspath(tmp_path)], check=False)
    views = tmp_path / "_holdfast" / PIPELINE / "out" / "views"
    (dead,) = views.iterdir()
    with out.content() as content:
        (mine,) = views.iterdir()
        assert mine != dead
        opened(tmp_path, generation=3)
        assert list(views.iterdir()) == [mine]
        assert int(content.digests(0).counts[0]) == 1


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(table(1))
    (path,) = visible(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    with out.content() as content, pytest.raises(Corrupt, match="move it out"):
        content.digests(0)
    path.rename(tmp_path / "_moved")
    assert repaired(out, table(1)) == 1


def test_lines_are_not_compared(tmp_path: Path) -> None:
    out = opened(tmp_path, format="json")
    with pytest.raises(InvalidPipeline, match="Parquet"), out.content():
        pass


def test_a_view_of_a_sink_that_was_never_opened_is_empty(tmp_path: Path) -> None:
    sink = FilesSinkSpec(os.fspath(tmp_path)).connect("out", PIPELINE, SCHEMA)
    with sink.content() as content:
        assert content.held.epoch == 0
        assert not content.digests(2).counts.any()
    sink.open(RunIdentity(PIPELINE, 1))
    sink.close()
