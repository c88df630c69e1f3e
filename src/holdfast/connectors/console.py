"""Console: the first rows of each epoch as a table on the terminal; at-least-once.

It has no ledger: it cannot be asked what has been printed.  An epoch that is replayed after a crash is printed again.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import faults
from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kit.handle_rows import HandleWriterFactory, batches_of, check_carried
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.ports import Guarantee, Held, Outcome, Publication, RunIdentity, Sink

_CELL_LENGTH_MAX = 200


def console(
    *, limit: int = 20, control: None = None, name: str | None = None, freshness: str | None = None
) -> nodes.SinkNode:
    """Print the first rows of each epoch.

    Parameters
    ----------
    limit : int
        Rows printed per epoch, at most; the others are counted.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The node's name.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Notes
    -----
    At-least-once: after a crash an epoch may be printed twice.
    """
    with building("sink", name):
        check_no_control("write.console", control)
        spec = ConsoleSpec(limit)
    return nodes.sink(spec, name=name, freshness=freshness)


@dataclass(frozen=True)
class ConsoleSpec:
    """Declaration of a console sink; parameters as :func:`console`."""

    limit: int = 20

    kind = "console"
    guarantee = Guarantee.AT_LEAST_ONCE

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise InvalidPipeline(f"write.console: limit={self.limit!r} is not a number of rows.", do="write limit=20.")

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        return {"limit": self.limit}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do."""

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ConsoleSink:
        """Return the sink."""
        return ConsoleSink(name, schema, self.limit)


class ConsoleSink:
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    stream : text stream, optional
        Where the rows go; standard output when None, as it is at the time of printing.
    """

    guarantee = Guarantee.AT_LEAST_ONCE
    staging = "first rows in the handles"

    def __init__(self, name: str, schema: pa.Schema, limit: int, *, stream: TextIO | None = None) -> None:
        self.name = name
        self._schema = schema
        self._limit = limit
        self._stream = stream
        self._epoch = 0

    def open(self, run: RunIdentity) -> Held:
        """Return that nothing is held: a terminal cannot be asked."""
        return Held()

    def writer_factory(self) -> HandleWriterFactory:
        """Return the factory that executors call."""
        return HandleWriterFactory(self._schema, self._limit)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows fit: nothing else is refused here."""
        check_carried(publication, self._schema)
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Print the epochs that this run has not printed yet."""
        for publication in publications:
            epoch = publication.record.epoch
            if epoch <= self._epoch:
                continue
            self._print(publication)
            faults.reach("publish-uncommitted", epoch, publication.record.pipeline)
            self._epoch = epoch

    def outcome(self, epoch: int) -> Outcome:
        """Answer for this run alone."""
        return Outcome.PUBLISHED if epoch <= self._epoch else Outcome.ABSENT

    def sweep(self, *, below_epoch: int) -> int:
        """There are no orphans."""
        return 0

    def close(self) -> None:
        """Nothing is held open."""

    def _print(self, publication: Publication) -> None:
        if not publication.row_count:
            return
        rows = pa.Table.from_batches(batches_of(publication, self._schema), schema=self._schema).slice(0, self._limit)
        title = f"{self.name} · epoch {publication.record.epoch} · {_counted(rows.num_rows, publication.row_count)}"
        table = Table()
        for field in self._schema:
            table.add_column(Text(field.name), justify="right" if _is_number(field.type) else "left")
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            table.add_row(*map(_cell, row))
        stream = self._stream or sys.stdout
        terminal = Console(file=stream)
        terminal.print(Text(title, style="bold"), soft_wrap=True)
        terminal.print(table)
        stream.flush()


def _counted(shown: int, total: int) -> str:
    plural = "row" if total == 1 else "rows"
    return f"{total} {plural}" if shown == total else f"{shown} of {total} {plural}"


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    # Text, not str: rows may hold what looks like markup.
    text = str(value)
    return Text(text if len(text) <= _CELL_LENGTH_MAX else f"{text[:_CELL_LENGTH_MAX]}…")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
