"""What is declared of a shared model: its function, what loads it, its columns, and how it is batched."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.models.identity import code_digest
from holdfast.models.place import ModelPlace, place_of

Rows: TypeAlias = "pa.RecordBatch | pa.Table"


@dataclass(frozen=True, eq=False)
class Declaration:
    """A model, as :func:`holdfast.shared` was given it.  Pickles with its functions by value.

    Parameters
    ----------
    name, version : str
        Of the model.
    fn, setup, device
        What is called, what loads it, and on what.
    schema, inputs : pa.Schema
        Of answers, and of what is sent; None sends what the caller has.
    max_batch : int
        Rows.
    max_delay_s, idle_s, timeout_s : float
        How long a call waits for others, the process for calls, and a caller for its answer.
    """

    name: str
    version: str
    fn: Callable[..., Any]
    setup: Callable[..., Any] | None
    device: Any
    schema: pa.Schema
    inputs: pa.Schema | None
    max_batch: int
    max_delay_s: float
    idle_s: float
    timeout_s: float

    @cached_property
    def identity(self) -> str:
        """The same for what is declared alike, by the same interpreter."""
        numbers = (self.max_batch, self.max_delay_s, self.idle_s)
        texts = (self.name, self.version, repr(self.device), str(self.schema), str(self.inputs), str(numbers))
        code = code_digest(self.fn, self.setup)
        return hashlib.sha256("\n".join((*texts, code, sys.version, sys.prefix)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Let its identity travel along: it is what it is where it was declared."""
        return {**vars(self), "identity": self.identity}

    def place(self) -> ModelPlace:
        """Return where its process is found."""
        return place_of(self.name, self.identity)

    def load(self) -> Callable[[pa.RecordBatch], Rows]:
        """Return what is called for each batch; loads the model."""
        given = () if self.device is None else (self.device,)
        if self.setup is not None:
            loaded = self.setup(*given)
            return lambda batch: self.fn(batch, loaded)
        if isinstance(self.fn, type):
            return self.fn(*given)  # type: ignore[no-any-return]
        return self.fn
