"""No view takes more than 200 ms with 10,000 epochs, 200 nodes and 5,000 segments (issue 41): printed, and looked at by
people, because a machine that is busy is no defect of the code.  What is asserted is the size of what is sent.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import cast

import pytest

from holdfast.commit.ledger import Standing
from holdfast.display.drawing import Box
from holdfast.observe.inspection import DecisionSummary, SinkReport
from holdfast.page import layout
from holdfast.page.model import Asked, Moment
from holdfast.page.reading import CheckpointReader
from holdfast.ports import Held
from holdfast.status import OperatorStatus, SinkStatus, SourceStatus, Status
from holdfast.store import records
from holdfast.time_use import NodeTime
from tests.page.given import NOW_US, GivenReader, behind_a_sink, epoch_lines, inspection, letter, waiting_key

pytestmark = pytest.mark.nightly

EPOCHS, NODES, SEGMENTS = 10_000, 200, 5_000
BYTES_MAX = 500_000


def say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{line}")


def large() -> GivenReader:
    status = behind_a_sink()
    names = [f"node_{number}" for number in range(NODES)]
    quarter = NODES // 4
    some, many = ([f"{n}" for n in range(count)] for count in (5, SEGMENTS))
    sources = tuple(
        SourceStatus(name, dict.fromkeys(at, 10), dict.fromkeys(at, 99), 445, 9, lag_s=1.0)
        for name, at in zip(names[:quarter], [many, *[some] * (quarter - 1)], strict=True)
    )
    wait = waiting_key(status)
    operators = tuple(OperatorStatus(n, "sync", 9, 90, 3, waits=(wait,) * 10) for n in names[quarter : 3 * quarter])
    sinks = tuple(SinkStatus(name, "sqlite", "exactly-once", epoch=EPOCHS, rows=9) for name in names[3 * quarter :])
    boxes = [Box(name, "kind", "source") for name in names[:quarter]]
    boxes += [Box(name, "sync", "operator", (at % quarter,)) for at, name in enumerate(names[quarter : 3 * quarter])]
    boxes += [Box(name, "sqlite", "sink", (quarter + at,)) for at, name in enumerate(names[3 * quarter :])]
    assert status.time is not None
    use = replace(status.time, nodes=tuple(NodeTime(name, 1.0, 1.0, 0.1, 1 / NODES) for name in names))
    of = replace(status, sources=sources, operators=operators, sinks=sinks, time=use)
    held = {"node_0": dict.fromkeys(map(str, range(SEGMENTS)), 10)}
    reports = tuple(SinkReport(s.name, "sqlite", "exactly-once", "rows", Held(EPOCHS, 3, held)) for s in sinks)
    decisions = tuple(DecisionSummary(n, 3, Standing.DONE, held, rows={s.name: 9 for s in sinks}) for n in range(100))
    said = inspection(sinks=reports, decisions=decisions)
    dead = [letter(f"rides/log/{number}/0") for number in range(1_000)]
    return GivenReader(of, said, epoch_lines(EPOCHS), drawn=boxes, dead=dead)


@pytest.mark.parametrize(
    ("view", "item"), [*((view, "") for view in layout.VIEWS), ("sources", "node_0"), ("epochs", "9999")]
)
def test_how_long_a_view_takes(view: str, item: str, capsys: pytest.CaptureFixture[str]) -> None:
    reader = cast("CheckpointReader", large())
    took = []
    for _ in range(5):
        began = time.perf_counter()
        page = layout.page(Moment(reader, Asked(view, item=item), NOW_US))
        took.append(time.perf_counter() - began)
    say(capsys, f"{view}/{item}: {1e3 * sorted(took)[2]:.0f} ms, {len(page):,} bytes")
    assert len(page) < BYTES_MAX


def test_how_long_a_status_takes_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    said = large().given
    assert said is not None
    value = said.as_json()
    began = time.perf_counter()
    found = records.read(Status, value)
    say(capsys, f"status: {1e3 * (time.perf_counter() - began):.0f} ms")
    assert len(found.sources[0].positions) == SEGMENTS
