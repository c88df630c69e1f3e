"""What a comparison of a sink with its expected content found: counts, examples, and the rows of a repair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.ports import HASH_COLUMN, PLACE_COLUMN
from holdfast.positions import Positions
from holdfast.reconcile.comparison import ContentComparison, surplus
from holdfast.types import canonical


@dataclass(frozen=True)
class Reconciled:
    """What was found, and what was done.

    Parameters
    ----------
    sink : str
        The sink.
    epoch : int
        The last one that it holds.
    positions : Positions
        Up to where both sides were compared.
    expected_count, actual_count : int
        Rows on either side, exactly.
    missing_count : int
        Rows that the sink lacks.
    extra_count : int
        Rows that it has in excess.
    changed_count : int
        Rows that are there with other values, by their key or their id; in neither of the two counts above.  0 where
        rows have neither.
    refused_count : int
        Rows that it lacks because it refused them, as dead letters say; in none of these counts.
    fetched_count : int
        Rows that were fetched from the sink to find that.
    examples : sequence of (str, dict, dict)
        Some of them: ``"missing"``, ``"extra"`` or ``"changed"``; the row that should be there, and the one that is.
    left_out : tuple of (str, str)
        Columns, and what the sink does not keep of their values: that was not compared.
    expected_from : str
        What the expected content was computed from.
    duration_s : float
        Since the command began, including the time to compute what the sink should hold.
    repaired_count : int, optional
        Rows that were removed and written; None where nothing was to be repaired.
    shard_count : int
        Of how many shards it holds rows.  Of several ``epoch`` is the highest: each counts its own.
    """

    sink: str
    epoch: int
    positions: Positions
    expected_count: int
    actual_count: int
    missing_count: int
    extra_count: int
    changed_count: int
    refused_count: int
    fetched_count: int
    examples: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]
    left_out: tuple[tuple[str, str], ...]
    expected_from: str
    duration_s: float = 0.0
    repaired_count: int | None = None
    shard_count: int = 1

    @property
    def is_equal(self) -> bool:
        """Whether the sink holds what it should."""
        return not (self.missing_count or self.extra_count or self.changed_count)


@dataclass(frozen=True)
class Differences:
    """The rows in which two contents differ.

    Parameters
    ----------
    missing, extra : pyarrow.Table
        As those of :class:`~holdfast.reconcile.comparison.RowDifference`, all of them.
    same : tuple of (int, int)
        Rows of both that are the same row with other values.
    fetched_count : int
        Rows that were fetched from the sink.
    refused_count : int
        Rows that lack because the sink refused them; not among the missing.
    """

    missing: pa.Table
    extra: pa.Table
    same: tuple[tuple[int, int], ...]
    fetched_count: int
    refused_count: int = 0

    def removed(self, key: Sequence[str]) -> pa.Table:
        """Return the rows that a repair removes; by a key, those that changed are written over, not removed.

        So a column that is not the pipeline's keeps its value, and rows that refer to them stay.
        """
        if not key or not self.same:
            return self.extra
        return self.extra.take(pa.array(np.setdiff1d(np.arange(self.extra.num_rows), [at for _, at in self.same])))

    def examples(self, count: int) -> Iterable[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield at most so many of each kind."""
        missing, extra = ({at for at, _ in self.same}, {at for _, at in self.same})
        for at, other in self.same[:count]:
            yield "changed", _row(self.missing, at), _row(self.extra, other)
        for at in _others(self.missing.num_rows, missing, count):
            yield "missing", _row(self.missing, at), {}
        for at in _others(self.extra.num_rows, extra, count):
            yield "extra", {}, _row(self.extra, at)


def differences(
    compared: ContentComparison,
    columns: Sequence[str],
    refused: Sequence[pa.Table] = (),
    *,
    key: Sequence[str] = (),
) -> Differences:
    """Fetch and compare the rows of the buckets that differ.

    Parameters
    ----------
    compared : ContentComparison
        The two contents.
    columns : sequence of str
        By which a row is known: the key of an upsert, or the id; empty: only equal rows are the same.
    refused : sequence of pyarrow.Table
        Rows that the sink has refused, and need not hold.
    key : sequence of str
        Of an upsert: where the sink has refused a row, it rightly holds the one before it.
    """
    parts = list(compared.differences())
    missing = pa.concat_tables([compared.no_rows, *(each.missing for each in parts)])
    extra = pa.concat_tables([compared.no_rows, *(each.extra for each in parts)])
    wanted = without_refused(missing, refused, compared)
    if key and wanted.num_rows < missing.num_rows:
        extra = _without_replaced(extra, missing, wanted, key)
    same, fetched = _same(wanted, extra, columns), sum(each.fetched_count for each in parts)
    return Differences(wanted, extra, same, fetched, missing.num_rows - wanted.num_rows)


def left_out(compared: ContentComparison) -> tuple[tuple[str, str], ...]:
    """Return which distinctions between values were not looked for."""
    return tuple(sorted((loss.column, loss.kind.value) for loss in compared.losses))


def without_refused(missing: pa.Table, refused: Sequence[pa.Table], compared: ContentComparison) -> pa.Table:
    """Return rows without those that were refused, each as often as it was; of other columns it was another row."""
    columns = [name for name in missing.schema.names if name not in (PLACE_COLUMN, HASH_COLUMN)]
    schema = pa.schema([missing.schema.field(name) for name in columns])
    hashes = [np.empty(0, np.uint64)]
    for each in refused if missing.num_rows else ():
        with suppress(KeyError, pa.ArrowException):
            rows = each.select(columns).cast(schema)
            hashes += [canonical.row_hashes(batch, columns, compared.losses) for batch in rows.to_batches()]
    return missing.take(pa.array(surplus(missing.column(HASH_COLUMN).to_numpy(), np.concatenate(hashes))))


def _without_replaced(extra: pa.Table, missing: pa.Table, wanted: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return rows that are too many without those that a refused row was to replace."""
    if not extra.num_rows:
        return extra
    is_refused = np.isin(_known_by(missing, key), _known_by(wanted, key) if wanted.num_rows else (), invert=True)
    return extra.filter(pa.array(~np.isin(_known_by(extra, key), _known_by(missing, key)[is_refused])))


def _same(missing: pa.Table, extra: pa.Table, columns: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Pair rows of equal columns, each at most once."""
    if not columns or not missing.num_rows or not extra.num_rows:
        return ()
    ours, theirs = (_known_by(rows, columns) for rows in (missing, extra))
    paired = np.setdiff1d(np.arange(len(ours)), surplus(ours, theirs))
    also = np.setdiff1d(np.arange(len(theirs)), surplus(theirs, ours))
    first = paired[np.argsort(ours[paired], kind="stable")]
    second = also[np.argsort(theirs[also], kind="stable")]
    return tuple(zip(first.tolist(), second.tolist(), strict=True))


def _known_by(rows: pa.Table, columns: Sequence[str]) -> np.ndarray:
    (batch,) = rows.select(list(columns)).combine_chunks().to_batches()
    return canonical.row_hashes(batch, columns)


def _others(count: int, paired: set[int], wanted: int) -> list[int]:
    found: list[int] = []
    for at in range(count):
        if len(found) == wanted:
            break
        if at not in paired:
            found.append(at)
    return found


def _row(rows: pa.Table, at: int) -> dict[str, Any]:
    (found,) = rows.slice(at, 1).drop_columns([PLACE_COLUMN, HASH_COLUMN]).to_pylist()
    return dict(found)
