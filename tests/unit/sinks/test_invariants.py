"""What sinks promise of their own ledgers: said at once, before anything is written, where it does not hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors import memory
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.sqlite.dialect import SQLITE
from holdfast.errors import InternalError
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink
from tests.specs import sqlite_spec

SCHEMA = pa.schema([("id", pa.int64())])


def publication(epoch: int) -> Publication:
    record = EpochRecord("words", epoch, 1, {"lines": {"log": epoch}})
    return Publication(record, (Carried(pa.table({"id": [epoch]}, schema=SCHEMA)),))


def sqlite_sink(path: Path) -> Sink:
    return sqlite_spec(str(path / "words.db"), "words").connect("words", "words", SCHEMA)


def files_sink(path: Path) -> Sink:
    return FilesSinkSpec(str(path / "words")).connect("words", "words", SCHEMA)


def memory_sink(path: Path) -> Sink:
    memory.clear("words")
    return memory.MemorySpec("words").connect("words", "words", SCHEMA)


@pytest.mark.parametrize("connect", [sqlite_sink, files_sink, memory_sink])
def test_epochs_that_do_not_ascend_are_not_published(connect: Callable[[Path], Sink], tmp_path: Path) -> None:
    sink = connect(tmp_path)
    sink.open(RunIdentity("words", 1))
    sink.publish([publication(1)], Held())
    for given in ([publication(3), publication(2)], [publication(2), publication(2)]):
        with pytest.raises(InternalError, match=r"is to publish \[\d, 2\] after epoch 1"):
            sink.publish(given, Held())
    assert sink.open(RunIdentity("words", 2)).epoch == 1


def test_an_entry_of_the_files_log_grows_in_number_generation_and_epoch(tmp_path: Path) -> None:
    sink = FilesSinkSpec(str(tmp_path / "words")).connect("words", "words", SCHEMA)
    sink.open(RunIdentity("words", 2))
    sink.publish([publication(1)], Held())
    last = sink._last()
    following = replace(last, number=last.number + 1, renames=())
    for wrong in (
        replace(following, number=last.number),
        replace(following, number=last.number + 2),
        replace(following, generation=1),
        replace(following, epoch=0),
    ):
        with pytest.raises(InternalError, match="only grow"):
            sink._append(wrong, last)
    with pytest.raises(InternalError, match="before the renames of the one before"):
        sink._append(replace(following, number=last.number + 2), replace(last, number=last.number + 1))
    assert sink._last() == last


def test_the_list_of_epochs_of_a_sqlite_table_changes_in_a_transaction_only(tmp_path: Path) -> None:
    sink: Any = sqlite_spec(str(tmp_path / "words.db"), "words", rewindable=True).connect("words", "words", SCHEMA)
    sink.open(RunIdentity("words", 1))
    connection = sqlite3.connect(tmp_path / "words.db", isolation_level=None)
    book = SqlBook(SQLITE, "words", "words")
    with pytest.raises(InternalError, match="outside the transaction"):
        book.note_epoch(connection, sink._table, 1, {})
    connection.execute("BEGIN")
    book.note_epoch(connection, sink._table, 1, {})
    connection.close()
    sink.close()
