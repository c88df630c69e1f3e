"""Spark's own files: what is whole, what is cut, and what the error says; without a JVM."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from holdfast.checkpoint.spark_log import (
    check_logs,
    form_of,
    moved,
    newest_positions,
    places_in,
    read_offsets,
    remove_unfinished,
)
from holdfast.errors import Corrupt
from holdfast.positions import covers_all

OFFSET = 'v2\n{"batchTimestampMs":1}\nrows:{"positions": {"log": 7}, "size_bytes": 10, "row_count": 1}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def written(path: Path, text: str, *, sums: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(data)
    if sums:
        chunks = [data[at : at + 512] for at in range(0, len(data), 512)]
        beside = struct.pack(">4sI", b"crc\0", 512) + b"".join(struct.pack(">I", zlib.crc32(each)) for each in chunks)
        path.with_name(f".{path.name}.crc").write_bytes(beside)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    written(tmp_path / "metadata", '{"id":"x"}')
    for number in (8, 9, 10):
        written(tmp_path / f"offsets/{number}", OFFSET + "\n" + "x:" * 400)
        written(tmp_path / f"commits/{number}", COMMIT)
    return tmp_path


def test_whole_files_are_whole_and_none_is_fine(checkpoint: Path, tmp_path: Path) -> None:
    check_logs(checkpoint)
    check_logs(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["metadata", "offsets/10", "offsets/9", "commits/10", "commits/9"])
def test_a_cut_file_is_named_with_the_cure(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Corrupt) as caught:
        check_logs(checkpoint)
    assert str(path) in caught.value.what
    assert "its checksum does not fit its bytes." in caught.value.why
    assert f"remove the directory {checkpoint}:" in caught.value.do


@pytest.mark.parametrize("name", ["metadata", "offsets/9"])
def test_a_file_that_is_missing_is_named_too(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(Corrupt) as caught:
        check_logs(checkpoint)
    assert str(checkpoint / name) in caught.value.what


def test_a_commit_that_is_missing_is_an_epoch_that_spark_does_again(checkpoint: Path) -> None:
    (checkpoint / "commits/10").unlink()
    (checkpoint / "commits/9").unlink()
    check_logs(checkpoint)


@pytest.mark.parametrize(
    ("name", "text"),
    [("metadata", ""), ("offsets/10", ""), ("offsets/10", OFFSET[:-5]), ("commits/10", "v1"), ("commits/10", "v1\n{")],
)
def test_a_file_system_without_checksums_shows_what_is_cut_too(checkpoint: Path, name: str, text: str) -> None:
    written(checkpoint / name, text, sums=False)
    (checkpoint / name).with_name(f".{Path(name).name}.crc").unlink()
    with pytest.raises(Corrupt):
        check_logs(checkpoint)


def test_what_spark_does_not_read_at_a_start_is_not_looked_at(checkpoint: Path) -> None:
    for cut in (b"", b"v2\n"):
        (checkpoint / "offsets/8").write_bytes(cut)
        check_logs(checkpoint)
        with pytest.raises(Corrupt, match="offsets/8"):
            read_offsets(checkpoint, 8)


def placed(*names: str) -> str:
    """Return an entry of a Spark that logs positions by place, each of which says whose it is."""
    offsets = [f'{{"positions": {{"log": {at}}}, "size_bytes": 1, "row_count": 1, "source": "{name}"}}'
               for at, name in enumerate(names)]  # fmt: skip
    return "\n".join(["v1", '{"batchTimestampMs":1}', *offsets])


def test_positions_by_place_are_read_under_the_names_that_they_have_in_themselves(tmp_path: Path) -> None:
    written(tmp_path / "metadata", "{}")
    written(tmp_path / "offsets/0", placed("rows", "more"))
    check_logs(tmp_path)
    assert read_offsets(tmp_path, 0).positions == {"rows": {"log": 0}, "more": {"log": 1}}
    assert newest_positions(tmp_path) == {"rows": {"log": 0}, "more": {"log": 1}}


def test_the_places_are_those_of_the_newest_entry(tmp_path: Path) -> None:
    assert (form_of(tmp_path), places_in(tmp_path)) == ("", [])
    written(tmp_path / "offsets/0", placed("rows", "more"))
    assert (form_of(tmp_path), places_in(tmp_path)) == ("v1", ["rows", "more"])
    written(tmp_path / "offsets/1", placed("more", "rows"))
    assert places_in(tmp_path) == ["more", "rows"]
    written(tmp_path / "offsets/2", OFFSET)
    assert (form_of(tmp_path), places_in(tmp_path)) == ("v2", [])
    written(tmp_path / "offsets/3", placed("rows")[:-4])
    assert places_in(tmp_path) == [], "who reads its positions says that it is damaged"


@pytest.mark.parametrize(
    "line", ['{"positions": {"log": 7}, "size_bytes": 10, "row_count": 1}', '{"logOffset": 3}', "-"]
)
def test_positions_by_place_that_do_not_say_whose_they_are_are_refused(tmp_path: Path, line: str) -> None:
    """Of another program's query, or of Spark's own sources: which is whose, nobody knows."""
    written(tmp_path / "offsets/0", f'v1\n{{"batchTimestampMs":1}}\n{line}')
    with pytest.raises(Corrupt) as refused:
        read_offsets(tmp_path, 0)
    assert "do not say of which source they are" in refused.value.why


def test_an_epoch_without_rows_has_positions_that_the_one_before_does_not_cover(tmp_path: Path) -> None:
    """Or a run that begins with it would find every sink holding it, and its rows would reach none of them."""
    offset = '{"positions": {"log": 7}, "size_bytes": 10, "row_count": 1'
    for number, more in enumerate(["", ', "has_ended": true', ', "has_ended": true, "ticks": 1']):
        written(tmp_path / f"offsets/{number}", f'v2\n{{"batchTimestampMs":1}}\nrows:{offset}{more}}}')
    before, ended, ticked = [read_offsets(tmp_path, number).positions for number in range(3)]
    assert not covers_all(before, ended)
    assert not covers_all(ended, ticked)
    assert covers_all(ticked, ended)
    assert moved(before, ticked) == []


@pytest.mark.parametrize("how", [b"", b"v2\n{}"])
@pytest.mark.parametrize("name", ["state/0/_metadata/v2/14", "state/1/_stateSchema/default/0_ab"])
def test_what_spark_reads_of_an_operator_before_its_state_is_looked_at(checkpoint: Path, name: str, how: bytes) -> None:
    for each in ("state/0/_metadata/v2/4", "state/0/_metadata/v2/14", "state/1/_stateSchema/default/0_ab"):
        written(checkpoint / each, "v2\n{a form of Spark's own")
    (checkpoint / "state/0/_metadata/v2/4").write_bytes(b"older")
    check_logs(checkpoint)
    (checkpoint / name).write_bytes(how)
    with pytest.raises(Corrupt) as caught:
        check_logs(checkpoint)
    assert str(checkpoint / name) in caught.value.what


def test_what_is_left_of_the_first_entry_is_removed_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    def hidden(directory: Path) -> list[str]:
        return sorted(path.name for path in (directory / "offsets").iterdir() if path.name.startswith("."))

    new = tmp_path / "new"
    for directory in (new, checkpoint):
        written(directory / "offsets/.0.5e1d.tmp", "")
    before = hidden(checkpoint)
    for directory in (new, checkpoint, tmp_path / "nothing"):
        remove_unfinished(directory)
    assert hidden(new) == []
    assert hidden(checkpoint) == before
