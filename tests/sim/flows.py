"""Flows of rows in a random graph, and, in plain Python over all rows at once, what must come out of them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from holdfast.graph.nodes import Node, SinkNode, Stream
from holdfast.testing.simulation.levels import Event
from holdfast.testing.stand_in import StandIn

Row = dict[str, Any]
Lines = dict[str, list[Row]]
"""Key -> its rows, in the order in which they come."""

KEYS = "abc"
FAR = 10**6
"""Disorder that nothing exceeds."""


@dataclass(frozen=True)
class Flow:
    """A stream, and what it must give.

    Parameters
    ----------
    stream : Stream
        Of rows with the columns ``k``, ``time`` and ``value``.
    lines : mapping
        Its rows.
    columns : tuple of str
        What they have; also where the graph does not know it.
    time, value : str
        The column of event time; a BIGINT column to compute with.
    disorder : int
        What its rows promise; one that breaks the promise is late.
    is_ordered : bool
        Whether the order of ``lines`` is certain.  A union has none.
    is_strict : bool
        Whether no key has a time twice and none goes back.
    """

    stream: Stream
    lines: Lines
    columns: tuple[str, ...] = ("k", "t", "v")
    time: str = "t"
    value: str = "v"
    disorder: int = 0
    is_ordered: bool = True
    is_strict: bool = False

    @property
    def promise(self) -> int:
        """The disorder that a consumer must allow."""
        return self.disorder if self.is_ordered else FAR

    @property
    def is_timed(self) -> bool:
        """Whether the graph knows its timestamp."""
        return self.stream.timestamp is not None

    @property
    def row_count(self) -> int:
        """How many rows it gives."""
        return len([row for rows in self.lines.values() for row in rows])

    def where(self, keeps: Callable[[Row], bool]) -> Lines:
        """Return the rows that something keeps."""
        return {key: [row for row in rows if keeps(row)] for key, rows in self.lines.items()}

    def judged(self) -> tuple[Lines, Lines]:
        """Return the rows in time, and those that a consumer must find late."""
        good: Lines = {}
        late: Lines = {}
        for key, rows in self.lines.items():
            newest = -FAR * 2
            for row in rows:
                is_late = row[self.time] < newest - self.promise
                (late if is_late else good).setdefault(key, []).append(row)
                newest = row[self.time] if row[self.time] > newest else newest
        return good, late


@dataclass
class Graph:
    """A graph under construction: flows to build on, sinks with what they must show, and the events of the sources."""

    chance: random.Random
    flows: list[Flow] = field(default_factory=list)
    sides: dict[str, Flow] = field(default_factory=dict)
    """Side output -> the last one that was made, as a flow to build on."""
    sinks: list[SinkNode] = field(default_factory=list)
    expected: dict[str, list[Row]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    stand_ins: dict[str, StandIn] = field(default_factory=dict)
    late_count: int = 0

    def name(self, kind: str) -> str:
        """Return a name that is not taken."""
        self.kinds.append(kind)
        return f"{kind}{len(self.kinds)}"

    def column(self, of: str) -> str:
        """Return the name of a column that is not taken."""
        return f"{of}{len(self.kinds)}"

    def write(self, flow: Flow) -> None:
        """Put a sink behind a flow."""
        name = f"sink{len(self.sinks)}"
        self.sinks.append(flow.stream | hf.write.console(name=name))
        self.expected[name] = [row for rows in flow.lines.values() for row in rows]

    def add_side(self, stream: Stream, output: str, of: Mapping[str, tuple[Flow, Lines]]) -> None:
        """Note rows that leave an operator beside the others, each in the column of its input, and write them.

        Unmatched ones leave in the order of time, those of one time as the inputs stand; others as they came.
        """
        side = self.side_of(stream, output, of)
        self.sides[output] = side
        self.write(side)
        self.late_count += side.row_count if output == "late" else 0

    def side_of(self, stream: Stream, output: str, of: Mapping[str, tuple[Flow, Lines]]) -> Flow:
        """Return a side output as a flow; unmatched rows are in the order of time."""
        lines: Lines = {}
        for name, (flow, given) in of.items():
            for key, rows in given.items():
                for row in rows:
                    beside = {other: row if other == name else None for other in of}
                    lines.setdefault(key, []).append({"k": key, "timestamp": row[flow.time], "input": name, **beside})
        in_order = output == "unmatched"
        if in_order:
            lines = {key: sorted(rows, key=lambda row: row["timestamp"]) for key, rows in lines.items()}
        return Flow(
            getattr(stream, output),
            lines,
            ("k", "timestamp", "input", "reason", *of),
            time="timestamp",
            value="timestamp",
            disorder=0 if in_order else FAR,
            is_ordered=in_order or len([name for name, (_, given) in of.items() if any(given.values())]) < 2,
        )

    def problems(self, visible: Mapping[str, Sequence[Sequence[object]]]) -> list[str]:
        """Say what the sinks show and should not, and the other way round."""
        found = []
        for name, rows in visible.items():
            wanted = Counter(_told(row.values()) for row in self.expected[name])
            shown = Counter(_told(row) for row in rows)
            found += [f"{name}: {number} times too few: {row}" for row, number in (wanted - shown).items()]
            found += [f"{name}: {number} times too often: {row}" for row, number in (shown - wanted).items()]
        return found

    def pairs(self) -> set[tuple[str, str]]:
        """Return which operators stand directly behind which."""
        pipeline = hf.Pipeline("pairs", *self.sinks)
        return {(label(node), label(before)) for node in pipeline.nodes for before in _behind(node)}


def _behind(node: Node) -> Iterator[Node]:
    """Yield what a node stands behind; not what an aggregate has put there for its conditions."""
    for before in node.inputs:
        has_conditions = node.kind == "aggregate" and any(one.condition for _, one in node.spec.aggregates)
        yield from before.inputs if has_conditions else (before,)


SIDES = ("late", "shed", "unmatched", "rejects")
OUTPUT = "output"
"""A further output of a flowgraph: a side output by the name of the graph's."""


def label(node: Node) -> str:
    """Return what a node was made as: its kind, and of one kind more than one way."""
    if node.is_source:
        return "source"
    made = re.match(r"[a-z_]+", node.name)
    assert made is not None
    return node.kind if node.kind in (*SIDES, OUTPUT, "unmet") else made.group()


def _told(values: Any) -> str:
    return repr(tuple(_without_reasons(value) for value in values if not _is_reason(value)))


def _without_reasons(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_reasons(of) for name, of in value.items() if not _is_reason(of)}
    return [_without_reasons(each) for each in value] if isinstance(value, list) else value


def _is_reason(value: object) -> bool:
    """Tell the text that says why a row is late, or alone: it is the operator's to word."""
    return isinstance(value, str) and value.startswith(("timestamp ", "alone in its set", "no row of"))
