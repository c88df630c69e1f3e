"""What a reset of a sink says, and how a directory of ours goes (design/0042)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from holdfast.errors import InvalidPipeline
from holdfast.ports import Reset
from holdfast.store import durable

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
