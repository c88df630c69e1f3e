"""SIGKILL of a run at each write of what it is told: it holds for the next run, or was never told (design/0049, 5)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.named import names
from holdfast.errors import InDoubt, InvalidPipeline, Unavailable
from holdfast.steer.client import Attached
from holdfast.steer.controls import Controls
from holdfast.steer.entries import in_force
from holdfast.store.local import LocalStore
from tests.crash.processes import ROOT
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

PAUSED, LIMITED = Controls(("rides",)), Controls(limits={"rides": 5.0})
COMMANDS: dict[str, tuple[Callable[[Attached], Any], Controls]] = {
    "pause": (lambda attached: attached.pause("rides"), PAUSED),
    "limit": (lambda attached: attached.limit("rides", 5), LIMITED),
}
NIGHTLY = pytest.mark.nightly


@contextmanager
def living(work: Path, entry: int | str = 0, moment: str = "before", *also: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline in a process that dies at an entry, until the end of the block."""
    command = [sys.executable, "-m", "tests.crash.steered_process", str(work), str(entry), moment, *also]
    with (work / "said").open("ab") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        attached = hf.attach(work / "checkpoint")
        eventually(lambda: is_heard(attached, process), within_s=300, what="a run that hears")
        yield process
    finally:
        process.kill()
        process.wait()


def is_heard(attached: Attached, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return bool(attached.status()["state"] == "running")
    except Unavailable:
        return False


def told(work: Path) -> Controls:
    return in_force(LocalStore(str(work / "checkpoint")))


def held(work: Path) -> list[int]:
    return sqlite_rows(work / "rides.db", "SELECT id FROM rows ORDER BY id")


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        ("pause", "after"),
        pytest.param("pause", "before", marks=NIGHTLY),
        pytest.param("limit", "before", marks=NIGHTLY),
        pytest.param("limit", "after", marks=NIGHTLY),
    ],
)
def test_a_command_is_carried_out_once_or_never(tmp_path: Path, command: str, moment: str) -> None:
    tell, wanted = COMMANDS[command]
    attached = hf.attach(tmp_path / "checkpoint")
    arrive(tmp_path / "in", "a.json", [{"id": 1}])
    with living(tmp_path, 1, moment) as process:
        if moment == "before":
            with pytest.raises(Unavailable, match="nothing of it is in force"):
                tell(attached)
        else:
            assert tell(attached) == wanted.as_json()
        assert process.wait(60) == -9
    assert told(tmp_path) == (Controls() if moment == "before" else wanted)
    with living(tmp_path):
        (source,) = attached.status()["sources"]
        assert source["is_paused"] == told(tmp_path).is_paused("rides")
        assert source["limit_rows_per_s"] == told(tmp_path).limits.get("rides")
        attached.resume()
        attached.wait_until_held()
        assert held(tmp_path) == [1]


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_shards_are_told_holds_for_all_of_them_or_for_none(tmp_path: Path, moment: str) -> None:
    attached = hf.attach(tmp_path / "checkpoint")
    names = "abcdefgh"  # read by both shards
    for number, name in enumerate(names):
        arrive(tmp_path / "in", f"{name}.json", [{"id": number}])
    with living(tmp_path, 1, moment, "shards") as process:
        if moment == "before":
            with pytest.raises(Unavailable, match="nothing of it is in force"):
                attached.pause("rides")
        else:
            assert attached.pause("rides") == PAUSED.as_json()
        assert process.wait(60) == -9
    with living(tmp_path, 0, "before", "shards"):
        eventually(lambda: len(attached.status()["shards"]) == 2, within_s=120, what="both shards")
        paused = [attached.status(shard)["sources"][0]["is_paused"] for shard in (0, 1)]
        assert paused == [moment == "after"] * 2
        attached.resume()
        attached.wait_until_held()
        assert held(tmp_path) == [*range(len(names))]


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_source_is_resumed_once_or_stays_paused(tmp_path: Path, moment: str) -> None:
    attached = hf.attach(tmp_path / "checkpoint")
    with living(tmp_path, 2, moment) as process:
        attached.pause("rides")
        arrive(tmp_path / "in", "a.json", [{"id": 1}])
        if moment == "before":
            with pytest.raises(Unavailable, match="nothing of it is in force"):
                attached.resume("rides")
        else:
            assert attached.resume("rides") == Controls().as_json()
        assert process.wait(60) == -9
    assert told(tmp_path) == (PAUSED if moment == "before" else Controls())
    with living(tmp_path):
        if moment == "before":
            assert held(tmp_path) == []
            attached.resume("rides")
        attached.wait_until_held()
        assert held(tmp_path) == [1]


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["before", "after"])
def test_of_a_flush_whose_run_dies_it_is_not_known_and_what_was_asked_is_done_by_the_next(
    tmp_path: Path, moment: str
) -> None:
    attached = hf.attach(tmp_path / "checkpoint")
    arrive(tmp_path / "in", "a.json", [{"id": 1}])
    with living(tmp_path, "flush", moment, "paced") as process:
        eventually(lambda: held(tmp_path) == [1], within_s=120, what="the first row, which waits for none before")
        arrive(tmp_path / "in", "b.json", [{"id": 2}])
        eventually(lambda: attached.status()["sinks"][0]["waiting_rows"] == 1, within_s=120, what="a row that waits")
        with pytest.raises(InDoubt, match="whether the sinks were asked"):
            attached.flush()
        assert process.wait(60) == -9
    assert held(tmp_path) == [1]
    with living(tmp_path, 0, "before", "paced"):
        if moment == "before":
            attached.flush("table")
        eventually(lambda: held(tmp_path) == [1, 2], within_s=120, what="the row that waited")


@pytest.mark.nightly
def test_who_waits_learns_that_the_run_is_dead_and_waits_for_the_same_with_the_next(tmp_path: Path) -> None:
    attached, said = hf.attach(tmp_path / "checkpoint"), list[Any]()

    def wait() -> None:
        with pytest.raises(Unavailable, match="has ended before it has done what it was told: wait"):
            attached.wait_until_held(tell=said.append)
        said.append("dead")

    with living(tmp_path) as process:
        attached.pause("rides")
        arrive(tmp_path / "in", "a.json", [{"id": 1}])
        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: said, what="the token")
        process.kill()
        waiting.join(60)
        assert said[-1] == "dead"
    arrive(tmp_path / "in", "b.json", [{"id": 2}])
    with living(tmp_path):
        attached.resume()
        attached.wait_until_held(said[0]["token"])
        assert 1 in held(tmp_path)


@pytest.mark.parametrize(
    ("entry", "moment"),
    [
        (2, "before"),
        pytest.param(1, "before", marks=NIGHTLY),
        pytest.param(1, "after", marks=NIGHTLY),
        pytest.param(2, "after", marks=NIGHTLY),
    ],
)
def test_a_run_that_dies_while_it_is_drained_is_drained_by_the_next(tmp_path: Path, entry: int, moment: str) -> None:
    """Entry 1 says that it is drained, and entry 2 that it was."""
    attached = hf.attach(tmp_path / "checkpoint")
    arrive(tmp_path / "in", "a.json", [{"id": 1}])
    with living(tmp_path, entry, moment) as process:
        if (entry, moment) == (2, "after"):
            attached.drain()
        else:
            with pytest.raises(Unavailable, match="has ended before"):
                attached.drain()
        assert process.wait(60) == -9
    arrive(tmp_path / "in", "b.json", [{"id": 2}])
    is_drained = (entry, moment) in ((1, "after"), (2, "before"))
    assert (told(tmp_path).ends is not None) == is_drained
    if is_drained:
        command = [sys.executable, "-m", "tests.crash.steered_process", str(tmp_path), "0", "before"]
        subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=True)
        assert held(tmp_path) == [1]
        assert told(tmp_path).ends is None
    with living(tmp_path):
        attached.wait_until_held()
        assert held(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("entry", "moment"),
    [
        (2, "before"),
        pytest.param(1, "before", marks=NIGHTLY),
        pytest.param(1, "after", marks=NIGHTLY),
        pytest.param(2, "after", marks=NIGHTLY),
    ],
)
def test_a_checkpoint_that_is_asked_for_is_made_once_or_not_known(tmp_path: Path, entry: int, moment: str) -> None:
    """Entry 1 says that it is to be made, and entry 2 that it was."""
    attached = hf.attach(tmp_path / "checkpoint")
    arrive(tmp_path / "in", "a.json", [{"id": 1}])
    with living(tmp_path, entry, moment, "state") as process:
        eventually(lambda: held(tmp_path) == [1], what="the first row")
        eventually(lambda: attached.epochs()["epochs"], what="the end of its epoch")  # which is later than the row
        if (entry, moment) == (2, "after"):
            assert attached.checkpoint("friday") == {"epoch": 1}
        elif (entry, moment) == (1, "before"):
            with pytest.raises(Unavailable, match="nothing of it is in force"):
                attached.checkpoint("friday")
        else:
            with pytest.raises(InDoubt, match="whether the checkpoint"):
                attached.checkpoint("friday")
        assert process.wait(60) == -9
    is_made = entry == 2
    assert names(LocalStore(str(tmp_path / "checkpoint"))) == (["friday"] if is_made else [])
    arrive(tmp_path / "in", "b.json", [{"id": 2}])
    with living(tmp_path, 0, "before", "state"):
        eventually(lambda: held(tmp_path) == [1, 2], within_s=120, what="the second row")
        eventually(lambda: attached.epochs()["epochs"], what="the end of its epoch")
        if is_made:
            with pytest.raises(InvalidPipeline, match="named 'friday' already"):
                attached.checkpoint("friday")
        else:
            assert attached.checkpoint("friday")["epoch"] >= 1
        assert names(LocalStore(str(tmp_path / "checkpoint"))) == ["friday"]


def test_who_samples_a_run_that_is_killed_is_told(tmp_path: Path) -> None:
    """Nothing of it is durable: nothing is left, and nothing is to be undone."""
    attached = hf.attach(tmp_path / "checkpoint")
    (tmp_path / "in").mkdir()
    with living(tmp_path) as process, ThreadPoolExecutor(1) as pool:
        is_heard_of = threading.Event()
        asked = pool.submit(lambda: attached.sample("rides", timeout_s=300, tell=lambda said: is_heard_of.set()))
        eventually(lambda: is_heard_of.is_set() or asked.done(), what="an answer")
        process.kill()
        with pytest.raises(Unavailable, match="has ended before it has done what it was told: sample"):
            asked.result(60)
    assert not [*(tmp_path / "checkpoint").glob("control/*")]
