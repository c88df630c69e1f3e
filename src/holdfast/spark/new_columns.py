"""Columns that a run adds to the schema file of a source before it ends: the next start has them (design/0055)."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import faults
from holdfast.errors import BadRow, HoldfastError
from holdfast.store import durable
from holdfast.types.longer_schema import with_columns


def add_columns(error: HoldfastError) -> HoldfastError:
    """Return what a run ends with: where rows have members that a schema file is to have, it has them then.

    Parameters
    ----------
    error : HoldfastError
        Why the run ends.

    Notes
    -----
    A crash before the file is replaced leaves it as it was, and the next run meets the row again; after it, the next
    start has the columns.  The epoch is not decided in either case.
    """
    if not isinstance(error, BadRow) or not error.new_columns:
        return error
    columns, path = error.new_columns.split("\n"), os.path.realpath(error.schema_file)
    try:
        text = Path(path).read_text(encoding="utf-8")
        longer = with_columns(path, text, columns)
        if longer != text:
            mode = os.stat(path).st_mode
            durable.replace(path, longer.encode(), aside=os.path.dirname(path))
            os.chmod(path, mode)
        faults.reach("schema-file-longer", error.epoch or 0, error.pipeline)
    except (OSError, ValueError, HoldfastError) as reason:
        said = reason.what if isinstance(reason, HoldfastError) else str(reason)
        error.why = f"{error.why} Its columns cannot be added: {said.rstrip('.')}."
        error.args = (error.message,)
        return error
    names = ", ".join(columns)
    stopped = BadRow(
        f"{error.schema_file} has {'the column ' if len(columns) == 1 else 'the columns '}{names} now, and the run has "
        "stopped for that.",
        why=error.what,
        do="start again, with the pipeline built anew: no row of this epoch was taken, and each is read with "
        "them. holdfast run --supervise does so by itself.",
        pipeline=error.pipeline,
        participant=error.participant,
        epoch=error.epoch,
    )
    stopped.is_mended_by_start, stopped.schema_file = True, error.schema_file
    stopped.new_columns = error.new_columns if longer != text else ""
    stopped.__cause__ = error
    return stopped
