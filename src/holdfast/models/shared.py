"""``hf.shared``: a model that all processes of a host call, and one holds."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.building import a_type
from holdfast.models import connection, wire
from holdfast.models.connection import Connection, ModelTimeout, ProcessGone
from holdfast.models.declaration import Declaration, Rows
from holdfast.models.starting import reach
from holdfast.models.wire import CallHeader, ModelStats
from holdfast.operators.arguments import check_callable
from holdfast.retry import RetryPolicy
from holdfast.types.casting import fitted
from holdfast.types.schema import to_arrow
from holdfast.types.units import duration_us

RETRIES = RetryPolicy(attempts=5, first_s=0.05, cap_s=2.0)
"""Of calls whose process has died: a model that kills its process again and again is no use to wait for."""


class SharedModel:
    """A model to call: made by :func:`holdfast.shared`.

    Pickles; connects when it is called first, in each process.  Safe between threads, whose calls count as one caller.
    """

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared

    def __repr__(self) -> str:
        return f"hf.shared({self.name!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._declared.name

    @property
    def schema(self) -> pa.Schema:
        """Of the answers."""
        return self._declared.schema

    def __call__(self, rows: Rows) -> pa.Table:
        """Return the model's answer: a row for each row, in their order.

        Parameters
        ----------
        rows : pa.RecordBatch or pa.Table
            Any number of rows.  With ``inputs=`` these columns are sent, else all.

        Raises
        ------
        InvalidPipeline
            If the model cannot be loaded, its code raises, or the rows lack a column or cannot be sent.
        Unavailable
            If its process dies again and again, or does not answer in time.
        """
        given = self._inputs_of(rows)
        if not given.num_rows:
            return self.schema.empty_table()
        end_s = time.monotonic() + self._declared.timeout_s
        repeats = itertools.count()
        place = self._declared.place()

        def attempt() -> pa.Table:
            made = self._connection(end_s)
            header = CallHeader(str(os.getpid()), is_repeated=next(repeats) > 0)
            try:
                return made.exchange(header, given, max(0.001, end_s - time.monotonic()))
            except ProcessGone:
                connection.drop(place, made)
                raise

        try:
            return RETRIES.call(attempt, lambda error: isinstance(error, ProcessGone), self._declared.timeout_s)
        except ProcessGone:
            raise Unavailable(
                f"The process of model {self.name!r} died {next(repeats)} times before it had answered.",
                why=f"these {given.num_rows} rows may be the reason: in its last attempts the call was alone.",
                do=f"look into {place.log}, and at the memory of this host; then start again.",
                participant=self.name,
            ) from None
        except ModelTimeout:
            raise self._silent(self._declared.timeout_s) from None
        except pa.ArrowException as error:
            raise InvalidPipeline(
                f"Rows cannot go to model {self.name!r}, or its answer cannot come back.",
                why=f"{error}".partition(". Detail:")[0],
                do=f"give columns of other types, or smaller values; what the process says of it is in {place.log}.",
                participant=self.name,
            ) from error

    def row(self, **columns: Any) -> dict[str, Any]:
        """Return the answer for one row, as values of Python.

        Parameters
        ----------
        **columns
            Column -> value.
        """
        return self(pa.Table.from_pylist([columns])).to_pylist()[0]  # type: ignore[no-any-return]

    def stats(self) -> ModelStats:
        """Return what the model's process has done since it started; starts none."""
        return self._ask(wire.STATS)

    def stop(self) -> None:
        """End the model's process after the batch that it computes, for all callers: the next call starts another."""
        self._ask(wire.STOP)

    def _ask(self, request: str) -> ModelStats:
        place = self._declared.place()
        if not place.is_listening():
            return ModelStats()
        made = connection.find(place) or connection.connect(place)
        try:
            return made.ask(request)
        except ProcessGone:
            connection.drop(place, made)
        except ModelTimeout:
            raise self._silent(connection.ANSWER_S) from None
        return ModelStats()

    def _silent(self, waited_s: float) -> Unavailable:
        return Unavailable(
            f"Model {self.name!r} has not answered within {waited_s:g} s.",
            why="its process lives, and computes, hangs or is frozen.",
            do=f"end process {self._declared.place().last_process()} if it hangs: the next call starts another; "
            'else allow more with timeout="30 min", or lower max_batch=.',
            participant=self.name,
        )

    def _connection(self, end_s: float) -> Connection:
        place = self._declared.place()
        found = connection.find(place)
        if found is None:
            reach(self._declared, place, end_s)
            found = connection.connect(place)
        return found

    def _inputs_of(self, rows: Rows) -> pa.Table:
        if not isinstance(rows, pa.RecordBatch | pa.Table):
            raise InvalidPipeline(
                f"Model {self.name!r} was called with {a_type(rows)}.",
                why="it takes a RecordBatch or a Table of Arrow.",
                do='write model(batch), or model.row(frame=frame)["boxes"] for one row of values of Python.',
                participant=self.name,
            )
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        inputs = self._declared.inputs
        if inputs is None:
            return table.replace_schema_metadata(None)
        try:
            batches = [fitted(batch.select(inputs.names), inputs) for batch in table.to_batches()]
        except (KeyError, pa.ArrowException) as error:
            raise InvalidPipeline(
                f"Rows do not fit the inputs of model {self.name!r}.",
                why=f"{error}".strip("'"),
                do="compare their columns with inputs=.",
                participant=self.name,
            ) from error
        return pa.Table.from_batches(batches, inputs)


def shared(
    fn: Callable[..., Any],
    schema: str | pa.Schema | Any,
    *,
    max_batch: int = 32,
    max_delay: str = "5 ms",
    setup: Callable[..., Any] | None = None,
    device: Any = None,
    inputs: str | pa.Schema | Any = None,
    idle: str = "10 min",
    timeout: str = "10 min",
    version: str = "",
    name: str | None = None,
) -> SharedModel:
    """Declare a model that one process of a host holds, and all others call: pipelines, flowgraphs, notebooks.

    Parameters
    ----------
    fn : function of a RecordBatch, or class
        Returns a RecordBatch or Table with a row for each row, in their order; what it gives for a row must not depend
        on the others.  With ``setup`` it takes a second argument: what ``setup`` returned.  Of a class one object is
        made, in the model's process, which is called then.
    schema : str, StructType or pyarrow.Schema
        Of what ``fn`` returns; columns are matched by name.
    max_batch : int
        Rows that ``fn`` is called with at most.
    max_delay : str
        How long a call waits for others to share a batch with.
    setup : function of nothing, optional
        Loads the model: runs once, in its process.
    device : optional
        Where the model is to be: given to ``setup``, or to the class, as its argument.
    inputs : str, StructType or pyarrow.Schema, optional
        The columns that ``fn`` reads: only these are sent, as these types.  Without it all columns are sent, and only
        calls with the same ones share batches.
    idle : str
        The process ends when nobody has called for so long.
    timeout : str
        How long a call may take at most, with the start of the process.
    version : str
        Of what the code does not show, such as weights: another version is another model.
    name : str, optional
        Of the model; that of ``fn`` by default.

    Returns
    -------
    SharedModel
        Call it with rows.  Two that are declared alike are one model, wherever they are declared.

    Raises
    ------
    InvalidPipeline
        If an argument is not what it must be.

    Notes
    -----
    The process is started by the first call on a host, and functions are pickled by value.  A call whose process dies
    is repeated, so ``fn`` must have no effects.

    Examples
    --------
    ::

        class Detector:
            def __init__(self, device):
                self.net = load("weights.bin", device)

            def __call__(self, batch):
                return pa.table({"boxes": self.net.boxes(batch["pixels"])})

        detector = hf.shared(
            Detector, "boxes ARRAY<STRUCT<x: INT, y: INT>>", inputs="pixels BINARY", device="cuda:0", max_batch=32
        )

        def detect(batch):
            return batch.append_column("boxes", detector(batch)["boxes"].combine_chunks())

        frames | hf.map_batches(detect, "camera STRING, pixels BINARY, boxes ARRAY<STRUCT<x: INT, y: INT>>")
    """
    own = str(name or getattr(fn, "__name__", type(fn).__name__))
    given = [] if device is None else ["device"]
    is_class = isinstance(fn, type)
    if is_class and setup is not None:
        raise InvalidPipeline(
            f"Model {own!r} has a class as fn, and setup={setup!r}.",
            why="the class is what loads it.",
            do="load it in __init__ of the class, or give a function of (batch, loaded) as fn.",
        )
    if device is not None and not is_class and setup is None:
        raise InvalidPipeline(
            f"device={device!r} of model {own!r} is given to nobody.",
            why="it is the argument of setup, or of the class that fn is.",
            do="write setup=load, with def load(device): ...",
        )
    if is_class:
        check_callable(fn, "fn", given, right="a class whose __init__ takes the device, if there is one")
    else:
        takes = ["batch"] if setup is None else ["batch", "loaded"]
        check_callable(fn, "fn", takes, right=f"def fn({', '.join(takes)}): ...")
    if setup is not None:
        check_callable(setup, "setup", given, right=f"def load({', '.join(given)}): ...")
    if not isinstance(max_batch, int) or isinstance(max_batch, bool) or max_batch < 1:
        raise InvalidPipeline(f"max_batch={max_batch!r} is no number of rows.", do="write for instance max_batch=32.")
    seconds = {
        argument: duration_us(text, argument=argument) / 1e6
        for argument, text in (("max_delay", max_delay), ("idle", idle), ("timeout", timeout))
    }
    return SharedModel(
        Declaration(
            own,
            version,
            fn,
            setup,
            device,
            to_arrow(schema),
            None if inputs is None else to_arrow(inputs, argument="inputs"),
            max_batch,
            seconds["max_delay"],
            seconds["idle"],
            seconds["timeout"],
        )
    )
