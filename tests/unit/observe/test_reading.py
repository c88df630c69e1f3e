"""How far sources are: what sinks hold, what was read, and where it ends; one that does not answer hides nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.capabilities import offers
from holdfast.commit.owner import Owner
from holdfast.errors import Unavailable
from holdfast.json_values import as_json
from holdfast.observe.inspection import Inspection, SegmentReport, SinkReport, SourceReport, SparkHeads
from holdfast.observe.reading import inspect_sources, source_lines
from holdfast.ports import Held, MeasuredSpec, SegmentLag
from holdfast.positions import SourcePositions

NOW_US = 100_000_000


class Clock:
    def now_us(self) -> int:
        return NOW_US

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError("who only looks waits for nothing")


@dataclass
class Spec:
    ends: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    is_away: bool = False
    asked: SourcePositions = field(default_factory=dict)

    def lags(self, name: str, positions: SourcePositions) -> Sequence[SegmentLag]:
        if self.is_away:
            raise Unavailable(f"source {name!r}: does not answer.")
        self.asked = positions
        return [SegmentLag(one, one, int(positions.get(one, 2)), end, at) for one, (end, at) in self.ends.items()]


@dataclass
class Node:
    name: str
    source_spec: Any


@dataclass
class Graph:
    sources: tuple[Node, ...]


def inspection(**held: dict[str, int]) -> Inspection:
    sinks = tuple(
        SinkReport(name, "fake", "exactly-once", held=Held(1, positions={"events": at})) for name, at in held.items()
    )
    return Inspection("c", "p", 1, Owner(), 0, (), (SparkHeads("spark/1", 1, 1, 1, ()),), sinks)


def planned(tmp_path: Path, **positions: int) -> None:
    log = tmp_path / "spark/1/offsets"
    log.mkdir(parents=True)
    offset = {"positions": positions, "size_bytes": 0, "row_count": 0}
    (log / "0").write_text(f'v2\n{{"batchTimestampMs": 1}}\nevents:{json.dumps(offset)}')


def test_a_segment_is_behind_by_what_the_slowest_sink_lacks(tmp_path: Path) -> None:
    planned(tmp_path, a=9, b=4)
    spec = Spec({"a": (12, NOW_US - 2_500_000), "b": (4, None), "new": (7, None)})
    assert offers(spec, MeasuredSpec)
    found = inspection(trips={"a": 7, "b": 4, "@bound": 3}, log={"a": 5, "b": 4})
    graph: Any = Graph((Node("events", spec), Node("other", object())))
    (report,) = inspect_sources(graph, found, tmp_path, Clock())
    assert report == SourceReport(
        "events",
        (
            SegmentReport("a", {"trips": 7, "log": 5}, 9, 12, 7, 2.5),
            SegmentReport("b", {"trips": 4, "log": 4}, 4, 4, 0, 0.0),
            SegmentReport("new", {}, None, 7, 5, None),
        ),
    )
    assert as_json(report)["segments"][0]["held"] == {"trips": 7, "log": 5}
    assert list(source_lines((report,))) == [
        "source events",
        "  a: held trips=7 log=5, read 9, end 12, lag 7 rows, 2.5 s",
        "  b: held trips=4 log=4, read 4, end 4, lag 0 rows, 0.0 s",
        "  new: held nothing known, read nothing known, end 7, lag 5 rows, of unknown age",
    ]


def test_without_sinks_what_was_read_counts_and_who_is_away_is_named(tmp_path: Path) -> None:
    planned(tmp_path, a=9)
    spec = Spec({"a": (12, None)})
    graph: Any = Graph((Node("events", spec), Node("gone", Spec(is_away=True))))
    here, away = inspect_sources(graph, inspection(), tmp_path, Clock())
    assert here.segments == (SegmentReport("a", {}, 9, 12, 3, None),)
    assert list(source_lines((away,))) == ["source gone  does not answer: Unavailable: source 'gone': does not answer."]
    assert inspect_sources(graph, Inspection("c", "p", 1, Owner(), 0, (), ()), tmp_path, Clock())[0].segments == (
        SegmentReport("a", {}, None, 12, 10, None),
    )


def test_only_those_that_are_furthest_behind_are_shown() -> None:
    many = tuple(SegmentReport(f"t/{at}", {}, None, 100, at, 1.0) for at in range(25))
    lines = list(source_lines((SourceReport("events", many),)))
    assert len(lines) == 22
    assert lines[1].startswith("  t/5:")
    assert lines[-1] == "  and 5 more, which are less behind"
