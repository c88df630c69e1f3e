"""A connection to the process of a model, one in each caller; and which of its errors mean that the process is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyarrow import flight

from holdfast.models import wire
from holdfast.models.place import ModelPlace

ANSWER_S = 5.0
"""How long the counts are waited for."""


DEATHS = (flight.FlightUnavailableError, flight.FlightInternalError, flight.FlightCancelledError, OSError)
"""What the end of the other side looks like.  Other errors of Arrow come from the rows, of the call or the answer."""


class ProcessGone(Exception):
    """The process of a model ended, or died, before it had answered: the call may be repeated."""


class ModelTimeout(Exception):
    """The process of a model lives, and has not answered in time."""


class Connection:
    """A connection; safe between threads.

    Parameters
    ----------
    place : ModelPlace
        Where the process listens.
    """

    def __init__(self, place: ModelPlace) -> None:
        # One that is refused is not tried again at gRPC's pace: the next one is another connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._client = flight.connect(f"grpc+unix://{os.fspath(place.socket)}", generic_options=options)

    def exchange(self, header: wire.CallHeader, rows: pa.Table, timeout_s: float) -> pa.Table:
        """Return the answer to a call.

        Raises
        ------
        HoldfastError
            What the process answered.
        ProcessGone, ModelTimeout
            If it does not answer.
        pyarrow.ArrowException
            If rows cannot be sent, there or back.
        """
        with _translate():
            descriptor = flight.FlightDescriptor.for_command(header.to_bytes())
            writer, reader = self._client.do_exchange(descriptor, flight.FlightCallOptions(timeout=timeout_s))
            try:
                wire.write_rows(writer, rows)
                writer.done_writing()
                answer = reader.read_all()
            except BaseException:
                reader.cancel()  # else the other side waits for rows that never come, and this one for its answer
                with suppress(pa.ArrowException, OSError):
                    writer.close()
                raise
            writer.close()
        return wire.rows_of(answer)

    def ask(self, request: str) -> wire.ModelStats:
        """Return the counts, and let the process end if that is the request."""
        with _translate():
            options = flight.FlightCallOptions(timeout=ANSWER_S)
            (result,) = self._client.do_action(flight.Action(request, b""), options)
            return wire.ModelStats.from_bytes(result.body.to_pybytes())


@contextmanager
def _translate() -> Iterator[None]:
    try:
        yield
    except flight.FlightTimedOutError as error:
        raise ModelTimeout from error
    except DEATHS as error:
        raise ProcessGone from error


_connections: dict[tuple[int, ModelPlace], Connection] = {}
_lock = threading.Lock()


def find(place: ModelPlace) -> Connection | None:
    """Return the connection of this process to a place; None where there is none yet."""
    return _connections.get((os.getpid(), place))


def connect(place: ModelPlace) -> Connection:
    """Return a connection to a process that listens."""
    with _lock:
        return _connections.setdefault((os.getpid(), place), Connection(place))


def drop(place: ModelPlace, connection: Connection) -> None:
    """Forget a connection whose other end is gone."""
    with _lock:
        if _connections.get((os.getpid(), place)) is connection:
            del _connections[os.getpid(), place]
