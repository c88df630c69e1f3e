"""A pipeline for the page whose every answer is given: what the views make of it needs no run and no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.start_history import StartLine
from holdfast.commit.ledger import Standing
from holdfast.commit.owner import Owner
from holdfast.commit.recovery import Decision, Verdict
from holdfast.config import Settings
from holdfast.display.drawing import Box
from holdfast.graph.graph import Graph
from holdfast.observe.audit_report import AuditReport
from holdfast.observe.inspection import DecisionSummary, Inspection, SinkAnswer, SinkReport
from holdfast.observe.reading import Configuration, configuration
from holdfast.page.details import EpochDetails, SourceSpan, StoryLine
from holdfast.page.reading import CommandWords
from holdfast.plan.audit import Book
from holdfast.ports import Held, Outcome
from holdfast.status import CheckpointStatus, OperatorStatus, SinkStatus, SourceStatus, Status, Wait
from holdfast.time_use import EpochLine, NodeTime, TimeUse

NOW_US = 1_790_000_000_000_000


@dataclass
class GivenReader:
    """Answers what it is given."""

    given: Status | None = None
    said: Inspection = field(default_factory=lambda: inspection())
    lines: Sequence[EpochLine] = ()
    told: EpochDetails = field(default_factory=EpochDetails)
    noted: Sequence[StartLine] = ()
    names: Sequence[Mapping[str, Any]] = ()
    dead: Sequence[Mapping[str, Any]] = ()
    needs: Sequence[str] = ()
    drawn: Sequence[Box] = ()
    tail: Sequence[str] = ()
    checkpoint: str = "/data/ckpt/trips"

    def status(self, shard: int | None) -> Status | None:
        return self.given

    def rates(self, shard: int | None) -> Mapping[str, float]:
        if self.given is None:
            return {}
        return {name: 1200.0 for of in (self.given.sources, self.given.sinks) for name in [each.name for each in of]}

    def inspection(self, shard: int | None) -> Inspection:
        return self.said

    def findings(self, shards: Sequence[int | None]) -> Mapping[int | None, Sequence[str]]:
        return dict.fromkeys(shards, self.needs)

    def boxes(self) -> Sequence[Box]:
        return self.drawn

    def epochs(self, shard: int | None) -> Sequence[EpochLine]:
        return self.lines

    def details(self, epoch: int, shard: int | None) -> EpochDetails:
        return self.told

    def audit(self, shard: int | None) -> AuditReport:
        return AuditReport(Book())

    def starts(self, shard: int | None) -> Sequence[StartLine]:
        return self.noted

    def checkpoint_names(self, shard: int | None) -> Sequence[Mapping[str, Any]]:
        return self.names

    def rewind(self, to: str, shard: int | None) -> Sequence[str]:
        return [f"table  5 rows of 2 epochs after epoch {to}: would be withdrawn"]

    def letters(self, shard: int | None) -> Sequence[Mapping[str, Any]]:
        return [each for each in self.dead if shard is None or each.get("shard") == shard]

    def configuration(self) -> Configuration:
        return configuration(Settings())

    def log_tail(self) -> Sequence[str]:
        return self.tail

    def forget(self) -> None: ...


def inspection(name: str = "trips", **given: Any) -> Inspection:
    of: dict[str, Any] = {
        "owner": Owner(3, NOW_US - 10**9, "host", 4242, False),
        "last_done": 41,
        "decisions": (),
        "spark": (),
    }
    return Inspection("/data/ckpt/trips", name, 1, **(of | given))


def behind_a_sink(name: str = "trips", sink: str = "hourly_table", source: str = "rides") -> Status:
    """Return a run that its sink holds up."""
    return Status(
        pipeline=name,
        generation=3,
        state="running",
        epoch=41,
        rows_total=123_456,
        rows_per_s=250.0,
        started_at_us=NOW_US - 3_600 * 10**6,
        sources=(SourceStatus(source, {"log": 900}, {"log": 4_300}, 3_400, 90_000, lag_s=125.0),),
        operators=(OperatorStatus("sums", "aggregate", 1_200, 48_000, waiting_rows=12),),
        sinks=(SinkStatus(sink, "sqlite", "exactly-once", epoch=41, rows=33_456),),
        checkpoints=CheckpointStatus(4, epoch=40, at_us=NOW_US - 30 * 10**6, duration_ms=12, size_bytes=4_000, rows=90),
        time=TimeUse(
            20,
            1_000.0,
            {"plan": 10.0, "evaluate": 130.0, "publish": 610.0, "wait_source": 250.0},
            (
                NodeTime(source, 30.0, share=0.04),
                NodeTime("sums", 90.0, share=0.12),
                NodeTime(sink, 10.0, 610.0, share=0.81),
            ),
            limited_by=f"publish to {sink}, 81 % of the epoch",
        ),
    )


def graph(source: str = "rides", sink: str = "hourly_table") -> list[Box]:
    return [
        Box(source, "files", "source"),
        Box("sums", "aggregate", "operator", (0,)),
        Box(sink, "sqlite", "sink", (1,)),
    ]


def epoch_lines(count: int, sink: str = "hourly_table") -> list[EpochLine]:
    return [
        EpochLine(
            number,
            100 + number % 50,
            NOW_US - (count - number) * 10**6,
            0.2,
            {"plan": 0.01, "evaluate": 0.1 + number % 7 / 50, "decide": 0.005, "publish": 0.3},
            {sink: 0.29},
        )
        for number in range(1, count + 1)
    ]


def in_doubt(sink: str = "hourly_table") -> Inspection:
    """Return a checkpoint whose epoch 42 is decided and in doubt."""
    answer = SinkAnswer(42, Decision.COMMIT, Outcome.STAGED, Verdict.PUBLISH)
    report = SinkReport(
        sink, "sqlite", "exactly-once", "prepared rows", Held(41, 2, {"rides": {"log": 900}}), answers=(answer,)
    )
    decisions = (
        DecisionSummary(41, 3, Standing.DONE, {"rides": {"log": 900}}, rows={sink: 120}),
        DecisionSummary(42, 3, Standing.OPEN, {"rides": {"log": 950}}, rows={sink: 50}),
    )
    return inspection(decisions=decisions, sinks=(report,))


def story(sink: str = "hourly_table") -> EpochDetails:
    lines = (
        StoryLine(NOW_US - 3_000_000, "OPEN", "STAGE", "STAGED"),
        StoryLine(NOW_US - 2_000_000, "STAGED", "DECIDE", "DECIDED"),
        StoryLine(NOW_US - 1_000_000, "DECIDED", "PUBLISH", "PUBLISHING"),
        StoryLine(NOW_US, "PUBLISHING", "DOUBT", "IN_DOUBT", sink, "the answer was lost: timeout"),
    )
    span = SourceSpan("rides", {"log": "900"}, {"log": "950"}, ("/data/in/2026-09-01.json",), 1)
    return EpochDetails(lines, (span,), NOW_US - 4_000_000)


def letter(name: str = "rides/log/901/0", **row: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": "rides",
        "address": {},
        "epoch": 42,
        "at_us": NOW_US,
        "error": {"kind": "BadRow", "what": "the value 'x' is no number.", "why": "column 'km' is DOUBLE.", "do": ""},
        "row": row or {"id": 7, "km": "x"},
        "standing": "left out",
    }


def waiting_key(status: Status) -> Wait:
    return Wait({"origin": "JFK"}, "weather", NOW_US - 300 * 10**6, NOW_US - 400 * 10**6, 12, is_time=True)


def words(**given: Any) -> CommandWords:
    """Return the words of a command line that says nothing, apart from what is given."""

    def nothing(*_: object) -> Iterator[str]:
        yield from ()

    def said(checkpoint: str, of: Graph | None) -> Inspection:
        return inspection()

    of: dict[str, Any] = {"inspect": said, "findings": nothing, "letters": lambda checkpoint: [], "rewind": nothing}
    of |= {"replay": lambda checkpoint, names, shard: [*names], "named": lambda checkpoint: []}
    return CommandWords(**(of | given))
