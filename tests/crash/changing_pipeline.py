"""Graphs before and after a change, and in plain Python what must come of each row (design/0011, section 5).

The rule: rows before the change point have their effect by the graph before, rows after it by the graph after; an
operator that keeps its state goes on with it, one that is new begins without.  Each version of a graph stands beside a
function that does the same to one epoch's rows, with dictionaries for state.

Run as a script by the lives that are killed: ``CHANGE`` and ``GRAPH_VERSION`` say which graph, ``GIVEN`` how much there
is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.graph.nodes import SinkNode, Stream

Row = dict[str, Any]
Rows = Sequence[Row]


def _rows(texts: Sequence[str], start: int) -> list[Rows]:
    """Return epochs of rows, one for each letter: values and times ascend."""
    found: list[Rows] = []
    number = start
    for text in texts:
        epoch = []
        for letter in text:
            number += 1
            epoch.append({"k": letter, "t": 2 * number, "v": number})
        found.append(epoch)
    return found


GIVEN = _rows(("aab", "bc", "abc", "cca", "abb", "bca", "cab", "acb", "bbc", "aca"), 0)
MORE = _rows(("xa", "x", "ay", "xb", "ya", "b", "x", "y"), 100)
SCHEMA = "k STRING, t BIGINT, v BIGINT"


@dataclass
class Memory:
    """What the plain computation has seen and given.

    Parameters
    ----------
    state : dict
        Operator -> its memory.
    out : dict
        Sink -> the rows that it must hold.
    """

    state: dict[str, dict[Any, Any]] = field(default_factory=dict)
    out: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def of(self, operator: str) -> dict[Any, Any]:
        return self.state.setdefault(operator, {})

    def give(self, sink: str, *rows: tuple[Any, ...]) -> None:
        self.out.setdefault(sink, []).extend(rows)


@dataclass(frozen=True)
class Build:
    """What a version of the graph is made of.

    Parameters
    ----------
    work : Path
        Where its sinks write.
    given, more : int
        How many epochs of rows the sources have.
    """

    work: Path
    given: int
    more: int

    def source(self, name: str = "given") -> Stream:
        rows = GIVEN[: self.given] if name == "given" else MORE[: self.more]
        return hf.read.rows(rows, schema=SCHEMA, timestamp="t", name=name)

    def table(self, stream: Stream, name: str, *columns: str, **options: Any) -> SinkNode:
        chosen = stream | hf.select(*columns, name=f"{name}_columns")
        return chosen | hf.write.sqlite(self.work / f"{name}.db", table="rows", name=name, **options)


@dataclass(frozen=True)
class Version:
    """One version of the graph.

    Parameters
    ----------
    build : callable
        Returns its sinks.
    epoch : callable
        Does the same to an epoch of ``given`` and of ``more``.
    settings : mapping of str to int or str
        Settings of its runs.
    moves : mapping of str to str
        Operator -> the one before whose state it goes on with; any other begins without.
    filled : sequence of str
        Sinks that get everything from the beginning, and all state is computed anew for that.
    """

    build: Callable[[Build], Sequence[SinkNode]]
    epoch: Callable[[Memory, Rows, Rows], None]
    settings: Mapping[str, int | str] = field(default_factory=dict)
    moves: Mapping[str, str] = field(default_factory=dict)
    filled: Sequence[str] = ()


@dataclass(frozen=True)
class Change:
    """A change of the graph, or several in a row.

    Parameters
    ----------
    versions : sequence of Version
        In order.
    verdicts : sequence of mapping of str to str
        For each change, what ``holdfast plan`` must say of each node that does not stay as it is.
    """

    versions: Sequence[Version]
    verdicts: Sequence[Mapping[str, str]]


def pipeline_of(change: str, version: int, work: Path, given: int, more: int = 0) -> hf.Pipeline:
    return hf.Pipeline("changing", *CHANGES[change].versions[version].build(Build(work, given, more)))


# --- operators, and the same in plain Python ----------------------------------------------------------------------


def counted(stream: Stream, name: str, **past: Any) -> Stream:
    return stream | hf.accumulate(by="k", n=hf.count(), name=name, **past)


def count(memory: dict[str, int], rows: Rows, column: str = "n") -> list[Row]:
    found = []
    for row in rows:
        memory[row["k"]] = memory.get(row["k"], 0) + 1
        found.append({**row, column: memory[row["k"]]})
    return found


def summed(stream: Stream, name: str) -> Stream:
    return stream | hf.accumulate(by="k", s=hf.sum("v"), name=name)


def add(memory: dict[str, int], rows: Rows) -> list[Row]:
    found = []
    for row in rows:
        memory[row["k"]] = memory.get(row["k"], 0) + row["v"]
        found.append({**row, "s": memory[row["k"]]})
    return found


def only(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


# --- versions -----------------------------------------------------------------------------------------------------


def _counts(
    name: str = "counted", sinks: Sequence[str] = ("counts",), columns: Sequence[str] = ("k", "n"), **past: Any
) -> Any:
    def build(of: Build) -> list[SinkNode]:
        stream = counted(of.source(), name, **past)
        return [of.table(stream, sink, *columns) for sink in sinks]

    return build


def _count(name: str = "counted", sinks: Sequence[str] = ("counts",), columns: Sequence[str] = ("k", "n")) -> Any:
    def epoch(memory: Memory, given: Rows, more: Rows) -> None:
        rows = only(count(memory.of(name), given), *columns)
        for sink in sinks:
            memory.give(sink, *rows)

    return epoch


TWO_COUNTS = {"counting": "counting", "adding": "adding"}


def _two_counts_build(more: int | None) -> Any:
    """Return a sum behind a count, and between them, where it is said, what only Spark evaluates."""

    def build(of: Build) -> list[SinkNode]:
        stream = counted(of.source(), "counting")
        if more is not None:
            stream = stream | hf.sql(f"select k, t, v + abs({more}) as v, n from input", name="between")
        return [of.table(summed(stream, "adding"), "sums", "k", "n", "s")]

    return build


def _two_counts_epoch(more: int) -> Any:
    def epoch(memory: Memory, given: Rows, _: Rows) -> None:
        rows = [{**row, "v": row["v"] + more} for row in count(memory.of("counting"), given)]
        memory.give("sums", *only(add(memory.of("adding"), rows), "k", "n", "s"))

    return epoch


KEPT = {"counted": "counted"}
COUNTS = Version(_counts(), _count(), moves=KEPT)


def _filled_build(*, has_state: bool) -> Any:
    def build(of: Build) -> list[SinkNode]:
        if not has_state:
            given = of.source()
            return [of.table(given, "raw", "k", "v"), of.table(given, "others", "k", "v", backfill=True)]
        stream = counted(of.source(), "counted")
        return [of.table(stream, "counts", "k", "n"), of.table(stream, "others", "k", "n", backfill=True)]

    return build


def _filled_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    memory.give("raw", *only(given, "k", "v"))
    memory.give("others", *only(given, "k", "v"))


def _union_build(of: Build) -> list[SinkNode]:
    both = hf.union(of.source(), of.source("more"), name="both")
    return [of.table(counted(both, "counted"), "counts", "k", "n")]


def _union_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    memory.give("counts", *only(count(memory.of("counted"), [*given, *more]), "k", "n"))


UNION = Version(_union_build, _union_epoch, moves=KEPT)


def _plain_build(of: Build) -> list[SinkNode]:
    return [of.table(of.source(), "raw", "k", "v")]


def _plain_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    memory.give("raw", *only(given, "k", "v"))


def _both_build(of: Build) -> list[SinkNode]:
    given = of.source()
    return [of.table(given, "raw", "k", "v"), of.table(counted(given, "counted"), "counts", "k", "n")]


def _both_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    _plain_epoch(memory, given, more)
    _count()(memory, given, more)


def _back_build(of: Build) -> list[SinkNode]:
    given = of.source()  # the sink that there was would lack what came between
    return [of.table(given, "raw", "k", "v"), of.table(counted(given, "counted"), "back", "k", "n")]


def _back_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    _plain_epoch(memory, given, more)
    memory.give("back", *only(count(memory.of("counted"), given), "k", "n"))


def _reduced_build(*, is_wide: bool) -> Any:
    def build(of: Build) -> list[SinkNode]:
        more: dict[str, Any] = {"total": hf.sum("v"), "last": hf.max("t")} if is_wide else {}
        stream = of.source() | hf.reduce(by="k", n=hf.count(), **more, name="sums")
        sinks = [of.table(stream, "counts", "k", "n")]
        return [*sinks, of.table(stream, "totals", "k", "total", "last")] if is_wide else sinks

    return build


def _reduced_epoch(*, is_wide: bool) -> Any:
    def epoch(memory: Memory, given: Rows, more: Rows) -> None:
        known = memory.of("sums")
        for row in given:
            one = known.setdefault(row["k"], {"n": 0})
            one["n"] += 1
            if is_wide:  # begins where it was added
                one["total"] = one.get("total", 0) + row["v"]
                one["last"] = max(one.get("last", 0), row["t"])
        for key in {row["k"] for row in given}:
            memory.give("counts", (key, known[key]["n"]))
            if is_wide:
                memory.give("totals", (key, known[key]["total"], known[key]["last"]))

    return epoch


WITH_V = ("k", "n", "v")


def _inserted_build(of: Build) -> list[SinkNode]:
    before = counted(of.source(), "earlier") | hf.filter("n > 1", name="again") | hf.select("k", "t", "v", name="bare")
    return [of.table(counted(before, "counted"), "counts", *WITH_V)]


def _inserted_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    again = [row for row in count(memory.of("earlier"), given) if row["n"] > 1]
    _count(columns=WITH_V)(memory, again, more)


def _swap_build(*, is_swapped: bool) -> Any:
    def build(of: Build) -> list[SinkNode]:
        if is_swapped:
            first = summed(of.source(), "adding") | hf.filter("s > 60", name="much")
            stream = counted(first, "counting")
        else:
            first = counted(of.source(), "counting") | hf.filter("n > 1", name="many")
            stream = summed(first, "adding")
        return [of.table(stream, "both", "k", "n", "s", "v")]

    return build


def _swap_epoch(*, is_swapped: bool) -> Any:
    def epoch(memory: Memory, given: Rows, more: Rows) -> None:
        counts, sums = memory.of("counting"), memory.of("adding")
        if is_swapped:
            rows = count(counts, [row for row in add(sums, given) if row["s"] > 60])
        else:
            rows = add(sums, [row for row in count(counts, given) if row["n"] > 1])
        memory.give("both", *only(rows, "k", "n", "s", "v"))

    return epoch


SWAP = {"counting": "counting", "adding": "adding"}


def _windows_build(size: int) -> Any:
    def build(of: Build) -> list[SinkNode]:
        stream = of.source() | hf.aggregate(by="k", window=hf.tumbling(size), n=hf.count(), name="windows")
        return [of.table(stream, "windows_table", "k", "window_start", "window_end", "n")]

    return build


def _windows_epoch(size: int) -> Any:
    def epoch(memory: Memory, given: Rows, more: Rows) -> None:
        """An open window keeps its rows; where one of the new length begins where it does, they are one."""
        opened, reached = memory.of("windows"), memory.of("reached")
        for row in given:
            start = row["t"] // size * size
            end, rows = opened.get((row["k"], start), (0, 0))
            opened[row["k"], start] = (max(end, start + size), rows + 1)
            reached[row["k"]] = row["t"]
        for (key, start), (end, rows) in list(opened.items()):
            if end <= reached[key]:
                memory.give("windows_table", (key, start, end, rows))
                del opened[key, start]

    return epoch


WINDOWS = {"windows": "windows", "reached": "reached"}
SPLIT = {"buckets": 2}
FIVE = {"partitions": 5}


def _named_union_build(of: Build) -> list[SinkNode]:
    both = hf.union(of.source(), of.source("more"), name="both")
    return [of.table(counted(both, "renamed", renamed_from="counted"), "counts", "k", "n")]


def _named_union_epoch(memory: Memory, given: Rows, more: Rows) -> None:
    memory.give("counts", *only(count(memory.of("renamed"), [*given, *more]), "k", "n"))


NEW, GONE, CHANGED = "new", "gone", "changed"
IN_UNION = {"given": CHANGED, "more": NEW, "both": NEW, "counted": CHANGED}
OF_COUNTS = {"counts": NEW, "counts_columns": NEW, "counted": NEW}

CHANGES: dict[str, Change] = {
    "second source in a union": Change((COUNTS, UNION), (IN_UNION,)),
    "stateless to stateful": Change(
        (Version(_plain_build, _plain_epoch), Version(_both_build, _both_epoch)), ({"given": CHANGED, **OF_COUNTS},)
    ),
    "one more aggregate column": Change(
        (
            Version(_reduced_build(is_wide=False), _reduced_epoch(is_wide=False)),
            Version(_reduced_build(is_wide=True), _reduced_epoch(is_wide=True), moves={"sums": "sums"}),
        ),
        ({"given": CHANGED, "sums": "migrated", "totals": NEW, "totals_columns": NEW},),
    ),
    "an operator inserted before another": Change(
        (
            Version(_counts(columns=WITH_V), _count(columns=WITH_V)),
            Version(_inserted_build, _inserted_epoch, moves=KEPT),
        ),
        ({"given": CHANGED, "earlier": NEW, "again": NEW, "bare": NEW, "counted": CHANGED},),
    ),
    "rename without renamed_from": Change(
        (COUNTS, Version(_counts("renamed"), _count("renamed"), settings={"drop_state": "counted"})),
        ({"given": CHANGED, "renamed": NEW, "counted": GONE, "counts_columns": CHANGED},),
    ),
    "rename with renamed_from": Change(
        (COUNTS, Version(_counts("renamed", renamed_from="counted"), _count("renamed"), moves={"renamed": "counted"})),
        ({"given": CHANGED, "renamed": "renamed", "counts_columns": CHANGED},),
    ),
    "a stateful operator removed and brought back": Change(
        (
            Version(_both_build, _both_epoch),
            Version(_plain_build, _plain_epoch),
            Version(_back_build, _back_epoch),
        ),
        (
            {"given": CHANGED, "counts": GONE, "counts_columns": GONE, "counted": GONE},
            {"given": CHANGED, "back": NEW, "back_columns": NEW, "counted": NEW},
        ),
    ),
    "two operators swapped": Change(
        (
            Version(_swap_build(is_swapped=False), _swap_epoch(is_swapped=False)),
            Version(_swap_build(is_swapped=True), _swap_epoch(is_swapped=True), moves=SWAP),
        ),
        (
            {
                "given": CHANGED,
                "many": GONE,
                "much": NEW,
                "counting": CHANGED,
                "adding": CHANGED,
                "both_columns": CHANGED,
            },
        ),
    ),
    "a map added between two operators, edited and left out": Change(
        (
            Version(_two_counts_build(None), _two_counts_epoch(0)),
            Version(_two_counts_build(1), _two_counts_epoch(1), moves=TWO_COUNTS),
            Version(_two_counts_build(3), _two_counts_epoch(3), moves=TWO_COUNTS),
            Version(_two_counts_build(None), _two_counts_epoch(0), moves=TWO_COUNTS),
        ),
        (
            {"given": CHANGED, "between": NEW, "adding": CHANGED},
            {"given": CHANGED, "between": CHANGED},
            {"given": CHANGED, "between": GONE, "adding": CHANGED},
        ),
    ),
    "another window length": Change(
        (
            Version(_windows_build(10), _windows_epoch(10)),
            Version(_windows_build(20), _windows_epoch(20), moves=WINDOWS),
        ),
        ({"given": CHANGED, "windows": CHANGED},),
    ),
    "a sink added": Change(
        (COUNTS, Version(_counts(sinks=("counts", "others")), _count(sinks=("counts", "others")), moves=KEPT)),
        ({"given": CHANGED, "others": NEW, "others_columns": NEW},),
    ),
    "a sink added, with everything": Change(
        (
            COUNTS,
            Version(_filled_build(has_state=True), _count(sinks=("counts", "others")), filled=["others"]),
        ),
        ({"given": CHANGED, "counted": "rebuilt", "others": NEW, "others_columns": NEW},),
    ),
    "a sink added without state, with everything": Change(
        (
            Version(_plain_build, _plain_epoch),
            Version(_filled_build(has_state=False), _filled_epoch, filled=["others"]),
        ),
        ({"given": CHANGED, "others": NEW, "others_columns": NEW},),
    ),
    "a sink dropped and brought back, with what it missed": Change(
        (
            Version(_counts(sinks=("counts", "others")), _count(sinks=("counts", "others"))),
            COUNTS,
            Version(_filled_build(has_state=True), _count(sinks=("counts", "others")), filled=["others"]),
        ),
        (
            {"given": CHANGED, "others": GONE, "others_columns": GONE},
            {"given": CHANGED, "counted": "rebuilt", "others": NEW, "others_columns": NEW},
        ),
    ),
    "a sink dropped": Change(
        (Version(_counts(sinks=("counts", "others")), _count(sinks=("counts", "others"))), COUNTS),
        ({"given": CHANGED, "others": GONE, "others_columns": GONE},),
    ),
    "two partitions to five": Change(
        (
            Version(_counts(), _count(), SPLIT),
            Version(_counts(), _count(), FIVE, KEPT),
        ),
        ({"given": CHANGED},),
    ),
    "three changes in a row": Change(
        (
            Version(_counts(), _count(), SPLIT),
            UNION,
            Version(_named_union_build, _named_union_epoch, FIVE, {"renamed": "counted"}),
            Version(_counts("renamed"), _count("renamed"), {}, {"renamed": "renamed"}),
        ),
        (
            IN_UNION,
            {"given": CHANGED, "more": CHANGED, "renamed": "renamed", "counts_columns": CHANGED},
            {"given": CHANGED, "more": GONE, "both": GONE, "renamed": CHANGED},
        ),
    ),
}

if "CHANGE" in os.environ:
    pipeline = pipeline_of(
        os.environ["CHANGE"], int(os.environ["GRAPH_VERSION"]), Path(os.environ["CRASH_WORK"]), int(os.environ["GIVEN"])
    )
