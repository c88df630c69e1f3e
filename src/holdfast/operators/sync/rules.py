"""What a step of ``sync`` goes by: its inputs, its policy, and the tables and outputs that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from holdfast.operators.sync.custom import Custom
from holdfast.operators.sync.epoch import (
    ACTIVE,
    INPUTS,
    KEYS,
    ORDER,
    SENT,
    SINCE,
    bound_column,
    offset_column,
    waiting_table,
    waits_column,
)
from holdfast.operators.sync.policy import (
    Barrier,
    EarlyClose,
    FixedSize,
    Policy,
    TimestampAlign,
    Within,
    ascends,
)
from holdfast.state import keyed
from holdfast.state.step import StateTable
from holdfast.state.timeline import Promise

_INT = pa.int64()


@dataclass(frozen=True)
class SyncRules:
    """Rows of several inputs in sets, by the rules of one policy.

    Parameters
    ----------
    key : pa.Schema
        Key columns.
    inputs : mapping of str to pa.Schema
        Input name -> its columns.
    times : tuple of str
        The timestamp column of each input.
    promises : tuple of Promise
        What each input promises of its timestamps.
    policy : Policy
        Which rows make a set.
    groups : tuple of tuple of int
        Which inputs settle together.
    tolerance : int
        Ticks, of the policy ``within``.
    mux_column : str
        Column of the control input that chooses, of the policy ``mux``.
    idle_us : int, optional
        Microseconds after which a key waits no longer on a silent input.
    max_waiting_rows : int, optional
        Waiting rows of one key at which the host is asked to throttle.
    forget_us : int, optional
        Microseconds after which a key without rows is forgotten.
    delay : int, optional
        Ticks, of the policy ``custom``.
    gives_unmatched : bool
        Whether the rows without a partner are a side output: they are sought only then.
    """

    key: pa.Schema
    inputs: Mapping[str, pa.Schema]
    times: tuple[str, ...]
    promises: tuple[Promise, ...]
    policy: Policy
    groups: tuple[tuple[int, ...], ...]
    tolerance: int = 0
    mux_column: str = ""
    idle_us: int | None = None
    max_waiting_rows: int | None = None
    forget_us: int | None = None
    delay: int | None = None
    gives_unmatched: bool = False
    for_all_keys: ClassVar[Mapping[str, str]] = {INPUTS: ""}

    @property
    def has_time_order(self) -> bool:
        """Whether timestamps count at all."""
        return not isinstance(self.policy, Barrier)

    @property
    def reach(self) -> int:
        """Ticks by which the time of a set may lie below what is settled when it comes out."""
        return self.delay or 2 * self.tolerance

    @property
    def ascends(self) -> bool:
        """Whether sets ascend by time: then bounds of the output follow from what is settled."""
        return ascends(self.policy, len(self.groups))

    @property
    def time_type(self) -> pa.DataType:
        """Type of the timestamps."""
        return next(iter(self.inputs.values())).field(self.times[0]).type

    @cached_property
    def tables(self) -> Mapping[str, StateTable]:
        """The keys with their bounds, the bounds for all keys, and one table of waiting rows for each input."""
        names = list(self.inputs)
        own: list[pa.Field] = []
        if isinstance(self.policy, TimestampAlign):
            own = [pa.field(offset_column(name), _INT) for name in names]
        elif isinstance(self.policy, EarlyClose):
            own = [pa.field("ends", _INT)]
        elif isinstance(self.policy, FixedSize):
            own = [pa.field("kept", _INT)]
        keys = [
            *self.key,
            pa.field(ACTIVE, _INT),
            *(pa.field(bound_column(name), _INT) for name in names),
            *(pa.field(waits_column(name), _INT) for name in names),
            *own,
        ]
        of_all = [pa.field("input", pa.string()), pa.field("bound", _INT), pa.field("seen_us", _INT)]
        by = tuple(self.key.names)
        found = {KEYS: StateTable(pa.schema(keys), by), INPUTS: StateTable(pa.schema(of_all), ("input",))}
        sent = [pa.field(SENT, pa.bool_())] if isinstance(self.policy, Within) else []
        for name, schema in self.inputs.items():
            rest = [column for column in schema if column.name not in by]
            columns = [*self.key, *rest, pa.field(ORDER, _INT), pa.field(SINCE, _INT), *sent]
            found[waiting_table(name)] = StateTable(pa.schema(columns), (*by, ORDER))
        return found

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """``rows``: the sets; ``late``: rows that reached none; ``unmatched``: those without a row of another input."""
        time = pa.field("timestamp", self.time_type)
        columns = []
        for name, promise in zip(self.inputs, self.promises, strict=True):
            kind = struct_of(self, name)
            columns.append(pa.field(name, kind if self._holds_one(promise) else pa.list_(kind)))
        beside = keyed.late_schema(self.key, self.time_type, self.inputs)
        found = {"rows": pa.schema([*self.key, time, *columns]), "late": beside}
        return found | ({"unmatched": beside} if self.gives_unmatched else {})

    def _holds_one(self, promise: Promise) -> bool:
        if isinstance(self.policy, Within | Barrier):
            return True
        return promise.is_strict and not (isinstance(self.policy, Custom) and self.policy.many)

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return dict(zip(self.inputs, self.times, strict=True))[name]


def struct_of(rules: SyncRules, name: str) -> pa.StructType:
    """Return the type of one input's row in a set: its columns without the key, and mostly without the timestamp.

    Where a set's rows may differ in their timestamps, and where nothing else would be left, the timestamp stays.
    """
    place = list(rules.inputs).index(name)
    rest = [column for column in rules.inputs[name] if column.name not in rules.key.names]
    others = [column for column in rest if column.name != rules.times[place]]
    keeps_time = isinstance(rules.policy, Within | Barrier | TimestampAlign | Custom) or not others
    return pa.struct(rest if keeps_time else others)
