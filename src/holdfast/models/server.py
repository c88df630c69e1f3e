"""What a model's process answers on its socket: one exchange for each call, and requests for counts and the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.models import wire
from holdfast.models.computing import ModelLoop
from holdfast.models.place import ModelPlace


class ModelServer(flight.FlightServerBase):  # type: ignore[misc]
    """Takes calls that have arrived whole to the loop, and its answers back; in a thread of gRPC's for each.

    It listens as soon as it is made.
    """

    def __init__(self, place: ModelPlace, loop: ModelLoop) -> None:
        super().__init__(f"grpc+unix://{os.fspath(place.socket)}")
        self._loop = loop

    def run(self) -> None:
        """Serve until nobody has called for the idle time, or somebody says so."""
        self._loop.run()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer a call."""
        header = wire.CallHeader.from_bytes(descriptor.command)
        rows = reader.read_all()
        if not rows.num_rows:  # nobody asks for nothing: it could not send them
            return
        call = self._loop.submit(
            header.caller, rows, is_apart=header.is_repeated, is_cancelled=lambda: bool(context.is_cancelled())
        )
        if call is None:
            raise flight.FlightUnavailableError("this process ends")
        call.done.wait()
        if call.error is not None:
            wire.write_error(writer, call.error)
        elif call.answers:  # else the caller is gone
            wire.write_rows(writer, pa.concat_tables(call.answers))

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Return the counts, or end."""
        if action.type == wire.STOP:
            self._loop.end()
        yield self._loop.stats().to_bytes()
