"""What a directory of segments holds, compared with what it should hold, and repaired (design/0024)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import segments
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.segments import manifest
from holdfast.connectors.segments.policies import Segment
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import Fenced, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Publication
from tests.contract.comparable_contract import PIPELINE, Opened, digested, repair_of, repaired

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def whatever(segment: Segment) -> str:
    return "whatever"


def opened(path: Path, generation: int = 1, name: str = "out", **arguments: object) -> Opened:
    spec = SegmentsSinkSpec(os.fspath(path), **{"partition_by": ("word",), "seal": (), **arguments})  # type: ignore[arg-type]
    return Opened(spec.connected(name, PIPELINE, SCHEMA, is_tended=False), generation)


def table(*ids: int, word: str = "a") -> pa.Table:
    return pa.table({"id": ids, "word": [word] * len(ids)}, schema=SCHEMA)


def tables(*several: pa.Table) -> pa.Table:
    return pa.concat_tables(several)


def sink(of: Opened) -> SegmentsSink:
    assert isinstance(of.sink, SegmentsSink)
    return of.sink


def visible(path: Path) -> list[Path]:
    found = (each.relative_to(path) for each in path.rglob("*.parquet"))
    return sorted(path / each for each in found if each.parts[0][0] != "_")


def read(path: Path) -> list[int]:
    """As readers of the manifest see it."""
    return sorted(segments.open(path).to_arrow()["id"].to_pylist())


def test_rows_that_grow_and_rows_that_are_sealed_are_counted_once(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(segments.rows(2),))
    out.publish(tables(table(1, 2), table(3, word="b")))
    assert sink(out).sealing.tend() == 1
    out.publish(tables(table(4), table(5, word="b")))
    with out.content() as content:
        assert int(content.digests(0).counts[0]) == 5
    assert digested(out, tables(table(1, 2, 4), table(3, 5, word="b")))


def test_a_repair_seals_only_what_it_touches_and_the_rest_grows_on(tmp_path: Path) -> None:
    out = opened(tmp_path)
    out.publish(tables(table(1, 2), table(3, word="b"), table(4, word="c")))
    expected = tables(table(1), table(3, 30, word="b"), table(4, word="c"))
    assert repaired(out, expected) == 2
    assert set(sink(out).holdings.growing) == {"word=c"}
    assert [(each.partition, each.reason) for each in sink(out).manifest.sealed(sink(out).holdings)] == [
        ("word=a", "repair"),
        ("word=b", "repair"),
    ]
    assert read(tmp_path) == [1, 3, 4, 30]
    out.publish(tables(table(5), table(6, word="c")))
    assert digested(out, tables(expected, table(5), table(6, word="c")))
    assert repaired(out, table(5)) == 5
    assert set(sink(out).holdings.growing) == {"word=a"}
    assert repaired(out, table(50)) == 2
    assert os.listdir(sink(out).places.journal) == []
    assert read(tmp_path) == [50]


def test_a_repaired_directory_is_sealed_and_joined_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind bases, and in a later run."""
    monkeypatch.setattr(manifest, "ENTRIES_MIN", 5)
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 5)
    wanted: list[pa.Table] = []
    out = opened(tmp_path, seal=(whatever,))
    for number in range(60):
        rows = tables(table(number), table(number, word="b"))
        out.publish(rows)
        wanted.append(rows)
        sink(out).sealing.tend()
        if number % 20 == 10:
            wanted = [tables(*wanted, table(-number)).slice(1)]
            assert repaired(out, wanted[0]) == 2
        if number == 35:
            out.close()
            out = opened(tmp_path, generation=2, seal=(whatever,))
    assert digested(out, tables(*wanted))
    assert read(tmp_path) == sorted(tables(*wanted)["id"].to_pylist())
    assert len(visible(tmp_path)) < 50


def test_rows_of_a_sealed_file_that_somebody_removed_are_missing_and_it_is_no_longer_named(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(whatever,))
    out.publish(tables(table(1, 2), table(3, word="b")))
    sink(out).sealing.tend()
    visible(tmp_path)[0].unlink()
    assert digested(out, table(3, word="b"))
    expected = tables(table(1, 2), table(3, word="b"))
    assert repaired(out, expected) == 2
    assert digested(out, expected)
    assert read(tmp_path) == [1, 2, 3]


def test_rows_of_files_that_somebody_added_are_extra_and_rows_that_belong_there_stay(tmp_path: Path) -> None:
    """As where somebody has put several files together by hand."""
    out = opened(tmp_path, seal=(whatever,))
    out.publish(table(1, 2))
    sink(out).sealing.tend()
    (path,) = visible(tmp_path)
    path.unlink()
    pq.write_table(pa.table({"id": [1, 2, 3]}), path.parent / "by-hand.parquet")
    assert digested(out, table(1, 2, 3))
    assert repaired(out, table(1, 2)) == 1
    assert read(tmp_path) == [1, 2]
    assert not (path.parent / "by-hand.parquet").exists()
    assert len(visible(tmp_path)) == 1


def test_files_of_other_sinks_are_not_ours(tmp_path: Path) -> None:
    one = opened(tmp_path, name="one", seal=(whatever,))
    spec = FilesSinkSpec(os.fspath(tmp_path), partition_by=("word",))
    other = Opened(spec.connected("other", PIPELINE, SCHEMA, is_tended=False))
    for out, number in ((one, 1), (other, 2)):
        out.publish(table(number))
    sink(one).sealing.tend()
    assert len(visible(tmp_path)) == 2
    assert digested(one, table(1))
    assert digested(other, table(2))


def test_a_view_outlives_the_files(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(whatever,))
    out.publish(table(1))
    sink(out).sealing.tend()
    out.publish(tables(table(2), table(3, word="b")))
    with out.content() as content:
        assert repaired(out, table(9)) is not None
        for path in visible(tmp_path):
            path.unlink()
        assert sorted(number for batch in content.rows(0, [0]) for number in batch["id"].to_pylist()) == [1, 2, 3]


def test_a_seal_between_look_and_repair_moves_the_rows(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(whatever,))
    out.publish(table(1, 2))
    repair = repair_of(out, table(1))
    sink(out).sealing.tend()
    assert sink(out).repair(repair) is None
    assert repaired(out, table(1)) == 1


def test_a_lost_journal_is_not_compared_until_its_rows_have_come_again(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(segments.rows(2),))
    for number in (1, 2):
        out.publish(tables(table(number), table(number, number, word="b")))
        sink(out).sealing.tend()
    expected = tables(table(1, 2), table(1, 1, 2, 2, word="b"))
    sink(out).repair(repair_of(out, tables(expected)))
    out.publish(tables(table(3), table(3, 3, word="b")))
    sink(out).sealing.tend()
    for name in os.listdir(sink(out).places.journal):
        (Path(sink(out).places.journal) / name).unlink()
    with pytest.raises(Unavailable, match="journal"), out.content():
        pass
    out = opened(tmp_path, generation=2)
    with pytest.raises(Unavailable, match="come again"), out.content():
        pass
    for epoch in range(out.epoch + 1, 4):
        record = EpochRecord(PIPELINE, epoch, 2, {"source": {"": epoch}})
        rows = tables(table(epoch), table(epoch, epoch, word="b"))
        out.sink.publish([Publication(record, (Carried(rows),))], Held())
    assert digested(out, tables(expected, table(3), table(3, 3, word="b")))


def test_another_process_looks_while_the_run_goes_on_and_repairs_when_it_has_taken_over(tmp_path: Path) -> None:
    out = opened(tmp_path, seal=(whatever,))
    out.publish(tables(table(1, 2), table(3, word="b")))
    spec = SegmentsSinkSpec(os.fspath(tmp_path), partition_by=("word",))
    other = spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
    with other.content() as content:
        assert content.held.epoch == 1
    expected = tables(table(1), table(3, word="b"))
    with pytest.raises(Fenced):
        other.repair(repair_of(out, expected))
    newer = opened(tmp_path, generation=2, seal=(whatever,))
    assert repaired(newer, expected) == 1
    assert sink(newer).sealing.tend() == 1
    newer.publish(table(4))
    assert digested(newer, tables(expected, table(4)))
    assert read(tmp_path) == [1, 3, 4]


def test_what_drops_rows_by_itself_is_not_compared(tmp_path: Path) -> None:
    out = opened(tmp_path, retain="1 d")
    with pytest.raises(InvalidPipeline, match="retain"), out.content():
        pass
