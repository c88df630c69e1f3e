"""What a step returns and which rows it receives, checked against what it declares; and what errors show of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.state.step import Change, Result, Step
from holdfast.state.tables import bounds_schema, empty, fitted, key_schema

_ROWS_SHOWN = 3


def check_result(operator: str, step: Step, result: Result) -> Result:
    """Return what a step returned, completed and under the declared schemas.

    Parameters
    ----------
    operator : str
        Name of the operator, for the error.
    step : Step
        What was declared.
    result : Result
        The actual value.

    Returns
    -------
    Result
        With every output present, and each table under exactly its declared schema.

    Raises
    ------
    InvalidPipeline
        If the result names an output or a state table that is not declared, or a table has other columns or types.
        The error names the operator and both schemas.
    """
    if not isinstance(result, Result):
        raise InvalidPipeline(
            f"the step of operator {operator!r} returned a {type(result).__name__}.",
            why="a step returns a Result.",
            do="write return Result(outputs={...}, changes={...}).",
            participant=operator,
        )
    _check_names(operator, "output", result.outputs, step.outputs)
    _check_names(operator, "state table", result.changes, step.tables)
    outputs = {
        name: _check(operator, f"output {name!r}", result.outputs[name], schema)
        if name in result.outputs
        else empty(schema)
        for name, schema in step.outputs.items()
    }
    changes = {
        name: Change(
            _check(operator, f"the upserts of state table {name!r}", change.upserts, step.tables[name].schema),
            _check(operator, f"the deletes of state table {name!r}", change.deletes, key_schema(step.tables[name])),
        )
        for name, change in result.changes.items()
    }
    bounds = result.bounds
    if bounds is not None:
        bounds = _check(operator, "the bounds", bounds, bounds_schema(step.key))
    return Result(outputs, changes, bounds, dict(result.counts), result.due_us, result.pts, result.fates)


def _check_names(operator: str, what: str, found: Mapping[str, object], declared: Mapping[str, object]) -> None:
    unknown = [name for name in found if name not in declared]
    if unknown:
        raise InvalidPipeline(
            f"the step of operator {operator!r} returned the {what} {unknown[0]!r}, which it does not declare.",
            why=f"it declares {', '.join(map(repr, declared)) or 'none'}.",
            do=f"declare it, or return one of the declared {what}s.",
            participant=operator,
        )


def _check(operator: str, what: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    if not isinstance(table, pa.Table):
        raise InvalidPipeline(
            f"{what} of the step of operator {operator!r} is a {type(table).__name__}.",
            why="tables go in and out as pyarrow.Table.",
            do="return a pyarrow.Table; a polars frame gives one with .to_arrow().",
            participant=operator,
        )
    if table.schema.names != schema.names or table.schema.types != schema.types:
        raise InvalidPipeline(
            f"{what} of the step of operator {operator!r} has another schema than declared.",
            why=f"declared: {spelled(schema)}; returned: {spelled(table.schema)}.",
            do="let the step return the declared columns in their order, or declare what it returns.",
            participant=operator,
        )
    return fitted(table, schema)


def require_distinct_columns(step: Step) -> None:
    """Check that no column of the rows has the name of one that the step adds beside it.

    Raises
    ------
    InvalidPipeline
        Naming the column; who builds the graph adds the operator.
    """
    schemas = {f"output {name!r}": schema for name, schema in step.outputs.items()}
    schemas |= {f"state table {name!r}": table.schema for name, table in step.tables.items()}
    for where, schema in schemas.items():
        twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
        if twice is not None:
            raise InvalidPipeline(
                f"{where} would have two columns {twice!r}.",
                why="a column of the rows has the name of one that the operator adds beside it.",
                do=f'give the column another name before: stream | hf.select("* except ({twice})", other="{twice}")',
            )


def spelled(schema: pa.Schema) -> str:
    """Return a schema on one line, for error texts."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def first_rows(table: pa.Table, count: int = _ROWS_SHOWN) -> str:
    """Return the first rows of a table on one line, for error texts; columns of our own are left out."""
    shown = [name for name in table.schema.names if not name.startswith("__")]
    rows = table.select(shown).slice(0, count).to_pylist()
    return "; ".join(", ".join(f"{name}={_short(value)}" for name, value in row.items()) for row in rows) or "no rows"


def _short(value: object) -> str:
    text = str(value) if isinstance(value, int | float) or value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def require_values(rows: pa.Table, columns: Sequence[str], source: str) -> None:
    """Check that key and timestamp columns have no null.

    Parameters
    ----------
    rows : pa.Table
        Rows of one input.
    columns : sequence of str
        Columns that need a value in every row.
    source : str
        Name of the input, for the error.

    Raises
    ------
    BadRow
        Naming the input, the column and the first such rows; who calls the step adds the operator.
    """
    for name in columns:
        column = rows.column(name)
        if column.null_count:
            bad = rows.filter(pc.is_null(column))
            raise BadRow(
                f"{bad.num_rows} row(s) of input {source!r} have no value in {name!r}.",
                why=f"a row without a key or a timestamp has no place in the order of time; the first: "
                f"{first_rows(bad)}.",
                do=f"declare {name} NOT NULL in the schema of the source, then such a row is a bad row (with "
                'on_bad_row="reject" a rejected one). Or drop such rows: '
                f'stream | hf.filter("{name} IS NOT NULL"); or give them a value.',
            )
