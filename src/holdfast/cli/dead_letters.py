"""``holdfast dead-letters``: the rows that were isolated, and the way back through the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.dead_letters import Letter, read_letters, send_again
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.observe.times import utc
from holdfast.ports import Store
from holdfast.positions import Positions
from holdfast.sources.lettered import LETTERS
from holdfast.spark.directory import newest
from holdfast.spark.offsets import last_logged, read_offsets
from holdfast.spark.origin import FILE_NAME, read_origin


def described(store: Store, directory: Path) -> list[dict[str, Any]]:
    """Return every letter as a JSON value, the row as people read it, with what became of it."""
    finished = _finished(store, directory)
    return [
        {
            "name": letter.name,
            "source": letter.source,
            "address": letter.address._asdict(),
            "epoch": letter.epoch,
            "at_us": letter.at_us,
            "error": dict(letter.error),
            "row": {name: _plain(value) for name, value in letter.table.to_pylist()[0].items()},
            "standing": _standing(letter, finished),
        }
        for letter in read_letters(store)
    ]


def letter_lines(letters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say every letter in words."""
    for letter in letters:
        yield f"{letter['name']}  epoch {letter['epoch']}, {utc(letter['at_us'])}, {letter['standing']}"
        yield f"  {letter['row']}"
        yield f"  {letter['error']['kind']}: {letter['error']['what']} {letter['error']['why']}"
    waiting = sum(letter["standing"] == "left out" for letter in letters)
    yield f"{len(letters)} dead letters, {waiting} of them not sent again."


def replay(store: Store, directory: Path, wanted: Sequence[str]) -> list[Letter]:
    """Note that letters are sent through the graph again at the next start; nobody runs.

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
    return send_again(store, wanted, _finished(store, directory))


def _standing(letter: Letter, finished: Positions) -> str:
    if letter.again is None:
        return "left out"
    is_done = int(finished.get(letter.source, {}).get(LETTERS, 0)) > letter.again
    return "replayed" if is_done else "to be replayed at the next start"


def _finished(store: Store, directory: Path) -> Positions:
    """Return up to where epochs are finished, as Spark's newest directory tells it."""
    spark = directory / "spark" / str(newest(store))
    batch_id = last_logged(spark, "commits")
    try:
        return read_offsets(spark, batch_id).positions if batch_id >= 0 else read_origin(spark / FILE_NAME).start
    except Corrupt:
        return {}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
