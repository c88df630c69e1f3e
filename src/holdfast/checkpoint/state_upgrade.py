"""How the state tables of an operator come from those of another version of it: as they are, grown, or migrated.

Pure: schemas only.  What is decided here is what ``holdfast plan`` prints and what a start does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import invariant
from holdfast.graph.evolution import NOTHING, Evolution, Migration
from holdfast.state.step import Growable, StateTable, Step, StepTime


class Way(Enum):
    """How a state table comes about."""

    AS_IS = "as it is"
    GROWN = "grown"
    MIGRATED = "migrated"


@dataclass(frozen=True)
class StateUpgrade:
    """How state can be taken over from another version of an operator.

    Parameters
    ----------
    past : Evolution
        What the user says.
    step : Step, optional
        What the operator knows of its own tables; None: nothing.
    """

    past: Evolution = NOTHING
    step: Step | None = None

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return a table of an earlier version under the present schema; None where that is impossible."""
        return self.step.grown(table, known, at) if offers(self.step, Growable) else None


@dataclass(frozen=True)
class TableMove:
    """Where one state table comes from.

    Parameters
    ----------
    way : Way
        How.
    source : str
        The table before; empty: it begins empty.
    migrate : callable, optional
        The user's function.
    """

    way: Way
    source: str
    migrate: Migration | None = None


@dataclass(frozen=True)
class StateMove:
    """Where the state of one operator comes from.

    Parameters
    ----------
    tables : mapping of str to TableMove
        Each of its tables.
    dropped : tuple of str
        Tables before that no table comes from.
    reasons : tuple of str
        Why it cannot be taken over; empty when it can.
    """

    tables: Mapping[str, TableMove] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether every table stays as it is."""
        return not self.dropped and all(move.way is Way.AS_IS for move in self.tables.values())

    def lines(self) -> Iterator[str]:
        """Say what happens to tables that do not stay as they are."""
        for name, move in self.tables.items():
            if move.way is Way.GROWN:
                what = "gets columns, neutral where there was something already" if move.source else "begins empty"
                yield f"state table {name!r} {what}"
            elif move.way is Way.MIGRATED:
                called = "" if move.source == name else f" of what was {move.source!r}"
                yield f"state table {name!r} is what migrate= makes{called}"
        for name in self.dropped:
            yield f"state table {name!r} is dropped"


_EPOCH_0 = StepTime(0, 0)


def state_move(old: StateSchema, new: StateSchema, upgrade: StateUpgrade) -> StateMove:
    """Return where the state of an operator comes from.

    Parameters
    ----------
    old, new : StateSchema
        The previous state tables, and the new ones.
    upgrade : StateUpgrade
        How tables that differ can be taken over.
    """
    migrate = upgrade.past.migrate
    moves: dict[str, TableMove] = {}
    differ: list[str] = []
    for name, table in new.tables.items():
        was = old.tables.get(name)
        if was is not None and was.is_like(table):
            moves[name] = TableMove(Way.AS_IS, name)
        else:
            differ.append(name)
    left = [name for name in old.tables if name not in new.tables]
    reasons = list(_head_reasons(old, new)) if migrate is None else []
    grown = {name for name in differ if old.kind == new.kind and _can_grow(name, old, new, upgrade)}
    chosen = _functions(migrate, differ, grown, new, reasons)
    dropped = list(left)
    for name in differ:
        if name in chosen:
            source = name if name in old.tables else left[0] if len(left) == 1 else ""
            if not source:
                which = f"there are {', '.join(left)}" if left else "nothing is left over"
                reasons.append(f"migrate= of state table {name!r} has no table to take: it was not there, and {which}")
            moves[name] = TableMove(Way.MIGRATED, source, chosen[name])
            dropped = [other for other in dropped if other != source]
        elif name in grown:
            moves[name] = TableMove(Way.GROWN, name if name in old.tables else "")
        else:
            reasons.append(_was_and_is(name, old.tables.get(name), new.tables[name]))
    if migrate is None:
        reasons += [_was_and_is(name, old.tables[name], None) for name in dropped]
    in_order = {name: moves[name] for name in new.tables if name in moves}
    taken = {move.source for move in in_order.values()}
    invariant(not taken & {*dropped}, f"state tables are to be taken over and dropped at once: {taken & {*dropped}}.")
    invariant({*old.tables} <= taken | {*dropped} or reasons, f"state tables {[*old.tables]} would be lost unsaid.")
    return StateMove(in_order, tuple(dropped), tuple(reasons))


def _head_reasons(old: StateSchema, new: StateSchema) -> Iterator[str]:
    if old.kind != new.kind:
        yield f"it was {old.kind}, and is {new.kind}"
    if not old.key.equals(new.key):
        yield f"its key was ({columns_text(old.key)}), and is ({columns_text(new.key)})"


def _can_grow(name: str, old: StateSchema, new: StateSchema, upgrade: StateUpgrade) -> bool:
    was = old.tables.get(name)
    if was is not None and sorted(was.key) != sorted(new.tables[name].key):
        return False
    return upgrade.grown(name, None if was is None else was.schema.empty_table(), _EPOCH_0) is not None


def _functions(
    migrate: Migration | Mapping[str, Migration] | None,
    differ: list[str],
    grown: set[str],
    new: StateSchema,
    reasons: list[str],
) -> dict[str, Migration]:
    """Return the user's function for each table that has one."""
    if migrate is None or not differ:
        return {}
    if isinstance(migrate, Mapping):
        unknown = [name for name in migrate if name not in new.tables]
        if unknown:
            there = ", ".join(new.tables) or "none"
            reasons.append(f"migrate= names the state table {unknown[0]!r}, and the operator has {there}")
        return {name: migrate[name] for name in differ if name in migrate}
    wanted = [name for name in differ if name not in grown] or differ
    if len(wanted) > 1:
        several = ", ".join(wanted)
        reasons.append(f"migrate= is one function, and several state tables differ ({several}): give a mapping of them")
        return {}
    return {wanted[0]: migrate}


def _was_and_is(name: str, was: StateTable | None, now: StateTable | None) -> str:
    return f"state table {name!r} was {_table_text(was)}, and is {_table_text(now)}"


def columns_text(schema: pa.Schema) -> str:
    """Return columns and their types as people write them."""
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema)


def _table_text(table: StateTable | None) -> str:
    return "not there" if table is None else f"({columns_text(table.schema)}; key {', '.join(table.key) or 'none'})"
