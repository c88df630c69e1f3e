"""The byte stream sink dies before each of its file operations, and in the middle of each write; and in recovery.

As for the files sink: an audit hook sees what is created, linked, renamed or removed.  Appending makes no such event,
so each write is cut in half here instead: that is the torn tail that a crash leaves.  Then a new sink recovers, as the
coordinator would, and every byte of the store is read: data, index and log agree, and nothing else is left.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.connectors.byte_stream import append
from holdfast.connectors.byte_stream.branch import branches
from holdfast.connectors.byte_stream.log_target import ByteStreamSink
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, RunIdentity, Task
from tests.byte_store import verify
from tests.crash.operations import die_once, die_twice, survived, torn_write

SCHEMA = pa.schema([("at", pa.int64()), ("camera", pa.string()), ("is_key", pa.bool_()), ("data", pa.binary())])
COLUMNS = MessageColumns("at", "data", "camera", "is_key")
PIPELINE = "cameras"
EPOCHS = 3
BACK = {"log": {"log": 1}}

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _torn_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "write_all", torn_write)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a process dies here, not the machine: only time would be lost


def _rows(ids: range) -> pa.Table:
    columns = {
        "at": ids,
        "camera": ["left" if number % 3 else "right" for number in ids],
        "is_key": [number % 4 == 0 for number in ids],
        "data": [f"message {number}".encode() for number in ids],
    }
    return pa.table(columns, schema=SCHEMA)


class Driver:
    """What the coordinator does with one sink, and what survives a death: the decisions and the generation."""

    def __init__(self, directory: Path, *, is_decided: bool, is_rewound: bool = False) -> None:
        self.directory = directory
        self.is_decided = is_decided
        self.is_rewound = is_rewound
        self.spec = ByteStreamSinkSpec(os.fspath(directory), COLUMNS, target_bytes=400)
        self.generation = 0
        self.decisions: dict[int, Publication] = {}

    def run(self) -> None:
        """Start, recover, go on to the last epoch, sweep."""
        self.generation += 1
        sink = self.spec.connect("out", PIPELINE, SCHEMA)
        held = sink.open(RunIdentity(PIPELINE, self.generation))
        for epoch, decided in sorted(self.decisions.items()):
            if sink.outcome(epoch) is not Outcome.PUBLISHED:
                sink.publish([decided], Held())
        self.decisions.clear()
        sink.sweep(below_epoch=1)
        for epoch in range(max(held.epoch, self._last_of(sink)) + 1, EPOCHS + 1 + self.is_rewound):
            publication = self._evaluated(sink, epoch)
            if self.is_decided:
                self.decisions[epoch] = publication
            sink.publish([publication], Held())
            self.decisions.pop(epoch, None)
            sink.sweep(below_epoch=epoch + 1)

    def _last_of(self, sink: ByteStreamSink) -> int:
        epochs = range(1, EPOCHS + 2)
        return max((epoch for epoch in epochs if sink.outcome(epoch) is Outcome.PUBLISHED), default=0)

    def _evaluated(self, sink: ByteStreamSink, epoch: int) -> Publication:
        """Two tasks stage, and in every second epoch the driver carries some rows too; one attempt is an orphan."""
        if epoch > EPOCHS:
            return Publication(EpochRecord(PIPELINE, epoch, self.generation, BACK, rewound_to=1), ())
        parts: list[Part] = []
        for task, ids in enumerate((range(10 * epoch, 10 * epoch + 4), range(10 * epoch + 4, 10 * epoch + 8))):
            for attempt in range(2 if task else 1):
                writer = sink.writer_factory()(Task(PIPELINE, self.generation, epoch, task, attempt))
                writer.write(_rows(ids).to_batches()[0])
                staged = writer.stage()
            parts.append(staged)
        if epoch % 2:
            parts.append(Carried(_rows(range(10 * epoch + 8, 10 * epoch + 10))))
        return Publication(EpochRecord(PIPELINE, epoch, self.generation, {"log": {"log": epoch}}), tuple(parts))

    def recover(self) -> None:
        self.run()
        self.run()  # what a death left after the last commit is removed by who opens the sink next

    def check(self) -> None:
        """Every message once, in order, and nothing else on the disk."""
        ids = [*range(10, 20), *([] if self.is_rewound else [*range(20, 28), *range(30, 40)])]
        (branch,) = branches(os.fspath(self.directory)).values()
        view = branch.view()
        for name, wanted in (("left", [i for i in ids if i % 3]), ("right", [i for i in ids if i % 3 == 0])):
            stream = view.streams[name]
            found = [
                (at, is_key, bytes(payload))
                for chunk in stream.read(0, stream.end)
                for at, is_key, payload in zip(chunk.timestamps, chunk.keys, chunk.payloads, strict=True)
            ]
            assert found == [(i, i % 4 == 0, f"message {i}".encode()) for i in wanted]
            named = {f"{file.stem}.data": file.size for file in stream.files}
            named |= {f"{file.stem}.index": file.index_size for file in stream.files}
            there = {path.name: path.stat().st_size for path in Path(stream.directory).iterdir()}
            lists = {name: there.pop(name) for name in list(there) if name.endswith(".files")}
            assert list(lists) == [name for name in [stream.state.list] if name]
            assert there == named
        assert verify(os.fspath(self.directory)) == len(ids)
        own = self.directory / PIPELINE / "out"
        assert [*(own / "staging").iterdir(), *(own / "writing").iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_decided", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["decided", "fast path"]
)
def test_a_death_before_or_in_any_write_loses_and_doubles_nothing(tmp_path: Path, is_decided: bool) -> None:
    changes = die_once(lambda n: Driver(tmp_path / str(n), is_decided=is_decided))
    assert changes > 50, "the audit hook saw the work"


@pytest.mark.slow
def test_a_death_in_a_rewind_leaves_all_or_nothing_of_it(tmp_path: Path) -> None:
    for n in count():
        driver = Driver(tmp_path / str(n), is_decided=True, is_rewound=True)
        if survived(driver.run, driver.directory, n):
            break
        driver.recover()
        driver.check()


@pytest.mark.nightly
def test_a_second_death_during_recovery_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Every third first death, each with every seventh second one; where these begin moves on with the first."""
    assert die_twice(lambda name: Driver(tmp_path / name, is_decided=True), 3, 7) > 50
