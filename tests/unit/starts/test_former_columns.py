"""A start that cannot read which columns a sink had goes on: it notes them again, as the error of others says."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.schemas import note_schema, noted_schema
from holdfast.config import Settings
from holdfast.errors import Corrupt
from holdfast.starts import in_doubt
from holdfast.starts.in_doubt import resolve_with_former_columns
from holdfast.store.local import LocalStore

NOW = pa.schema([("id", pa.int64())])


@pytest.mark.parametrize("damage", [b"", b'{"arr', b"\x00" * 40])
def test_a_note_that_is_damaged_is_as_one_that_is_not_there(
    tmp_path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(str(tmp_path))
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="given")
    pipeline = hf.Pipeline("trips", rows | hf.write.sqlite(str(tmp_path / "t.db"), table="t", name="table"))
    note_schema(store, "table", NOW)
    (key,) = store.keys("schemas/")
    store.put(key, damage)
    with pytest.raises(Corrupt):
        noted_schema(store, "table")
    monkeypatch.setattr(in_doubt, "open_decisions", lambda _: {3: ("table",)})
    with caplog.at_level(logging.WARNING, logger="holdfast.run"):
        resolve_with_former_columns(pipeline, store, Settings(), {"table": NOW})
    assert "schemas/table.json" in caplog.text
