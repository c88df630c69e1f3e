"""Supervisor, main and replica, and a cluster, where the checkpoint is in an object store (design/0037)."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from demo.cluster import standalone_cluster
from tests.crash.lives import MODES
from tests.crash.processes import FILES, ROOT, ROWS_PER_FILE, Case, kill_tree
from tests.crash.test_object_store_kill import numberless
from tests.crash.test_replica import Pair, opened, send
from tests.crash.test_stateful_kill import expected, held, write_input
from tests.crash.test_supervised import rows_of, until
from tools.s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


def options(work: Path, machine: str, address: str) -> tuple[str, ...]:
    return "--checkpoint", address, "--spark-checkpoint", str(work / machine)


def new_address() -> str:
    return f"s3://checkpoints/{uuid.uuid4().hex}"


def test_a_supervisor_goes_on_after_kills(tmp_path: Path, server: dict[str, str]) -> None:
    case = Case(tmp_path, ("sqlite", "files"), environment={"HOLDFAST_RESTART_FIRST": "1 ms", **server})
    case.write_input()
    fault = {"HOLDFAST_FAULT": "after-decide:2", "HOLDFAST_FAULT_MARK": str(tmp_path / "died")}
    place = options(tmp_path, "machine", new_address())
    with (tmp_path / "output").open("w") as output:
        supervisor = case.start("--supervise", "--every", "0 s", *place, output=output, **fault)
        try:
            until(lambda: rows_of(case) == FILES * ROWS_PER_FILE, "every row, by the second child")
            (child,) = psutil.Process(supervisor.pid).children()
            child.kill()
            case.write_input(FILES, FILES + 1)
            until(lambda: rows_of(case) == (FILES + 1) * ROWS_PER_FILE, "one more file, by the third child")
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(timeout=120) == 0, (tmp_path / "output").read_text()
        finally:
            kill_tree(supervisor)
    assert (tmp_path / "died").exists()
    case.check_exact(range((FILES + 1) * ROWS_PER_FILE))


@pytest.mark.postgres
def test_main_and_replica_on_two_machines_share_a_checkpoint(
    tmp_path: Path, postgres_plain: str, server: dict[str, str]
) -> None:
    """The replica is promoted, and dies: the first one's scratch is old by then."""
    with opened(Pair(tmp_path, postgres_plain, "replica_pipeline.py")) as pair:
        environment = {**pair.case.environment, **server, "HOLDFAST_CHECKPOINT_FREQ": "1"}
        pair.case = replace(pair.case, environment=environment)
        address = new_address()
        pair.start("a", *options(tmp_path, "machine a", address))
        pair.until_more_is_there("a")
        # Until then the state is on machine a alone: what a leaves when it is fenced may come too late.
        pair.until_said("a", "snapshot of epoch 1")
        second = pair.start("b", "--replica", *options(tmp_path, "machine b", address))
        pair.until_said("b", "holds term 1 with generation")
        asked = pair.promote()
        assert asked.returncode == 0, asked.stdout + asked.stderr
        pair.until_said("a", "becomes the replica", "holds term 2 with generation")
        pair.until_more_is_there("b")
        send(second, signal.SIGKILL)
        pair.until_more_is_there("a")
        ids = range(pair.files * ROWS_PER_FILE)
        numbers = [(id % 7, int(number)) for id, number in pair.case.rows()["postgres"]]
        counts = Counter(id % 7 for id in ids)
        assert sorted(numbers) == sorted((k, n) for k, count in counts.items() for n in range(1, count + 1))


def test_executors_share_sparks_directory_and_everything_else_is_an_object(
    tmp_path: Path, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline with state on a standalone cluster: refused without a directory that all see, exact with one."""
    write_input(tmp_path)
    for name, value in (("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}"), *server.items()):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CRASH_WORK", str(tmp_path))
    with standalone_cluster(tmp_path / "cluster") as cluster:
        environment = {**MODES["staged"], **server, **cluster.environment, "HOLDFAST_CHECKPOINT_FREQ": "1"}
        case, address = Case(tmp_path, ("sqlite",), environment=environment), new_address()

        def run(*arguments: str, **more: str) -> tuple[int, str]:
            wanted = ("--available-now", "--master", cluster.url, "--checkpoint", address, *arguments)
            process = case.start(*wanted, program="stateful_pipeline.py", output=subprocess.PIPE, **more)
            try:
                said, _ = process.communicate(timeout=300)
                return process.returncode, said
            finally:
                kill_tree(process)

        code, said = run()
        assert (code, "a directory that every machine sees" in " ".join(said.split())) == (2, True), said
        shared = ("--spark-checkpoint", str(tmp_path / "shared"))
        code, said = run(*shared, HOLDFAST_FAULT="after-publish:4")
        assert code == -signal.SIGKILL, said
        code, said = run(*shared)
        assert code == 0, said
    assert numberless(held(tmp_path)) == numberless(expected())
