"""Commands, the columns that they leave, and rows cut at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.control.columns import EXTRA_TYPE, Columns, ControlColumns, pieces
from holdfast.connectors.control.commands import AddColumn, DropPartition, Widen, parsed
from holdfast.errors import BadRow, InvalidPipeline

DECLARED = pa.schema([("id", pa.int32()), ("day", pa.date32()), ("fare", pa.decimal128(8, 2))])
COLUMNS = Columns(DECLARED, roles=frozenset({"day"}))
CONTROL = ControlColumns("control", "extra")


def rows(*extra: dict[str, str | None] | None) -> pa.RecordBatch:
    count = len(extra)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int32()),
            pa.nulls(count, pa.date32()),
            pa.nulls(count, pa.decimal128(8, 2)),
            pa.nulls(count, pa.string()),
            pa.array([None if each is None else list(each.items()) for each in extra], EXTRA_TYPE),
        ],
        names=["id", "day", "fare", "control", "extra"],
    )


def test_what_the_functions_write_is_read_back() -> None:
    assert parsed(hf.control.add_column('"größe"', "decimal(10, 2)")) == AddColumn('"größe"', "decimal(10, 2)")
    assert parsed(hf.control.widen("id", "bigint")) == Widen("id", "bigint")
    assert parsed(hf.control.drop_partition(day="2026-01-01", hour=7, is_late=True, route=None)) == DropPartition(
        {"day": "2026-01-01", "hour": "7", "is_late": "true", "route": None}
    )


@pytest.mark.parametrize(
    "kind", ["text", "array<int>", "int not null", "int, b int", "interval day", "decimal(99, 2)", ""]
)
def test_a_type_that_no_column_can_have_is_refused_where_it_is_written_and_where_it_is_read(kind: str) -> None:
    with pytest.raises(InvalidPipeline, match="cannot be carried out"):
        hf.control.add_column("gust", kind)
    with pytest.raises(BadRow, match="cannot be carried out"):
        parsed(f'{{"do": "add_column", "column": "gust", "type": "{kind}"}}')


@pytest.mark.parametrize(
    "text",
    [
        "", "drop", "[]", "{}", '{"do": "drop_table"}', '{"do": "widen", "column": "id"}',
        '{"do": "drop_partition", "values": {}}', '{"do": "drop_partition", "values": {"day": 1}}',
        '{"do": "add_column", "column": "gust", "type": "double", "default": "0"}',
        '{"do": "drop_partition", "values": {"day": "\\u0000"}}',
        '{"do": "drop_partition", "values": {"\\ud800": "1"}}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_command_is_a_bad_row(text: str) -> None:
    with pytest.raises(BadRow, match="cannot be carried out"):
        parsed(text)


def test_columns_are_added_behind_and_widened_in_place() -> None:
    now = (
        COLUMNS.after(AddColumn("gust", "float")).after(Widen("gust", "double")).after(Widen("fare", "decimal(10, 3)"))
    )
    assert now.schema.names == ["id", "day", "fare", "gust"]
    assert now.schema.types == [pa.int32(), pa.date32(), pa.decimal128(10, 3), pa.float64()]
    assert now.version == 3


def test_a_command_that_finds_nothing_to_do_changes_nothing() -> None:
    now = COLUMNS.after(AddColumn("gust", "float"))
    assert now.after(AddColumn("gust", "float")) is now
    wider = now.after(Widen("gust", "double"))
    assert wider.after(AddColumn("gust", "float")) is wider
    assert now.after(AddColumn("id", "smallint")) is now, "the pipeline declares more"
    assert now.after(Widen("id", "int")) is now
    assert now.after(DropPartition({"day": "2026-01-01"})) is now


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (AddColumn("id", "bigint"), "there is a column 'id' already"),
        (AddColumn("ID", "int"), "there is a column 'id' already"),
        (AddColumn("__holdfast_row", "int"), "no column can be called"),
        (AddColumn(" ", "int"), "no column can be called"),
        (Widen("id", "smallint"), "not every value"),
        (Widen("id", "double"), "not every value"),
        (Widen("fare", "decimal(10, 5)"), "not every value"),
        (Widen("day", "timestamp"), "is a partition column"),
        (Widen("gust", "double"), "there is no column 'gust'"),
        (DropPartition({"week": "1"}), "there is no column 'week'"),
        (DropPartition({"day": "monday"}), "is no value of column 'day'"),
    ],
)
def test_a_command_that_does_not_fit_is_a_bad_row(command: AddColumn | Widen | DropPartition, why: str) -> None:
    with pytest.raises(BadRow, match=why):
        COLUMNS.after(command)


def test_a_change_that_the_pipeline_declares_meanwhile_is_none() -> None:
    declared = pa.schema([*DECLARED, ("gust", pa.float64())]).set(0, pa.field("id", pa.int64()))
    now = Columns(declared, changes=(AddColumn("gust", "float"), Widen("id", "bigint")))
    assert now.schema == declared


def test_extra_values_come_into_the_columns_that_were_added_or_widened() -> None:
    now = COLUMNS.after(AddColumn("gust", "double")).after(Widen("id", "bigint"))
    found = now.conformed(rows({"gust": "1"}, None, {"gust": None, "id": "8000000000"}, {}).slice(1), CONTROL)
    assert found.schema.names == ["id", "day", "fare", "gust"]
    assert found.column("id").to_pylist() == [1, 8_000_000_000, 3]
    assert found.column("gust").to_pylist() == [None, None, None]
    assert now.conformed(rows({"gust": "1.5"}), CONTROL).column("gust").to_pylist() == [1.5]


def test_extra_values_may_be_a_json_object_as_text() -> None:
    now = COLUMNS.after(AddColumn("gust", "double")).after(AddColumn("calm", "boolean"))
    texts = ['{"gust": 1.5, "calm": true}', None, '{"gust": "2", "calm": null}', "{}"]
    given = rows(*[None] * 4).set_column(4, "extra", pa.array(texts))
    found = now.conformed(given, CONTROL)
    assert found.column("gust").to_pylist() == [1.5, None, 2.0, None]
    assert found.column("calm").to_pylist() == [True, None, None, None]
    assert now.conformed(given.slice(1, 1), CONTROL).column("gust").to_pylist() == [None]
    for wrong in ("no", "[]", '{"gust": [1]}', "7", '{"gust": "\\ud800"}', "[" * 100_000):
        with pytest.raises(BadRow, match="cannot be read"):
            now.conformed(given.set_column(4, "extra", pa.array([wrong] * 4)), CONTROL)


def test_an_extra_value_that_has_no_place_makes_a_bad_row() -> None:
    with pytest.raises(BadRow, match="'gust', which the sink does not have at this place"):
        COLUMNS.conformed(rows(None, {"gust": "1"}), CONTROL)
    with pytest.raises(BadRow, match="no double"):
        COLUMNS.after(AddColumn("gust", "double")).conformed(rows({"gust": "calm"}), CONTROL)
    # Of a part of a batch, only what is in it.
    assert COLUMNS.conformed(rows({"gust": "1"}, None).slice(1), CONTROL).num_rows == 1


def test_rows_are_cut_at_commands_and_keep_their_order() -> None:
    commands = [hf.control.widen("id", "bigint"), hf.control.add_column("gust", "double")]
    texts = [None, None, commands[0], commands[1], None, commands[0]]
    batch = rows(*[None] * 6).set_column(3, "control", pa.array(texts, pa.string()))
    found = list(pieces(batch.slice(1), CONTROL))
    widen, gust = Widen("id", "bigint"), AddColumn("gust", "double")
    assert [each["id"].to_pylist() if isinstance(each, pa.RecordBatch) else each for each in found] == [
        [1], widen, gust, [4], widen,
    ]  # fmt: skip


def test_of_epochs_that_wait_no_row_is_left_out_for_a_later_one_of_its_key() -> None:
    """A command has no key: all commands of an epoch would be taken for one row."""
    arguments: dict[str, Any] = {"table": "t", "mode": "upsert", "key": ["id"], "commit_every": 10}
    plain, controlled = hf.write.sqlite("x.db", **arguments), hf.write.sqlite("x.db", **arguments, control="control")
    assert plain.pace is not None
    assert controlled.pace is not None
    assert (plain.pace.key, controlled.pace.key) == (("id",), ())


@pytest.mark.parametrize(
    "build",
    [
        lambda **given: hf.write.files("out", **given),
        lambda **given: hf.write.byte_stream("out", **given),
        lambda **given: hf.write.console(**given),
        lambda **given: hf.write.memory("rows", **given),
        lambda **given: hf.write.foreach_batch(print, **given),
    ],
)
def test_sinks_that_cannot_carry_out_commands_say_which_can(build: Callable[..., Any]) -> None:
    with pytest.raises(InvalidPipeline, match="write the stream to segments, postgres or sqlite"):
        build(control="control")


def test_wrong_arguments_are_refused_while_the_graph_is_built() -> None:
    with pytest.raises(InvalidPipeline, match="no meaning without control="):
        hf.write.sqlite("x.db", table="t", extra="extra")
    with pytest.raises(InvalidPipeline, match="the same column"):
        hf.write.sqlite("x.db", table="t", control="a", extra="a")
    with pytest.raises(InvalidPipeline, match="contradict each other"):
        hf.write.sqlite("x.db", table="t", control="a", rewindable=True)
    with pytest.raises(InvalidPipeline, match="not text"):
        ControlColumns("id").data("sink 'out'", DECLARED)
    with pytest.raises(InvalidPipeline, match="neither text nor a map"):
        ControlColumns("control", "id").data("sink 'out'", pa.schema([*DECLARED, ("control", pa.string())]))
