"""``hf.attach``: tells the live run of a checkpoint what to do, from another process of its machine.

A command that changes what is in force is sent again under its id where the connection breaks, to the run that is
there then; where there is none, the checkpoint says whether it was done.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import InDoubt, Unavailable
from holdfast.steer.entries import ControlLog, made_id
from holdfast.steer.place import SteerPlace, is_own, of_another_user, read_place
from holdfast.steer.protocol import SAMPLE_S, Progress, SteerRequest, read_answers, request_line
from holdfast.store.paths import checkpoint_directory, open_store
from holdfast.store.scratch import address_of

_ATTEMPTS = 3

Said = Mapping[str, Any]


def _nothing(said: Said) -> None:
    del said


@dataclass(frozen=True)
class Attached:
    """A live run, seen from outside.  Made by :func:`attach`; safe to use from any thread.

    Each method raises ``Unavailable`` where no run of the checkpoint is alive on this machine, and ``InDoubt`` where
    the run has gone and it is not known whether it did what it was told.

    Parameters
    ----------
    directory : Path
        Its checkpoint, or what this machine has of one in an object store.
    """

    directory: Path

    def status(self, shard: int | None = None) -> Said:
        """Return the status of the run, or of one of its shards, as :meth:`holdfast.status.Status.as_json`."""
        return self._call("status", **_of(shard))

    def epochs(self, after: int = 0, shard: int | None = None) -> Said:
        """Return the last epochs of the run, or of one of its shards, as ``epochs``: 10,000 at most, the newest last.

        Parameters
        ----------
        after : int
            Only those above this number.
        shard : int, optional
            Which shard, where there are some; each has epochs of its own.

        Returns
        -------
        mapping
            ``epochs``: of each ``epoch``, ``rows``, ``ended_us``, ``wait_s``, ``stages_s`` and ``sinks_s``.
        """
        return self._call("epochs", after=after, **_of(shard))

    def story(self, epoch: int, shard: int | None = None) -> Said:
        """Return what happened to one of the last epochs of the run, or of one of its shards, as ``story``."""
        return self._call("story", epoch=epoch, **_of(shard))

    def pause(self, *sources: str) -> Said:
        """Let sources deliver nothing more, until they are resumed; without names the whole run.

        What was planned is finished.  It holds for later runs, too, whatever ends this one.

        Parameters
        ----------
        *sources : str
            Names of sources.

        Returns
        -------
        mapping
            What is in force: ``paused``, ``limits``, ``ends``.

        Raises
        ------
        InvalidPipeline
            If the pipeline has no source of a name.
        """
        return self._call("pause", sources=[*sources])

    def resume(self, *sources: str) -> Said:
        """Let sources that were paused go on; without names all of them.  Otherwise as :meth:`pause`."""
        return self._call("resume", sources=[*sources])

    def limit(self, source: str, rows_per_s: float | None) -> Said:
        """Let a source deliver so many rows a second at most, over all shards; it holds for later runs, too.

        Parameters
        ----------
        source : str
            Its name.
        rows_per_s : float, optional
            Above 0; None: as fast as it can.  A source takes the smallest part that it can at least (a file, a block),
            and then nothing until that fits the rate.

        Returns
        -------
        mapping
            What is in force.

        Raises
        ------
        InvalidPipeline
            If there is no such source, or the rate is not above 0.
        """
        return self._call("limit", source=source, rows_per_s=rows_per_s)

    def drain(self, tell: Progress = _nothing) -> Said:
        """Read what is in the sources now and nothing more, wait until every sink holds it, and let the run end.

        Windows that are not complete stay in the state.  A run that dies meanwhile is drained by the next one.

        Parameters
        ----------
        tell : callable
            Called with what is left, about each second.

        Returns
        -------
        mapping
            ``token``: the positions.

        Raises
        ------
        InvalidPipeline
            If a source cannot tell what is in it.
        """
        return self._call_with_token("drain", None, tell)

    def wait_until_held(self, token: Said | None = None, tell: Progress = _nothing) -> Said:
        """Wait until everything that is in the sources now is in every sink.

        Parameters
        ----------
        token : mapping, optional
            What an earlier call has told: then up to there.
        tell : callable
            Called with ``token`` first, then with what is left, about each second.

        Returns
        -------
        mapping
            ``token``: the positions.

        Raises
        ------
        InvalidPipeline
            If a source cannot tell what is in it.
        """
        return self._call_with_token("wait", token, tell)

    def flush(self, *sinks: str) -> Said:
        """Let sinks that have rows wait make them visible: all, or those of these names; as ``holdfast flush``."""
        return self._call("flush", sinks=[*sinks])

    def checkpoint(self, name: str) -> Said:
        """Keep the state as it is at the end of the last epoch under a name; returns ``epoch``.

        As :meth:`holdfast.spark.run.Run.checkpoint_now`.
        """
        return self._call("checkpoint", name=name)

    def log(self, level: str) -> Said:
        """Let the run's process log from a level on (``DEBUG``, ``INFO``, ...) until it ends; returns ``before``."""
        return self._call("log", level=level)

    def sample(
        self,
        node: str,
        n: int = 20,
        *,
        timeout_s: float = SAMPLE_S,
        shard: int | None = None,
        tell: Progress = _nothing,
    ) -> Said:
        """Return rows as they pass a node of the run: of the epochs that begin after the call.

        As text for people: secrets are masked, of binary values the size is told, long texts and lists are cut.

        Parameters
        ----------
        node : str
            A source, an operator, a side output or a sink; not one that Spark's plan evaluates.
        n : int
            How many rows, 1 to 1,000.
        timeout_s : float
            After which there may be fewer, seconds.
        shard : int, optional
            Of which shard alone.
        tell : callable
            Called with rows as they come, and about each second, with ``rows`` and ``epochs``.

        Returns
        -------
        mapping
            ``rows``, each of them column -> value; and ``epochs``: how many have passed meanwhile.

        Raises
        ------
        InvalidPipeline
            If there is no such node, or its rows cannot be seen.
        Unavailable
            If the run ends before.
        """
        rows: list[Any] = []
        until_s = time.monotonic() + timeout_s

        def note(said: Said) -> None:
            rows.extend(said["rows"])
            tell(said)

        def arguments() -> Said:  # asked again, it is asked for what is left
            left_s = max(until_s - time.monotonic(), 0.1) if rows else timeout_s
            return {"node": node, "n": n - len(rows), "timeout_s": left_s, **_of(shard)}

        return {"rows": rows, "epochs": self._call("sample", note, arguments=arguments)["epochs"]}

    def support(self) -> Said:
        """Return what a support bundle has of the run: ``stacks``, ``jvm``, ``status``, ``metrics``, ``stories``.

        As they are: with keys and reasons, which ``holdfast support-bundle`` leaves out.  What the run does not answer
        in ten seconds is a text that says so.
        """
        found: dict[str, Any] = {}
        self._call("support", found.update)
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _call_with_token(self, command: str, token: Said | None, tell: Progress) -> Said:
        """Tell the run something that answers with a token first; asked again, it is asked with that."""
        kept = {"token": token}

        def note(said: Said) -> None:
            kept["token"] = said.get("token", kept["token"])
            tell(said)

        return self._call(command, note, arguments=lambda: kept)

    def _call(
        self,
        command: str,
        tell: Progress = _nothing,
        *,
        arguments: Callable[[], Said] | None = None,
        **given: Any,
    ) -> Said:
        asked, broke = uuid.uuid4().hex, 0
        while broke < _ATTEMPTS:
            place = read_place(self.directory)
            request = SteerRequest(asked, command, given if arguments is None else arguments())
            with socket.socket(socket.AF_UNIX) as connection:
                if place is None or not _is_connected(connection, place):
                    return self._what_became(request, place) if broke else _nobody(self.directory, place)
                try:
                    return _exchange(connection, request, place, tell)
                except (OSError, EOFError):
                    broke += 1  # it has gone, or has been taken over: whoever is there now is asked, and knows the id
        raise InDoubt(
            f"it is not known whether the run has done what it was told: {command}.",
            why=f"{_who(place)} listens, and has broken the connection {broke} times.",
            do="look at what is in force: holdfast status; its log says why it breaks connections.",
        )

    def _what_became(self, request: SteerRequest, place: SteerPlace | None) -> Said:
        """Return what became of a command whose run has gone, as the checkpoint tells."""
        log = ControlLog(open_store(str(self.directory)))
        entry, newest = log.find(request.id), log.newest()
        if entry is not None and newest is not None and request.command == "drain":
            if newest.controls.ends == entry.controls.ends:
                raise Unavailable(
                    f"{_who(place)} has ended before everything was in its sinks.",
                    why="it was told so by something else, or has died.",
                    do="start the pipeline: it goes on to the same positions, and ends.",
                )
            return {"token": request.arguments.get("token")}
        if request.command == "checkpoint" and (made := log.find(made_id(request.id))) is not None:
            return made.arguments
        if entry is not None and request.command != "checkpoint":
            return entry.controls.as_json()
        if request.command == "checkpoint" and (entry is not None or not request.arguments.get("name")):
            raise InDoubt(
                "it is not known whether the checkpoint was made.",
                why=f"{_who(place)} has ended meanwhile.",
                do="look: holdfast checkpoint list.",
            )
        if request.command == "flush":
            raise InDoubt(
                "it is not known whether the sinks were asked to commit.",
                why=f"{_who(place)} has ended meanwhile; if they were, the next run does it.",
                do="start the pipeline, and flush again: to ask twice is to ask once.",
            )
        raise Unavailable(
            f"{_who(place)} has ended before it has done what it was told: {request.command}.",
            why="it has died, or was stopped; nothing of it is in force.",
            do="start the pipeline, and tell it again.",
        )


def attach(checkpoint: str | os.PathLike[str]) -> Attached:
    """Return the live run of a checkpoint, to be told something; asks nothing yet.

    Parameters
    ----------
    checkpoint : str or path
        The pipeline's own, as its start was given it; of an object store, on the machine of the run.

    Examples
    --------
    >>> import holdfast as hf
    >>> hf.attach("no/such/checkpoint").pause("rides")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    holdfast.errors.Unavailable: no run of checkpoint ... is alive on this machine.
      Why: none has ever listened there.
      Do:  start it, or go to the machine where it runs.
    """
    return Attached(checkpoint_directory(os.fspath(checkpoint)))


def _of(shard: int | None) -> dict[str, Any]:
    return {} if shard is None else {"shard": shard}


def _is_connected(connection: socket.socket, place: SteerPlace) -> bool:
    try:
        connection.connect(place.socket)
    except PermissionError:
        raise of_another_user(f"the socket of {place.process}") from None
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def _exchange(connection: socket.socket, request: SteerRequest, place: SteerPlace, tell: Progress) -> Said:
    if os.getuid() != 0 and not is_own(connection):  # root may tell anybody's run
        raise of_another_user(f"the socket of {place.process}")
    connection.sendall(request_line(request))
    with connection.makefile("rb") as file:
        return read_answers(file, tell)


def _who(place: SteerPlace | None) -> str:
    return "the run" if place is None else place.process


def _nobody(directory: Path, place: SteerPlace | None) -> NoReturn:
    raise Unavailable(
        f"no run of checkpoint {address_of(directory)} is alive on this machine.",
        why="none has ever listened there." if place is None else f"the last one that listened was {place.process}.",
        do="start it, or go to the machine where it runs.",
    )
