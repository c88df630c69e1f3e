"""``holdfast dead-letters``: the rows that were isolated, and their replay through the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Checkpoint
from holdfast.clock import SystemClock
from holdfast.commit.records import Decided, Done
from holdfast.display.lines import utc
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Clock, Store
from holdfast.positions import Positions
from holdfast.quarantine.added import letters_of
from holdfast.quarantine.dead_letters import Letter, add_letters, ledger_of, read_letters, rejection, send_again
from holdfast.quarantine.mask import LETTERS, segments_of
from holdfast.store.paths import viewed_directory

app = typer.Typer(help="Show the rows that were isolated, or send them through the graph again.", no_args_is_help=True)


@app.command("list")
def list_letters(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show every dead letter: the row, its position, the error, and its status.  Changes nothing."""
    with frame.settings(as_json):
        letters = described(frame.existing_store(checkpoint), viewed_directory(checkpoint))
        if as_json:
            frame.print_json({"dead_letters": letters})
        else:
            frame.print_lines(letter_lines(letters))


@app.command("replay")
def replay_letters(
    checkpoint: Checkpoint,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LETTER]...", help="Names of dead letters. Default: all that were not sent again yet."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do it even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters through the graph again: each is part of one epoch of the next run."""
    with frame.settings(as_json):
        sent = replay(_store_to_write(checkpoint, force=force), viewed_directory(checkpoint), names or ())
        if as_json:
            frame.print_json({"replayed_at_next_start": [letter.name for letter in sent]})
        else:
            frame.print_lines(
                [*(letter.name for letter in sent), f"{len(sent)} dead letters are replayed by the next start."]
            )


@app.command("add")
def add_rows(
    checkpoint: Checkpoint,
    source: Annotated[str, typer.Option("--source", help="The source whose rows they become.")],
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Parquet files, JSON lines, or directories of these.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Do it even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep rows of a side output (late, shed, unmatched), or corrected ones, as dead letters: replay sends them."""
    with frame.settings(as_json):
        added = add(
            _store_to_write(checkpoint, force=force), viewed_directory(checkpoint), source, paths, SystemClock()
        )
        if as_json:
            frame.print_json({"added": [letter.name for letter in added]})
        else:
            frame.print_lines([*(letter.name for letter in added), f"{len(added)} rows are dead letters now."])


def _store_to_write(checkpoint: str, *, force: bool) -> Store:
    """Return the store of a checkpoint in which letters are changed; refuse it while a run is alive, unless forced."""
    if not force:
        why = "a start that isolates rows writes the letters too, and would undo what is noted here."
        frame.check_nobody_runs(frame.inspected(checkpoint, None).owner, why)
    return frame.existing_store(checkpoint)


# --- what the commands do and say ----------------------------------------------------------------------------------


def described(store: Store, directory: Path) -> list[dict[str, Any]]:
    """Return every letter as a JSON value, the row in readable form, with its status."""
    letters = read_letters(store)
    finished, retired = _finished(store, directory)
    ledger = ledger_of(store, letters)
    return [{**letter.described(), "standing": _standing(letter, ledger, finished, retired)} for letter in letters]


def letter_lines(letters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say every letter in words."""
    for letter in letters:
        yield f"{letter['name']}  epoch {letter['epoch']}, {utc(letter['at_us'])}, {letter['standing']}"
        yield f"  {letter['row']}"
        yield f"  {letter['error']['kind']}: {letter['error']['what']} {letter['error']['why']}"
    waiting = sum(letter["standing"] in ("left out", "added, not sent yet") for letter in letters)
    yield f"{len(letters)} dead letters, {waiting} of them not sent again."


def replay(store: Store, directory: Path, wanted: Sequence[str]) -> list[Letter]:
    """Record that letters are sent through the graph again at the next start; no run is alive.

    Raises
    ------
    InvalidPipeline
        If a name is that of no letter.
    """
    known = {letter.name for letter in read_letters(store)}
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidPipeline(
            f"there is no dead letter {unknown[0]!r}.",
            why="a letter is named source/segment/position/ordinal.",
            do="holdfast dead-letters list --checkpoint DIR shows them.",
        )
    if past := [letter.name for letter in read_letters(store) if letter.is_rejected and letter.name in wanted]:
        raise InvalidPipeline(
            f"dead letter {past[0]!r} cannot be sent through the graph again.",
            why="it is a row that came out of the graph: a sink has refused it, and the other sinks have the epoch.",
            do="write it into that sink's table by hand, corrected, where holdfast dead-letters list says that it is "
            "rejected; with --json it shows the values.",
        )
    if behind := [letter.name for letter in read_letters(store) if letter.is_behind_state and letter.name in wanted]:
        raise InvalidPipeline(
            f"dead letter {behind[0]!r} cannot be sent through the graph again.",
            why="it is a row that an operator with state gave: no source has such rows.",
            do="take it from holdfast dead-letters list --json, and let it come in, corrected, by a source of its own: "
            "hf.union of that and of what the operator gives.",
        )
    return send_again(store, wanted, _finished(store, directory)[0])


def add(store: Store, directory: Path, source: str, paths: Sequence[Path], clock: Clock) -> list[Letter]:
    """Keep the rows of files as letters of a source; return those that were none yet.

    Raises
    ------
    InvalidPipeline
        If the pipeline has no such source, it cannot be sent rows again, or a file holds no rows.
    """
    positions = _finished(store, directory)[0]
    if source not in positions:
        raise InvalidPipeline(
            f"the pipeline of this checkpoint has no source {source!r}.",
            why=f"it has: {', '.join(sorted(positions)) or 'none yet, as it has not run'}.",
            do="name the source that the rows came from.",
            participant=source,
        )
    segments_of(positions[source])
    return add_letters(store, letters_of(source, paths, clock.now_us()))


def _standing(
    letter: Letter, ledger: Mapping[int, Decided | Done], finished: Positions, retired: Collection[str]
) -> str:
    if letter.is_rejected:
        return rejection(letter, ledger).value
    if letter.is_behind_state:
        return "left out behind state"
    if letter.again is None:
        return "added, not sent yet" if letter.is_added else "left out"
    is_done = int(finished.get(letter.source, {}).get(LETTERS, 0)) > letter.again
    if is_done:
        return "replayed"
    return "to be replayed when its source is back" if letter.source in retired else "to be replayed at the next start"


def _finished(store: Store, directory: Path) -> tuple[Positions, Collection[str]]:
    """Return up to where epochs are finished, by Spark's newest directory; and the sources that it retired."""
    spark = directory / "spark" / str(newest_directory(store))
    batch_id = last_logged(spark, "commits")
    try:
        header = read_origin(spark / FILE_NAME)
        now = read_offsets(spark, batch_id).positions if batch_id >= 0 else header.start
    except Corrupt:
        return {}, ()
    return {**header.retired, **now}, header.retired.keys() - now.keys()
