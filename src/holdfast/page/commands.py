"""What the run is told by forms of the page: the words of the command line, through the same socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.page.html import Child, Html, el, table
from holdfast.page.reading import CheckpointReader
from holdfast.page.starts import failure
from holdfast.page.words import count, mark
from holdfast.steer.client import Attached, Said, attach

WAIT_S = 3.0
"""So long the page waits for a command before it says that it is being done."""

_SAMPLE_S = 10.0
"""So long it looks for rows that pass a node."""

Values = Mapping[str, str]


@dataclass
class Errand:
    """One command, from its form to its end.

    Parameters
    ----------
    label : str
        What was asked for, in words.
    back : str
        The address of the view that it was told from.
    said : str
        What came of it; empty while it is done.
    error : HoldfastError, optional
        Why it was not done.
    left : int, optional
        Positions to go, of a drain.
    rows : list of mapping
        Rows that it shows.
    """

    label: str
    back: str
    said: str = ""
    error: HoldfastError | None = None
    left: int | None = None
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._is_over.is_set()

    def begin(self, do: Callable[[Errand], str]) -> None:
        """Let a thread do it, and wait for a moment."""
        threading.Thread(target=self._do, args=(do,), name="holdfast-errand", daemon=True).start()
        self._is_over.wait(WAIT_S)

    def _do(self, do: Callable[[Errand], str]) -> None:
        try:
            self.said = do(self)
        except HoldfastError as error:
            self.error = error
        except Exception as error:
            what = f"unforeseen {type(error).__name__}: {error}"
            self.error = HoldfastError(what, why="This error is not known to Holdfast.", do="look into the page's log.")
        finally:
            self._is_over.set()

    def outcome(self) -> list[Child]:
        """Return how it stands."""
        rows = [_rows(self.rows)] if self.rows else []
        if self.error is not None:
            return [failure(self.error), *rows]
        if self.is_over:
            return [el("p", mark("good", "done"), " ", self.said), *rows]
        left = "" if self.left is None else f" {count(self.left)} positions to go."
        return [el("p", mark("minor", "being done"), left), *rows]


def errand(command: str, values: Values, reader: CheckpointReader, back: str) -> Errand:
    """Return a command that has begun.

    Parameters
    ----------
    command : str
        Its name.
    values : mapping of str to str
        What the form sent.
    reader : CheckpointReader
        The pipeline; it looks again afterwards.
    back : str
        Where its form was.

    Raises
    ------
    InvalidPipeline
        If there is no such command.
    """
    do = COMMANDS.get(command)
    if do is None:
        raise InvalidPipeline(
            f"the page has no command {command!r}.",
            why=f"it has {', '.join(COMMANDS)}.",
            do="use one of its forms.",
        )
    told = (values.get(name, "") for name in ("source", "rate", "name", "letter", "node"))
    label = " ".join(filter(None, (command, *told)))
    made = Errand(label, back)

    def carry_out(of: Errand) -> str:
        try:
            return do(attach(reader.checkpoint), values, reader, of)
        finally:
            reader.forget()

    made.begin(carry_out)
    return made


def _pause(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader, of
    return _in_force(run.pause(*_names(values, "source")))


def _resume(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader, of
    return _in_force(run.resume(*_names(values, "source")))


def _limit(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader, of
    return _in_force(run.limit(values.get("source", ""), _rate(values.get("rate", ""))))


def _drain(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del values, reader

    def tell(said: Said) -> None:
        if "left" in said:
            of.left = int(said["left"])

    run.drain(tell)
    return "Every sink holds what was in the sources, and the run has ended."


def _flush(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader, of
    return "Asked: " + (", ".join(run.flush(*_names(values, "sink"))["flushed"]) or "no sink has rows wait") + "."


def _checkpoint(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader, of
    name = values.get("name", "")
    return f"Checkpoint {name} is made, at the end of epoch {run.checkpoint(name)['epoch']}."


def _replay(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del run, of
    shard = int(values["shard"]) if values.get("shard", "").isdecimal() else None
    sent = reader.words.replay(reader.checkpoint, _names(values, "letter"), shard)
    return f"{count(len(sent))} dead letters are replayed by the next start."


def _sample(run: Attached, values: Values, reader: CheckpointReader, of: Errand) -> str:
    del reader
    node, shard = values.get("node", ""), values.get("shard", "")
    shown = run.sample(
        node,
        timeout_s=_SAMPLE_S,
        shard=int(shard) if shard.isdecimal() else None,
        tell=lambda said: of.rows.extend(said["rows"]),
    )
    return f"{count(len(shown['rows']))} rows have passed {node} in {count(shown['epochs'])} epochs."


COMMANDS: Mapping[str, Callable[[Attached, Values, CheckpointReader, Errand], str]] = {
    "pause": _pause,
    "resume": _resume,
    "limit": _limit,
    "drain": _drain,
    "flush": _flush,
    "checkpoint": _checkpoint,
    "replay": _replay,
    "sample": _sample,
}


def _rows(rows: Sequence[Mapping[str, Any]]) -> Html:
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    return table(columns, [[_cell(row.get(name)) for name in columns] for row in rows])


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _names(values: Values, name: str) -> list[str]:
    return [values[name]] if values.get(name) else []


def _rate(typed: str) -> float | None:
    if typed.strip() == "none":
        return None
    try:
        return float(typed.strip().removesuffix("/s"))
    except ValueError:
        raise InvalidPipeline(
            f"{typed!r} is no number of rows a second.",
            why="a rate is a number above 0, or none.",
            do="write 500, or none for no limit.",
        ) from None


def _in_force(said: Said) -> str:
    paused = "all sources" if "*" in said["paused"] else ", ".join(said["paused"]) or "none"
    limits = "".join(f"; {source} is limited to {rate:g} rows/s" for source, rate in said["limits"].items())
    return f"Paused: {paused}{limits}."
