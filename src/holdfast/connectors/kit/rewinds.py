"""What sinks that can withdraw rows share: which epoch a rewind goes back to, by its end, and why it cannot.

A SQL sink keeps the list of its ends in a table, in the transactions that publish (design/0012).

What a reset of a sink says, and how a directory of ours goes (design/0042).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from holdfast.connectors.kit.sql import RESERVED_PREFIX, LedgerRow, TableMode, positions_text
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.ports import EpochRecord, Reset, Withdrawal
from holdfast.positions import Positions
from holdfast.shards.naming import shard_of
from holdfast.store import durable

EPOCH = f"{RESERVED_PREFIX}_epoch"
"""Column of a rewindable table: shard and epoch that each row was published with, as :func:`stamp` says."""

_EPOCH_BITS = 48
"""Of the column's 64: three epochs a millisecond for three thousand years; the sign and 15 bits are left for shards."""

EPOCHS = "holdfast_epochs"
"""What a rewindable table holds: the end of each epoch, in the transaction that published it."""

EPOCHS_KEPT = 100_000
"""Of each sink; further back no rewind reaches."""


def no_epoch_column(node: str, table: str, ddl: str) -> InvalidPipeline:
    """Return the error of a rewindable sink whose table does not keep epochs."""
    return InvalidPipeline(
        f"{node}: table {table} has no column {EPOCH!r}.",
        why="rewindable=True stores the epoch of each row in it, and the table existed before.",
        do=f"add it: {ddl}; existing rows stay in every rewind. Or leave rewindable out.",
    )


def stamp(pipeline: str, epoch: int) -> int:
    """Return what the epoch's column holds in rows of a run: of shard 0, and without shards, the epoch itself.

    Examples
    --------
    >>> stamp("trips", 7), stamp("trips-2", 7) - stamp("trips-2", 0), stamp("trips-2", 0) >> 48
    (7, 7, 2)
    """
    return shard_of(pipeline)[1] << _EPOCH_BITS | epoch


def stamps_after(pipeline: str, epoch: int) -> tuple[int, int]:
    """Return the first and the last number that the column can hold of later epochs of the same run.

    Examples
    --------
    >>> first, last = stamps_after("trips-2", 7)
    >>> first - stamp("trips-2", 7), stamp("trips-3", 0) - last
    (1, 1)
    """
    return stamp(pipeline, epoch + 1), stamp(pipeline, (1 << _EPOCH_BITS) - 1)


def stamps(pipeline: str, epoch: int, count: int) -> pa.Array:
    """Return the column for as many rows."""
    return pa.repeat(pa.scalar(stamp(pipeline, epoch), pa.int64()), count)


def check_writers(node: str, table: str, ours: tuple[str, str], all_writers: Iterable[tuple[str, str]]) -> None:
    """Raise :class:`InvalidPipeline` if a rewindable sink writes the table that is none of our shards'.

    Epochs of two pipelines, or of two sinks, would be mixed; those of shards have their shard's number.

    Parameters
    ----------
    node, table : str
        For the error.
    ours : (str, str)
        Our pipeline and sink.
    all_writers : iterable of (str, str)
        Pipeline and sink of each rewindable sink of the table.
    """
    for pipeline, sink in all_writers:
        if (shard_of(pipeline)[0], sink) == (shard_of(ours[0])[0], ours[1]):
            continue
        raise InvalidPipeline(
            f"{node}: table {table} is the rewindable table of sink {sink!r} of pipeline {pipeline!r}.",
            why="a rewind finds rows by their epoch, and two writers count epochs separately.",
            do="give each a table of its own; or leave rewindable out here: such rows stay in every rewind.",
        )


def cannot_go_back(node: str, record: EpochRecord, epochs: Sequence[int]) -> Diverged:
    """Return the error of a decided rewind that a sink can no longer follow.  Nothing was changed."""
    return Diverged(
        f"{node}: it cannot go back to the end of epoch {record.rewound_to}.",
        why=f"{not_held(epochs)}; when the rewind was decided, one did: the sink was restored from a backup.",
        do="restore the sink, or the checkpoint and all sinks from the same moment, and start again.",
        pipeline=record.pipeline,
        participant=node,
        epoch=record.epoch,
    )


def declared(mode: TableMode) -> Withdrawal:
    """Return what a table withdraws as far as its mode says: an upsert has lost what it replaced."""
    if mode.mode == "append" and not mode.rewindable:
        return Withdrawal(obstacle="it is not declared rewindable=True")
    return Withdrawal(is_recomputed=mode.mode == "upsert")


def target_of(node: str, epochs: Mapping[int, str], record: EpochRecord) -> int:
    """Return the epoch after which a rewind withdraws everything.

    Raises
    ------
    Diverged
        If no epoch ended at the record's positions.
    """
    last = last_at(epochs, record.positions)
    if last is None:
        raise cannot_go_back(node, record, sorted(epochs))
    return last


def has_gap(epochs: Mapping[int, str], row: LedgerRow) -> bool:
    """Return whether a list of ends does not lead to what the sink holds.

    Then rows were published that the list does not know, while the sink was not rewindable or wrote to another table:
    they have no epoch, and would stay in a rewind to one before them.
    """
    return row.epoch > 0 and (not epochs or epochs[max(epochs)] != row.positions)


def leading(epochs: Mapping[int, str], row: LedgerRow) -> Mapping[int, str]:
    """Return the ends that a sink can go back to, as it will note them when it is opened."""
    return {row.epoch: row.positions} if has_gap(epochs, row) else epochs


def last_at(epochs: Mapping[int, str], to: Positions) -> int | None:
    """Return the last epoch that ended at exactly these positions; None where none did."""
    text = positions_text(to)
    return max((epoch for epoch, at in epochs.items() if at == text), default=None)


def not_held(epochs: Sequence[int]) -> str:
    """Return why a sink cannot go back to positions at which none of its epochs ended."""
    if not epochs:
        return "it records no ends of epochs: it was made rewindable after the epoch, or holds nothing"
    return f"none of its epochs ended there: those that it can go back to are between {epochs[0]} and {epochs[-1]}"


WRITTEN_AGAIN = "a run with a new checkpoint writes them again beside these"


def of_table(ours: Mapping[str, int], staged: Mapping[str, int], table: str, where: str, *, rows: bool) -> Reset:
    """Return what is said of a sink of SQL.

    Parameters
    ----------
    ours : mapping of str to int
        Table -> rows that go; with ``rows`` the target's among them.
    staged : mapping of str to int
        What is staged -> how many of them.
    table, where : str
        The target, and its database.
    rows : bool
        Whether the rows of the target go.

    Examples
    --------
    >>> of_table({"holdfast_ledger": 1, "t": 70_510}, {"staged tasks": 0}, "t", "in a.db", rows=True).removed
    ('1 row of holdfast_ledger in a.db', 'all 70,510 rows of t in a.db')
    """
    removed = [
        f"{'all ' if own == table else ''}{counted(count, 'row')} of {own} {where}"
        for own, count in ours.items()
        if count
    ]
    removed += [f"{count:,} {what} {where}" for what, count in staged.items() if count]
    stays = () if rows else (f"rows of {table} {where}: {WRITTEN_AGAIN}",)
    return Reset(tuple(removed), stays if removed else ())


def counted(count: int, what: str) -> str:
    """Return a number and a noun.

    Examples
    --------
    >>> counted(1, "row"), counted(2_000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def cannot_keep_rows(name: str, why: str) -> InvalidPipeline:
    """Return the error of a sink whose ledger holds rows, or says which there are."""
    return InvalidPipeline(
        f"sink {name!r}: its ledger cannot be removed without its rows.",
        why=f"{why}.",
        do="let the rows go too, without --keep-rows; or give the sink another name= and keep this one.",
        participant=name,
    )


def of_directory(own: str, files: Callable[[], Iterable[str]], where: str, *, rows: bool, is_dry_run: bool) -> Reset:
    """Remove what a sink keeps for itself in a directory, and the files that it has made visible.

    The durable writes: 1. its own directory is renamed: from then on it holds nothing, and a run that has it open can
    publish nothing more; 2. the files; 3. what was renamed.  After a crash the same call removes the rest.

    Parameters
    ----------
    own : str
        The sink's own directory.
    files : callable
        Lists its visible files: again once it can make no more visible.
    where : str
        Their directory, for people.
    rows, is_dry_run
        As of :class:`~holdfast.ports.ResettableSpec`.
    """
    aside = os.path.join(os.path.dirname(own), f".reset-{os.path.basename(own)}")
    with durable.explained(f"removing {own}"):
        visible = sorted(files())
        is_there = os.path.isdir(own) or os.path.isdir(aside)
        removed = [f"the log and what is staged, below {own}"] if is_there else []
        if rows and visible:
            removed.append(f"{counted(len(visible), 'file')} in {where}")
        stays = [f"{counted(len(visible), 'file')} in {where}: {WRITTEN_AGAIN}"] if visible and not rows else []
        if is_dry_run:
            return Reset(tuple(removed), tuple(stays))
        if os.path.isdir(aside):  # of one that was killed
            shutil.rmtree(aside)
        if os.path.isdir(own):
            os.rename(own, aside)
            durable.sync_directory(os.path.dirname(own))
        for path in files() if rows else ():
            with suppress(FileNotFoundError):
                os.unlink(path)
        if os.path.isdir(aside):
            shutil.rmtree(aside)
    return Reset(tuple(removed), tuple(stays))
