"""``read.files`` as a whole: limits, ends, files that change, places that change."""

from __future__ import annotations

import gzip
import os
import pickle
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from holdfast import read
from holdfast.connectors.files.source.spec import FilesSource
from holdfast.errors import BadRow, Corrupt, InvalidPipeline
from holdfast.ports import REJECT_COLUMN
from tests.unit.sources.reading import everything, good, rejected, source_over


def arrive(directory: Path, name: str, ids: Iterable[int], end: str = "\n") -> None:
    directory.mkdir(exist_ok=True)
    aside = directory / f".{name}"
    aside.write_text("".join(f'{{"id":{one}}}{end}' for one in ids))
    os.rename(aside, directory / name)


def ids_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


def epochs_of(source: FilesSource, *, bounded: bool = False) -> list[list[int]]:
    start, epochs = source.initial(), []
    while (end := source.latest(start, bounded=bounded)) != start:
        spans = source.spans(start, end, parallelism=2)
        epochs.append([row["id"] for span in spans for batch in source.read(span) for row in batch.to_pylist()])
        start = end
    return epochs


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    directory = tmp_path / "in"
    for number in range(5):
        arrive(directory, f"{number}.json", [number * 10 + row for row in range(10)])
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({}, [50]),
        ({"max_files_per_epoch": 2}, [20, 20, 10]),
        ({"max_rows_per_epoch": 20}, [20, 20, 10]),
        ({"max_rows_per_epoch": 4}, [4] * 12 + [2]),
        ({"max_rows_per_epoch": 1}, [1] * 50),
        ({"max_rows_per_epoch": 1000}, [50]),
        ({"max_rows_per_epoch": 40, "max_files_per_epoch": 1}, [10] * 5),
    ],
)
def test_limits_bound_every_epoch(incoming: Path, tmp_path: Path, limits: dict[str, int], sizes: list[int]) -> None:
    epochs = epochs_of(source_over(incoming, tmp_path / "w", "id INT", **limits))
    assert [len(epoch) for epoch in epochs] == sizes
    assert [one for epoch in epochs for one in epoch] == list(range(50))


def test_a_limit_may_change_between_runs(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", max_rows_per_epoch=6)
    middle = source.latest(source.initial(), bounded=False)
    before = source.rows_between(source.initial(), middle)
    other = source_over(incoming, tmp_path / "w", "id INT", max_files_per_epoch=3)
    start, total = middle, before or 0
    while (end := other.latest(start, bounded=False)) != start:
        rows = [
            row
            for span in other.spans(start, end, parallelism=1)
            for batch in other.read(span)
            for row in batch.to_pylist()
        ]
        total += len(rows)
        start = end
    assert total == 50


def test_a_frozen_source_takes_no_file_that_came_later(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", max_files_per_epoch=2)
    source.freeze()
    arrive(incoming, "later.json", [99])
    assert sum(map(len, epochs_of(source, bounded=True))) == 50
    assert 99 in [one for epoch in epochs_of(source) for one in epoch]


def test_a_bounded_source_is_what_was_there_at_the_first_start(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", bounded=True, max_files_per_epoch=1)
    source.latest(source.initial(), bounded=False)
    arrive(incoming, "later.json", [99])
    assert sum(map(len, epochs_of(source))) == 50
    assert sum(map(len, epochs_of(source_over(incoming, tmp_path / "w", "id INT", bounded=True)))) == 50


def test_starting_at_the_latest_passes_over_what_is_there(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", start="latest")
    assert epochs_of(source) == []
    arrive(incoming, "later.json", [99])
    assert epochs_of(source_over(incoming, tmp_path / "w", "id INT", start="latest")) == [[99]]


@pytest.mark.slow
def test_one_large_file_is_read_in_parallel(tmp_path: Path) -> None:
    arrive(tmp_path / "in", "one.json", list(range(400_000)))
    source = source_over(tmp_path / "in" / "one.json", tmp_path / "w", "id INT", block_size="1 MB")
    end = source.latest(source.initial(), bounded=False)
    spans = source.spans(source.initial(), end, parallelism=2)
    assert len(spans) == 2
    rows = [one for span in spans for batch in source.read(span) for one in batch.column("id").to_pylist()]
    assert rows == list(range(400_000))
    assert source.size_between(source.initial(), end) == os.path.getsize(tmp_path / "in" / "one.json")


def test_a_file_that_is_gone_is_named(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    (incoming / "3.json").unlink()
    with pytest.raises(Corrupt, match=r"3\.json is not the file that was logged: it is gone") as error:
        everything(source_over(incoming, tmp_path / "w", "id INT"))
    assert "restore the file" in error.value.do
    assert source.size_between(source.initial(), end)


@pytest.mark.parametrize("format_name", ["json", "parquet"])
def test_a_file_that_changed_its_size_is_named_with_both_sizes(tmp_path: Path, format_name: str) -> None:
    directory = tmp_path / "in"
    arrive(directory, "a", [1])
    source = source_over(directory, tmp_path / "w", "id INT", format=format_name, on_bad_row="reject")
    end = source.latest(source.initial(), bounded=False)
    arrive(directory, "a", [1, 2, 3])
    (span,) = source.spans(source.initial(), end, parallelism=1)
    with pytest.raises(Corrupt, match="it has 27 bytes now") as error:
        list(source.read(span))
    assert "it had 9 bytes" in error.value.why


def test_a_file_that_grows_after_it_was_taken_stops_the_run(incoming: Path, tmp_path: Path) -> None:
    """Otherwise what was added would be lost in silence."""
    source = source_over(incoming, tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    (incoming / "2.json").write_bytes((incoming / "2.json").read_bytes() + b'{"id":1000}\n')
    with pytest.raises(Corrupt, match=r"2\.json has 112 bytes, and had 100") as error:
        source.latest(end, bounded=False)
    assert "rename" in error.value.do


@pytest.mark.parametrize("bounded", [False, True])
def test_a_file_that_grew_between_two_runs_stops_the_second(incoming: Path, tmp_path: Path, bounded: bool) -> None:
    end = source_over(incoming, tmp_path / "w", "id INT").latest({"log": 0}, bounded=bounded)
    (incoming / "2.json").write_bytes((incoming / "2.json").read_bytes() + b'{"id":1000}\n')
    with pytest.raises(Corrupt, match=r"2\.json has 112 bytes, and had 100"):
        source_over(incoming, tmp_path / "w", "id INT").latest(end, bounded=bounded)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("pattern", ["", "*.csv", "**/*.csv"])
def test_a_bounded_source_that_finds_no_file_has_ended(tmp_path: Path, pattern: str, frozen: bool) -> None:
    directory = tmp_path / "in"
    arrive(directory, "_hidden.json", [1])
    (directory / "nothing.csv").touch()
    source = source_over(directory / pattern, tmp_path / "w", "id INT", bounded=True)
    assert not source.has_ended(source.initial()), "nobody has looked yet"
    if frozen:
        source.freeze()
    assert source.latest(source.initial(), bounded=frozen) == source.initial()
    assert source.has_ended(source.initial())
    arrive(directory, "later.csv", [1])
    for each in (source, source_over(directory / pattern, tmp_path / "w", "id INT", bounded=True)):
        assert epochs_of(each) == []
        assert each.has_ended(each.initial())


def test_a_bounded_source_has_not_ended_before_the_files_it_found_are_old_enough(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    for name in ("young.json", "old.json"):
        arrive(directory, name, [1])
    options: dict[str, Any] = {"bounded": True, "min_age": "1 h"}
    source = source_over(directory, tmp_path / "w", "id INT", **options)
    assert epochs_of(source) == []
    assert not source.has_ended(source.initial())
    os.utime(directory / "old.json", (1, 1))
    assert epochs_of(source) == [[1]]
    assert not source.has_ended({"log": 1})
    os.utime(directory / "young.json", (1, 1))
    assert epochs_of(source) == [[1, 1]]
    assert source.has_ended({"log": 2})


def test_a_bounded_source_whose_last_file_vanishes_while_it_is_found_has_ended(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", bounded=True, max_rows_per_epoch=100)
    source.freeze()
    (incoming / "4.json").unlink()
    assert sum(map(len, epochs_of(source, bounded=True))) == 40
    assert source.has_ended(source.latest({"log": 0}, bounded=True))


def test_a_bounded_source_that_passes_over_all_there_is_is_refused(incoming: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="leave nothing to read"):
        source_over(incoming, tmp_path / "w", "id INT", bounded=True, start="latest")


def test_a_file_that_changes_while_it_is_found_belongs_to_a_bounded_source(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", bounded=True, max_rows_per_epoch=100)
    source.freeze()
    (incoming / "2.json").write_bytes((incoming / "2.json").read_bytes() + b'{"id":1000}\n')
    arrive(incoming, "later.json", [99])
    expected = sorted([*range(50), 1000])
    assert sorted(one for epoch in epochs_of(source, bounded=True) for one in epoch) == expected
    again = source_over(incoming, tmp_path / "w", "id INT", bounded=True)
    assert sorted(ids_of(everything(again))) == expected


def test_a_bounded_source_waits_for_a_file_that_was_held_back(incoming: Path, tmp_path: Path) -> None:
    """It was found, so it belongs to the source; while it is too young to be taken again, the source is not whole."""
    for file in incoming.iterdir():
        os.utime(file, (1_600_000_000, 1_600_000_000))
    options: dict[str, Any] = {"bounded": True, "max_rows_per_epoch": 100, "min_age": "1 h"}
    source = source_over(incoming, tmp_path / "w", "id INT", **options)
    source.freeze()
    (incoming / "2.json").write_bytes((incoming / "2.json").read_bytes() + b'{"id":1000}\n')
    assert sum(map(len, epochs_of(source, bounded=True))) == 40
    os.utime(incoming / "2.json", (1_600_000_000, 1_600_000_000))
    again = source_over(incoming, tmp_path / "w", "id INT", **options)
    assert sorted(ids_of(everything(again))) == sorted([*range(50), 1000])


def test_a_file_that_vanishes_before_it_is_logged_is_no_error(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT", max_rows_per_epoch=10)
    source.latest(source.initial(), bounded=False)
    (incoming / "4.json").unlink()
    assert sum(map(len, epochs_of(source))) == 40


def test_files_that_were_read_may_be_removed(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    for file in incoming.iterdir():
        file.unlink()
    source.committed(end)
    arrive(incoming, "new.json", [7])
    again = source_over(incoming, tmp_path / "w", "id INT")
    last = again.latest(end, bounded=False)
    spans = again.spans(end, last, parallelism=1)
    assert [batch.to_pylist() for span in spans for batch in again.read(span)] == [[{"id": 7}]]


@pytest.mark.parametrize("changed", [{"path": "elsewhere"}, {"format": "csv"}])
def test_another_place_or_format_needs_another_name(incoming: Path, tmp_path: Path, changed: dict[str, str]) -> None:
    epochs_of(source_over(incoming, tmp_path / "w", "id INT"))
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / changed.get("path", "in")
    other = source_over(path, tmp_path / "w", "id INT", format=changed.get("format", "json"))
    with pytest.raises(InvalidPipeline, match="source 'source' reads"):
        other.latest({"log": 0}, bounded=False)


def test_a_log_that_was_lost_is_noticed(incoming: Path, tmp_path: Path) -> None:
    source = source_over(incoming, tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    fresh = source_over(incoming, tmp_path / "lost", "id INT")
    with pytest.raises(Corrupt, match="from position 5, and its log ends at 0"):
        fresh.latest(end, bounded=False)
    with pytest.raises(Corrupt, match="from position 5"):
        fresh.spans(source.initial(), end, parallelism=1)


def test_reading_needs_no_workspace(incoming: Path, tmp_path: Path) -> None:
    """Executors on other machines do not see it."""
    source = source_over(incoming, tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    spans = pickle.dumps(source.spans(source.initial(), end, parallelism=2))
    reader = pickle.loads(pickle.dumps(source))
    (tmp_path / "w").rename(tmp_path / "away")
    assert sorted(ids_of([r for s in pickle.loads(spans) for b in reader.read(s) for r in b.to_pylist()])) == list(
        range(50)
    )
    assert not (tmp_path / "w").exists()


@pytest.mark.slow
def test_racing_planners_take_every_file_once(tmp_path: Path) -> None:
    """Each has its own view of the directory, and its own limit."""
    directory = tmp_path / "in"
    directory.mkdir()
    sources = [
        source_over(directory, tmp_path / "w", "id INT", max_files_per_epoch=1),
        source_over(directory, tmp_path / "w", "id INT", max_rows_per_epoch=3),
        source_over(directory, tmp_path / "w", "id INT"),
    ]
    stop = threading.Event()

    def plan(source: FilesSource) -> None:
        position = source.initial()
        while not stop.is_set():
            position = source.latest(position, bounded=False)
            source.committed(position)

    threads = [threading.Thread(target=plan, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for number in range(150):
        arrive(directory, f"{number}.json", [number * 2, number * 2 + 1])
    stop.set()
    for thread in threads:
        thread.join()
    assert sorted(ids_of(everything(source_over(directory, tmp_path / "w", "id INT")))) == list(range(300))


@pytest.mark.parametrize("limit", [None, 3])
def test_compressed_files_are_read_whole(tmp_path: Path, limit: int | None) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.json.gz").write_bytes(gzip.compress(b'{"id":1}\n{"id":"x"}\n{"id":3}\n'))
    source = source_over(
        directory, tmp_path / "w", "id INT", on_bad_row="reject", max_rows_per_epoch=limit, block_size="10 B"
    )
    rows = everything(source)
    assert ids_of(good(rows)) == [1, 3]
    assert rejected(rows)[0]["position"] == "a.json.gz:2"
    assert source.size_between({"log": 0}, {"log": 1}) is None
    assert source.rows_between({"log": 0}, {"log": 1}) == limit


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("content", [b'{"id":1}\n', gzip.compress(b'{"id":1}\n' * 5000)[:-20]])
def test_a_compressed_file_that_is_none_is_an_error(tmp_path: Path, content: bytes, limit: int | None) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.json.gz").write_bytes(content)
    with pytest.raises(Corrupt, match="cannot be decompressed"):
        everything(source_over(directory, tmp_path / "w", "id INT", max_rows_per_epoch=limit))


@pytest.mark.parametrize("options", [{}, {"block_size": "20 B"}, {"max_rows_per_epoch": 3}])
def test_an_object_store_is_read_like_a_directory(tmp_path: Path, options: dict[str, Any]) -> None:
    system = fsspec.filesystem("memory")
    for number in range(4):
        system.pipe(f"/lake/in/{number}.json", b"".join(b'{"id":%d}\n' % (number * 5 + row) for row in range(5)))
    try:
        source = source_over("memory://lake/in", tmp_path / "w", "id INT", **options)
        end = source.latest(source.initial(), bounded=False)
        assert sorted(ids_of(everything(source))) == list(range(20))
        system.pipe("/lake/in/0.json", b"{}")
        (span,) = source.spans(source.initial(), end, parallelism=1)
        with pytest.raises(Corrupt, match=r"memory://lake/in/0\.json is not the file that was logged"):
            list(source.read(span))
    finally:
        system.rm("/lake", recursive=True)


def test_rows_of_a_source_with_rejects_may_be_null_and_have_the_hidden_column(tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a", [1])
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT NOT NULL", on_bad_row="reject")
    end = source.latest(source.initial(), bounded=False)
    (batch,) = [b for span in source.spans(source.initial(), end, parallelism=1) for b in source.read(span)]
    assert batch.schema.names == ["id", REJECT_COLUMN]
    assert all(field.nullable for field in batch.schema)
    assert source.spec.rejects


def test_one_file_can_be_a_source(tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a[1].json", [1])
    arrive(tmp_path / "in", "b.json", [2])
    assert ids_of(everything(source_over(tmp_path / "in" / "a[1].json", tmp_path / "w", "id INT"))) == [1]


def test_nothing_is_read_before_the_bad_row_is_reported(tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a.json", [1, 2])
    (tmp_path / "in" / "b.json").write_text('{"id":3}\n{"id":}\n')
    with pytest.raises(BadRow, match=r"b\.json, line 2"):
        everything(source_over(tmp_path / "in", tmp_path / "w", "id INT"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": ""},
        {"format": "avro"},
        {"on_bad_row": "skip"},
        {"start": "now"},
        {"min_age": "10"},
        {"block_size": "2 GB"},
        {"block_size": "0 B"},
        {"max_rows_per_epoch": 0},
        {"max_files_per_epoch": 1.5},
        {"schema": "id NONSENSE"},
        {"timestamp": "at"},
    ],
)
def test_arguments_that_make_no_sense_are_refused_while_building(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"path": "in", "schema": "id INT", "name": "source", **arguments}
    with pytest.raises(InvalidPipeline):
        read.files(**given)


def test_the_declaration_is_shown_without_this_machine(tmp_path: Path) -> None:
    spec = read.files("in", schema="id INT", name="source").node.spec
    assert spec.arguments()["path"] == "in"
    assert os.fspath(Path.cwd()) not in repr(spec.arguments())
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("format_name", ["json", "csv", "parquet"])
def test_a_bad_row_of_a_file_whose_name_is_not_utf8_is_rejected_or_named(tmp_path: Path, format_name: str) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    with open(os.fsencode(directory) + b"/na\xffme", "wb") as file:
        file.write(b"id\nx\n")
    options: dict[str, Any] = {"format": format_name}
    rows = everything(source_over(directory, tmp_path / "w", "id INT", on_bad_row="reject", **options))
    assert {one["position"].partition(":")[0] for one in rejected(rows)} == {"na\\xffme"}
    with pytest.raises(BadRow, match=r"na\\xffme") as error:
        everything(source_over(directory, tmp_path / "other", "id INT", **options))
    assert error.value.message.encode()


def test_a_name_that_is_no_text_stands_in_messages_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in" / os.fsdecode(b"\xff.json")
    arrive(tmp_path / "in", path.name, [1])
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    path.write_bytes(b'{"id":1}\n{"id":2}\n')
    with pytest.raises(Corrupt, match=r"in/\\xff\.json has 18 bytes") as error:
        source.latest(end, bounded=False)
    path.unlink()
    obstacle = source.spec.obstacle("source", str(tmp_path / "w"), source.initial(), end)
    assert r"in/\xff.json" in obstacle
    assert obstacle.encode()
    assert str(error.value).encode()
    nowhere = os.path.join(os.fspath(tmp_path), os.fsdecode(b"\xfe"))
    with pytest.raises(InvalidPipeline) as unknown:
        source_over(nowhere, tmp_path / "w2", "id INT").newest()
    assert str(unknown.value).encode()


def test_every_range_that_is_gone_is_named_with_its_positions_its_file_and_its_rows(tmp_path: Path) -> None:
    for name, count in {"a": 3, "b": 40, "c": 2, "d": 5, "e": 1, "f": 4}.items():
        arrive(tmp_path / "in", f"{name}.json", range(count))
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT", block_size="100 B", max_rows_per_epoch=10**6)
    end = source.latest(source.initial(), bounded=False)
    at = {name: [n for n, block in enumerate(source.blocks(source.initial(), end)) if block.name[0] == name]
          for name in "abcdef"}  # fmt: skip
    assert len(at["b"]) > 2
    spec, workspace = source.spec, str(tmp_path / "w")
    assert spec.obstacle("source", workspace, source.initial(), end) == ""
    for name in "bdf":
        (tmp_path / "in" / f"{name}.json").unlink()
    arrive(tmp_path / "in", "c.json", range(7))
    start = {"log": at["b"][1]}
    until = {"log": at["e"][0] + 1}
    said = spec.obstacle("source", workspace, start, until)
    rows = sum(block.row_count or 0 for block in source.blocks(start, {"log": at["b"][-1] + 1}))
    assert said.startswith("3 of its 4 files are gone, or are not as they were: ")
    assert f"positions {at['b'][1]} to {at['b'][-1]}, {tmp_path / 'in/b.json'} ({rows} rows): it is gone;" in said
    assert f"position {at['c'][0]}, {tmp_path / 'in/c.json'} (2 rows): it has " in said
    assert f"position {at['d'][0]}, {tmp_path / 'in/d.json'} (5 rows): it is gone." in said
    assert "f.json" not in said, "it lies behind what is wanted"


def test_of_many_files_that_are_gone_the_last_one_is_named_too(tmp_path: Path) -> None:
    for number in range(30):
        arrive(tmp_path / "in", f"{number:02}.json", [number])
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    for number in range(1, 30):
        (tmp_path / "in" / f"{number:02}.json").unlink()
    said = source.spec.obstacle("source", str(tmp_path / "w"), source.initial(), end)
    assert said.startswith("29 of its 30 files are gone")
    assert f"; and 9 more, up to position 29, {tmp_path / 'in/29.json'}." in said
    assert "(all 9 bytes): it is gone" in said
