"""``holdfast dead-letters``: the rows that were isolated, and their replay through the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Checkpoint, ShownShard
from holdfast.clock import SystemClock
from holdfast.commit.owner import noted_owner
from holdfast.commit.records import Decided, Done
from holdfast.controller.checks import check_shard
from holdfast.display.lines import utc
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Clock, Store
from holdfast.positions import Positions
from holdfast.quarantine.added import letters_of
from holdfast.quarantine.dead_letters import Letter, add_letters, ledger_of, read_letters, rejection, send_again
from holdfast.quarantine.mask import LETTERS, segments_of
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.store.paths import open_store, viewed_directory

REPLAYABLE = ("left out", "added, not sent yet")
"""Where a letter stands that a replay sends."""
_AT_NEXT_START, _WHEN_BACK = "to be replayed at the next start", "to be replayed when its source is back"

app = typer.Typer(help="Show the rows that were isolated, or send them through the graph again.", no_args_is_help=True)


@app.command("list")
def list_letters(checkpoint: Checkpoint, shard: ShownShard = None, as_json: AsJson = False) -> None:
    """Show every dead letter: the row, its position, the error, and its status.  Changes nothing."""
    with frame.settings(as_json):
        letters = letters_in(places_of(checkpoint, shard))
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
    shard: Annotated[
        int | None, typer.Option("--shard", metavar="K", help="Only letters of this shard.", min=0)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do it even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters through the graph again: each is part of one epoch of the next run."""
    with frame.settings(as_json):
        sent = replay_in(places_of(checkpoint, shard), names or (), force=force)
        if as_json:
            frame.print_json({"replayed_at_next_start": sent})
        else:
            frame.print_lines([*sent, f"{len(sent)} dead letters are replayed by the next start."])


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
    store = frame.existing_store(checkpoint)
    if not force:
        _check_nobody_writes(store)
    return store


def _check_nobody_writes(store: Store) -> None:
    why = "a start that isolates rows writes the letters too, and would undo what is noted here."
    frame.check_nobody_runs(noted_owner(store), why)


# --- of a pipeline, or of each of its shards ------------------------------------------------------------------------


@dataclass(frozen=True)
class LetterPlace:
    """A checkpoint that has letters: that of a pipeline, or of one of its shards.

    Parameters
    ----------
    checkpoint : str
        Where it is.
    shard : int, optional
        Its number; None where the pipeline has none.
    is_given_up : bool
        Whether the pipeline has fewer shards by now: no run reads its letters.
    """

    checkpoint: str
    shard: int | None = None
    is_given_up: bool = False

    @property
    def store(self) -> Store:
        """What is in it; nothing where the shard has never run."""
        return open_store(str(viewed_directory(self.checkpoint)))


def places_of(checkpoint: str, shard: int | None = None) -> list[LetterPlace]:
    """Return the checkpoints that have the letters of a pipeline: its own, or those of its shards.

    Parameters
    ----------
    checkpoint : str
        The pipeline's own.
    shard : int, optional
        Only this one.

    Raises
    ------
    InvalidPipeline
        If there is no such checkpoint, or no such shard.
    """
    layout = newest_layout(frame.existing_store(checkpoint))
    if shard is not None and (layout is None or shard >= layout.highest_count):
        check_shard("", layout, shard)
    if layout is None:
        return [LetterPlace(checkpoint)]
    numbers = range(layout.highest_count) if shard is None else (shard,)
    return [LetterPlace(shard_checkpoint(checkpoint, each), each, each >= layout.shard_count) for each in numbers]


def letters_in(places: Iterable[LetterPlace]) -> list[dict[str, Any]]:
    """Return every letter of some checkpoints as a JSON value; of a shard's, ``shard`` says which."""
    found = []
    for place in places:
        for letter in described(place.store, viewed_directory(place.checkpoint)):
            if place.is_given_up and letter["standing"] in (*REPLAYABLE, _AT_NEXT_START, _WHEN_BACK):
                letter["standing"] = "of a shard that was given up"
            found.append(letter if place.shard is None else {**letter, "shard": place.shard})
    return found


def replay_in(places: Sequence[LetterPlace], wanted: Sequence[str], *, force: bool = False) -> list[str]:
    """Record that letters of some checkpoints are sent through the graph again at the next start; return their names.

    Parameters
    ----------
    places : sequence of LetterPlace
        Where they may be.
    wanted : sequence of str
        Names; empty: all that can be sent.
    force : bool
        Whether nobody looks if a run is alive.

    Raises
    ------
    InvalidPipeline
        If a run is alive, or a letter is unknown, cannot be sent, or has its name in several shards.

    Notes
    -----
    One put for each place.  After a kill in between, those of the places before are noted: it is called again.
    """
    stores = [(place, place.store) for place in places]
    if not force:
        for _, store in stores:
            _check_nobody_writes(store)
    having = {name: [place for place, store in stores if name in _names(store)] for name in wanted}
    for name, found in having.items():
        _check_one_place(name, found)
    sent = []
    for place, store in stores:
        mine = [name for name in wanted if place in having[name]]
        # Where no name is given, every place is asked for all; where all of them are elsewhere, it is asked for none.
        if not place.is_given_up and (mine or not wanted):
            sent += [letter.name for letter in replay(store, viewed_directory(place.checkpoint), mine)]
    return sent


def _names(store: Store) -> set[str]:
    return {letter.name for letter in read_letters(store)}


def _check_one_place(name: str, found: Sequence[LetterPlace]) -> None:
    if not found:
        raise InvalidPipeline(
            f"there is no dead letter {name!r}.",
            why="a letter is named source/segment/position/ordinal.",
            do="holdfast dead-letters list --checkpoint DIR shows them.",
        )
    if len(found) > 1:
        raise InvalidPipeline(
            f"it is not known which dead letter {name!r} is meant.",
            why=f"shards {', '.join(f'{each.shard}' for each in found)} have one of that name each.",
            do="name the shard, too: holdfast dead-letters replay --checkpoint DIR --shard K LETTER.",
        )
    if found[0].is_given_up:
        raise InvalidPipeline(
            f"dead letter {name!r} cannot be sent through the graph again.",
            why=f"it is of shard {found[0].shard}, and the pipeline has fewer by now: no run reads it.",
            do="take its row from holdfast dead-letters list --json, write it as a JSON line, and let "
            "holdfast dead-letters add make a letter of shard 0 of it.",
        )


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
        where = f"shard {letter['shard']}, " if "shard" in letter else ""
        yield f"{letter['name']}  {where}epoch {letter['epoch']}, {utc(letter['at_us'])}, {letter['standing']}"
        yield f"  {letter['row']}"
        yield f"  {letter['error']['kind']}: {letter['error']['what']} {letter['error']['why']}"
    waiting = sum(letter["standing"] in REPLAYABLE for letter in letters)
    yield f"{len(letters)} dead letters, {waiting} of them not sent again."


def replay(store: Store, directory: Path, wanted: Sequence[str]) -> list[Letter]:
    """Record that letters are sent through the graph again at the next start; no run is alive.

    Raises
    ------
    InvalidPipeline
        If a letter cannot be sent.
    """
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
    return _WHEN_BACK if letter.source in retired else _AT_NEXT_START


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
