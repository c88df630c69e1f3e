"""Rows of the state of flowgraphs: which an epoch reads, writes and removes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.flow.queues import Payload
from holdfast.state import joins, tables
from holdfast.state.step import PLACE, Arrivals, Change, StateTable

NODE = "__node__"
SET = "__set__"
STATE = "__state__"


class ChangedRows:
    """Rows of a state table that an epoch writes and removes."""

    def __init__(self, declared: StateTable) -> None:
        self._declared = declared
        self.upserts: list[dict[str, Payload]] = []
        self.deletes: list[dict[str, Payload]] = []

    def change(self) -> Change:
        """Return them as a change."""
        return Change(
            pa.Table.from_pylist(self.upserts, self._declared.schema),
            pa.Table.from_pylist(self.deletes, tables.key_schema(self._declared)),
        )


def states_by_key(table: pa.Table, keys: pa.Table, names: Sequence[str]) -> dict[int, dict[str, bytes]]:
    """Return key -> node -> state."""
    rows = joins.semi_join(table, keys, names)
    found: dict[int, dict[str, bytes]] = {}
    codes = joins.index_in(rows, keys, names).tolist()
    columns = (rows.column(NODE).to_pylist(), rows.column(STATE).to_pylist())
    for code, node, state in zip(codes, *columns, strict=True):
        found.setdefault(code, {})[node] = state
    return found


def replays_of(table: pa.Table, key: pa.Table, names: Sequence[str]) -> dict[str, list[bytes]]:
    """Return node -> the input sets of a key, in their order."""
    rows = joins.semi_join(table, key, names).sort_by(SET)
    found: dict[str, list[bytes]] = {}
    for node, data in zip(rows.column(NODE).to_pylist(), rows.column(STATE).to_pylist(), strict=True):
        found.setdefault(node, []).append(data)
    return found


def with_key(error: HoldfastError, key: str) -> HoldfastError:
    """Return an error of a graph as one of a key.  What was not reachable may be so at the next attempt."""
    kind = type(error) if isinstance(error, Corrupt | Unavailable) else InvalidPipeline
    if isinstance(error.__cause__, ConnectionError | TimeoutError):
        kind = Unavailable
    return kind(f"{key}: {error.what}", why=error.why, do=error.do, participant=error.participant)


def key_text(key: Mapping[str, Payload]) -> str:
    """Return a key for messages."""
    return ", ".join(map(repr, key.values())) or "(one for all rows)"


def rows_of_key(arrivals: Mapping[str, Arrivals], key: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of a key, of the first input that has some, for errors."""
    for given in arrivals.values():
        rows = joins.semi_join(given.rows, key, names)
        if rows.num_rows:
            return rows.drop_columns([PLACE])
    return next(iter(arrivals.values())).rows.slice(0, 0).drop_columns([PLACE])
