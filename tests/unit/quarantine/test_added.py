"""Rows of a side output are made dead letters, and are sent through the graph as these are, each once
(design/0013, section 4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader
from holdfast.cli.app import app
from holdfast.cli.dead_letters import described
from holdfast.quarantine.added import letters_of
from holdfast.quarantine.dead_letters import DeadLetters, add_letters, masks_of, read_letters, send_again
from holdfast.quarantine.mask import LETTERS, lettered
from holdfast.store.local import LocalStore
from holdfast.testing.drive import drive
from holdfast.testing.given import bound, close

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def late_rows() -> list[dict[str, Any]]:
    cameras = hf.read.rows([], schema=SCHEMA, timestamp="t", name="cameras")
    once = cameras | hf.distinct(by="k", horizon=1, disorder=0, name="once")
    items: list[Any] = [{"k": "a", "t": 9, "v": 1}, {"k": "a", "t": 3, "v": 2}, bound(20), {"k": "b", "t": 5, "v": 3}]
    return [row for epoch in drive(once.late, {"cameras": [items, [close()]]}) for row in epoch]


LATE = [{"k": "a", "t": 3, "v": 2}, {"k": "b", "t": 5, "v": 3}]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late.parquet", "late.jsonl", "late.json"])
def test_rows_of_a_side_output_become_letters_of_the_source_as_they_came(tmp_path, name):
    found = letters_of("cameras", [written(tmp_path / name, late_rows())], 7)
    assert [letter.table.to_pylist() for letter in found] == [[row] for row in LATE]
    assert [letter.error["why"] for letter in found] == [row["reason"] for row in late_rows()]
    assert all(letter.is_added and letter.again is None for letter in found)


def test_a_row_without_a_reason_is_itself(tmp_path):
    (letter,) = letters_of("cameras", [written(tmp_path / "corrected.jsonl", [LATE[0]])], 7)
    assert letter.table.to_pylist() == [LATE[0]]


@pytest.mark.slow
def test_of_a_directory_that_a_sink_wrote_the_files_of_rows_are_taken(tmp_path):
    for name in ("k=a/1.parquet", "k=b/2.parquet", "_staging/3.parquet", ".hidden/4.parquet", "ledger.txt"):
        written(tmp_path / name, late_rows()[:1] if name != "k=b/2.parquet" else late_rows()[1:])
    assert [letter.table.to_pylist() for letter in letters_of("cameras", [tmp_path], 7)] == [[row] for row in LATE]


def test_a_file_that_is_given_again_adds_nothing_whatever_it_is_called(tmp_path):
    store = LocalStore(str(tmp_path / "ckpt"))
    file = written(tmp_path / "late.parquet", late_rows())
    assert len(add_letters(store, letters_of("cameras", [file], 1))) == 2
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(file.read_bytes())
    assert add_letters(store, letters_of("cameras", [copy, file], 2)) == []
    assert len(read_letters(store)) == 2


def test_two_equal_rows_of_a_file_are_two_rows(tmp_path):
    store = LocalStore(str(tmp_path / "ckpt"))
    assert len(add_letters(store, letters_of("cameras", [written(tmp_path / "x.jsonl", [LATE[0]] * 2)], 1))) == 2


def test_added_rows_are_read_once_behind_the_source_which_lacks_nothing(tmp_path):
    store = LocalStore(str(tmp_path / "ckpt"))
    add_letters(store, letters_of("cameras", [written(tmp_path / "late.parquet", late_rows())], 1))
    send_again(store, (), {})
    started = DeadLetters(store, 3, isolates=False)  # a start copies them under its own generation
    own = [{"k": "c", "t": t, "v": 0} for t in range(4)]
    node = hf.read.rows([own], schema=SCHEMA, timestamp="t", name="cameras").node
    started.fit([node], {})
    source = lettered(node.source_spec.open("cameras", str(tmp_path)), started.masks()["cameras"])
    end = source.latest(source.initial(), bounded=True)
    assert end[LETTERS] == 2
    rows = [
        row
        for span in source.spans(source.initial(), end, parallelism=2)
        for batch in source.read(span)
        for row in batch.to_pylist()
    ]
    assert rows == [*own, *LATE]
    assert list(source.spans(end, source.latest(end, bounded=True), parallelism=2)) == []


def test_nothing_is_left_out_of_the_source_for_an_added_row(tmp_path):
    found = letters_of("cameras", [written(tmp_path / "late.parquet", late_rows())], 1)
    assert masks_of(found)["cameras"].left_out == frozenset()


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("rejects.jsonl", [{"reason": "no JSON", "raw": "{", "position": "x:1"}], "correct them"),
        ("late.csv", [LATE[0]], "rows are read from .parquet, .json, .jsonl"),
        ("late.parquet", [{"timestamp": 1, "input": "gone", "reason": "x"}], "there are: timestamp, input, reason"),
    ],
)
def test_a_file_of_which_no_rows_can_be_made_is_refused(tmp_path, name, rows, said):
    with pytest.raises(hf.InvalidPipeline, match=said):
        letters_of("cameras", [written(tmp_path / name, rows)], 1)


def test_a_file_that_is_not_there_or_no_parquet_is_refused(tmp_path):
    (tmp_path / "broken.parquet").write_text("nothing")
    for name in ("gone.parquet", "broken.parquet"):
        with pytest.raises(hf.InvalidPipeline, match=name):
            letters_of("cameras", [tmp_path / name], 1)


def typed(*words: Any) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.slow
def test_the_command_adds_says_so_and_a_source_that_there_is_not_is_refused(tmp_path):
    store = LocalStore(str(tmp_path / "ckpt"))
    origin = DirectoryHeader(7, ({"cameras": {"rows": 5}, "opaque": {"": "{}"}},))
    store.put(f"spark/1/{FILE_NAME}", origin.to_json())
    file = written(tmp_path / "late.parquet", late_rows())
    answer = typed("dead-letters", "add", file, "--source", "cameras", "--checkpoint", tmp_path / "ckpt", "--force")
    assert answer.stdout.endswith("2 rows are dead letters now.\n"), answer.output
    standings = [one["standing"] for one in described(store, tmp_path / "ckpt")]
    assert standings == ["added, not sent yet"] * 2
    for source, said in (("radars", "it has: cameras, opaque"), ("opaque", "positions are numbers")):
        answer = typed("dead-letters", "add", file, "--source", source, "--checkpoint", tmp_path / "ckpt", "--force")
        assert (answer.exit_code, said in answer.stderr) == (2, True), answer.output
    assert typed("dead-letters", "replay", "--checkpoint", tmp_path / "ckpt", "--force").exit_code == 0
    assert [one["standing"] for one in described(store, tmp_path / "ckpt")] == ["to be replayed at the next start"] * 2
