"""The callback source: a push is durable when it returns, and read once."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read
from holdfast.connectors.files import journal
from holdfast.connectors.files.callback import CallbackSource
from holdfast.errors import BadRow, Corrupt, InDoubt, InvalidPipeline
from holdfast.store import durable


@pytest.fixture
def feed(tmp_path: Path) -> read.CallbackFeed:
    return read.CallbackFeed(tmp_path / "feed", schema="id BIGINT, word STRING")


def opened(feed: read.CallbackFeed, tmp_path: Path, **options: Any) -> CallbackSource:
    source = read.callback(feed, name="pushed", **options).node.source_spec.open("pushed", str(tmp_path / "w"))
    assert isinstance(source, CallbackSource)
    return source


def ids_between(source: CallbackSource, start: Any, end: Any) -> list[int]:
    spans = source.spans(start, end, parallelism=2)
    return [row["id"] for span in spans for batch in source.read(span) for row in batch.to_pylist()]


def test_rows_and_tables_are_pushed_alike(feed: read.CallbackFeed, tmp_path: Path) -> None:
    assert feed.push([{"id": 1}, {"id": 2, "word": "x"}]) == 0
    assert feed.push(pa.table({"word": ["y"], "id": pa.array([3], pa.int32())})) == 1
    assert feed.push(pa.record_batch({"id": [4], "word": ["z"]})) == 2
    assert feed.push([]) is None
    source = opened(feed, tmp_path)
    end = source.latest(source.initial(), bounded=False)
    assert ids_between(source, source.initial(), end) == [1, 2, 3, 4]
    assert source.rows_between(source.initial(), end) == 4


@pytest.mark.parametrize(
    "rows", [[{"id": "x"}], [{"other": 1}], pa.table({"id": ["x"], "word": ["y"]}), pa.table({"id": [1]})]
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_taken(feed: read.CallbackFeed, rows: Any) -> None:
    feed.push([{"id": 1}])
    with pytest.raises(BadRow):
        feed.push(rows)
    assert journal.bounds(feed.directory) == (0, 1)


def test_a_push_whose_name_cannot_be_synced_is_in_doubt_and_read_once(
    feed: read.CallbackFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.push([{"id": 1}])

    def broken(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync_directory", broken)
        with pytest.raises(InDoubt):
            feed.push([{"id": 2}])
    assert feed.push([{"id": 3}]) == 2
    source = opened(feed, tmp_path)
    assert ids_between(source, source.initial(), source.latest(source.initial(), bounded=False)) == [1, 2, 3]


@pytest.mark.slow
def test_threads_and_processes_push_without_losing_or_doubling(feed: read.CallbackFeed, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom holdfast import read\n"
        f"feed = read.CallbackFeed({feed.directory!r}, schema='id BIGINT, word STRING')\n"
        "for number in range(30):\n    feed.push([{'id': int(sys.argv[1]) + number}])\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", program, str(start)]) for start in (1000, 2000)]

    def push(start: int) -> None:
        for number in range(30):
            feed.push([{"id": start + number}])

    source = opened(feed, tmp_path)
    threads = [threading.Thread(target=push, args=(start,)) for start in (3000, 4000)]
    for thread in threads:
        thread.start()
    ids: list[int] = []
    position = source.initial()
    while len(ids) < 120:
        end = source.latest(position, bounded=False)
        ids += ids_between(source, position, end)
        source.committed(end)  # removes entries while others push
        position = end
        if all(other.poll() is not None for other in others) and not any(thread.is_alive() for thread in threads):
            end = source.latest(position, bounded=False)
            ids += ids_between(source, position, end)
            break
    for thread in threads:
        thread.join()
    assert [other.wait() for other in others] == [0, 0]
    assert sorted(ids) == [start + number for start in (1000, 2000, 3000, 4000) for number in range(30)]


def test_a_number_is_never_given_twice(feed: read.CallbackFeed, tmp_path: Path) -> None:
    """All entries may have been read and removed when one is pushed by a process that slept meanwhile."""
    slow = read.CallbackFeed(feed.given, schema="id BIGINT, word STRING")
    assert slow.push([{"id": 0}]) == 0
    source = opened(feed, tmp_path)
    for number in range(1, 6):
        feed.push([{"id": number}])
        source.committed(source.latest(source.initial(), bounded=False))
    end = {"log": 6}
    assert len(list(Path(feed.directory).glob("*.entry"))) == 1
    assert slow.push([{"id": 6}]) == 6
    assert ids_between(source, end, source.latest(end, bounded=False)) == [6]


def test_no_position_covers_an_entry_whose_name_is_not_synced(
    feed: read.CallbackFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut between link and sync takes the entry away, and the repeated push gets its number."""
    source = opened(feed, tmp_path)
    start = source.initial()
    feed.push([{"id": 1}])
    synced: list[str] = []
    sync = durable.sync_directory
    monkeypatch.setattr(durable, "sync_directory", lambda path: (synced.append(path), sync(path)))
    assert source.latest(start, bounded=False) == {"log": 1}
    assert synced == [feed.directory]
    source.latest(start, bounded=False)
    assert source.latest({"log": 1}, bounded=False) == {"log": 1}
    assert synced == [feed.directory], "one sync for each new end"


def test_a_limit_of_rows_does_not_divide_a_push(feed: read.CallbackFeed, tmp_path: Path) -> None:
    for start in (0, 5, 10):
        feed.push([{"id": start + number} for number in range(5)])
    source = opened(feed, tmp_path, max_rows_per_epoch=7)
    assert source.latest({"log": 0}, bounded=False) == {"log": 1}
    assert opened(feed, tmp_path, max_rows_per_epoch=10).latest({"log": 0}, bounded=False) == {"log": 2}


def test_a_damaged_entry_is_noticed(feed: read.CallbackFeed, tmp_path: Path) -> None:
    feed.push([{"id": 1}])
    path = Path(journal.path(feed.directory, 0))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    source = opened(feed, tmp_path)
    with pytest.raises(Corrupt, match=r"000000000000\.entry is damaged"):
        ids_between(source, {"log": 0}, source.latest({"log": 0}, bounded=False))
    path.write_bytes(b"HOLD")
    with pytest.raises(Corrupt, match="damaged"):
        opened(feed, tmp_path).latest({"log": 0}, bounded=False)


def test_an_entry_that_was_removed_too_early_is_named(feed: read.CallbackFeed, tmp_path: Path) -> None:
    for number in range(3):
        feed.push([{"id": number}])
    source = opened(feed, tmp_path)
    os.unlink(journal.path(feed.directory, 0))
    with pytest.raises(Corrupt, match="entry 0 of the feed"):
        source.latest({"log": 0}, bounded=False)
    with pytest.raises(Corrupt, match="entry 0 of the feed"):
        opened(feed, tmp_path).spans({"log": 0}, {"log": 3}, parallelism=1)


def test_a_feed_that_was_replaced_is_not_waited_for(feed: read.CallbackFeed, tmp_path: Path) -> None:
    """Numbers begin anew: what is pushed now would lie below the position, and be passed over."""
    source = opened(feed, tmp_path)
    feed.push([{"id": 1}])
    with pytest.raises(Corrupt, match="entry 1 of the feed"):
        source.latest({"log": 5}, bounded=False)


def test_a_source_can_be_taken_to_positions_that_the_journal_reaches(feed: read.CallbackFeed, tmp_path: Path) -> None:
    spec = read.callback(feed, name="pushed").node.spec
    workspace = str(tmp_path / "w")
    assert "is not there" in spec.obstacle("pushed", workspace, {"log": 0})
    source = opened(feed, tmp_path)
    for number in range(5):
        feed.push([{"id": number}])
    source.committed({"log": 3})
    answers = {number: spec.obstacle("pushed", workspace, {"log": number}) for number in range(1, 7)}
    assert [number for number, why in answers.items() if not why] == [2, 3, 4, 5]
    assert answers[1].endswith("reaches from entry 2 to 5, and does not hold 1.")


def test_a_feed_has_one_reader(feed: read.CallbackFeed, tmp_path: Path) -> None:
    opened(feed, tmp_path).initial()
    opened(feed, tmp_path).initial()
    other = read.callback(feed, name="pushed").node.spec.open("pushed", str(tmp_path / "another"))
    with pytest.raises(InvalidPipeline, match="has another reader"):
        other.initial()


def test_only_a_feed_is_a_feed() -> None:
    with pytest.raises(InvalidPipeline, match="CallbackFeed"):
        read.callback("data/clicks", name="pushed")  # type: ignore[arg-type]


PUSHER = """
import sys
from holdfast import read
feed = read.CallbackFeed(sys.argv[1], schema="id BIGINT, word STRING")
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    feed.push([{"id": number, "word": "x" * 1000}])
    print(number, flush=True)
    number += 1
"""


@pytest.mark.crash
def test_what_was_pushed_before_a_kill_is_there_and_whole(feed: read.CallbackFeed, tmp_path: Path) -> None:
    chance = random.Random(7)
    returned: list[int] = []
    for turn in range(4):
        command = [sys.executable, "-c", PUSHER, feed.directory, str(turn * 1000)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        returned += [int(process.stdout.readline()) for _ in range(chance.randrange(1, 20))]
        os.kill(process.pid, signal.SIGKILL)
        returned += [int(line) for line in process.stdout.read().splitlines() if line]
        process.stdout.close()
        process.wait()
    source = opened(feed, tmp_path)
    ids = ids_between(source, {"log": 0}, source.latest({"log": 0}, bounded=False))
    assert len(set(ids)) == len(ids)
    assert set(returned) <= set(ids)
    assert len(ids) - len(returned) <= 4
