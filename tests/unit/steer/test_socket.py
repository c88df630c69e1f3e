"""The socket of a live run: what is said on it, by whom, and what its caller learns when it breaks (design/0049, 5)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InDoubt, InternalError, InvalidPipeline, Unavailable
from holdfast.steer import place
from holdfast.steer.client import Attached, attach
from holdfast.steer.controls import Controls
from holdfast.steer.entries import ControlEntry, ControlLog, made_id
from holdfast.steer.place import is_own, read_place, write_place
from holdfast.steer.protocol import LINE_MAX, CallerGone, Progress, SteerRequest, read_request, request_line
from holdfast.steer.server import SteerServer
from holdfast.store.local import LocalStore


class Told:
    """A run that notes what it was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[SteerRequest] = []
        self.breaks = 0
        self.dies: threading.Event | None = None

    @property
    def commands(self) -> Mapping[str, Any]:
        return dict.fromkeys(("status", "pause", "resume", "wait", "log", "checkpoint", "sample"), self.carry_out)

    def carry_out(self, request: SteerRequest, tell: Progress) -> Mapping[str, Any]:
        self.requests.append(request)
        if request.command == "log":
            raise OSError("no logs today")  # of the command, and not of the connection
        if request.command == "wait":
            tell({"token": {"trips": 7}})
        if request.command == "sample":
            tell({"rows": [{"id": number} for number in range(min(2, request.number("n")))], "epochs": 1})
        if self.breaks:
            self.breaks -= 1
            raise CallerGone
        if request.command == "resume":
            raise InvalidPipeline("no such source", why="there is none.", do="name another.")
        return {"sources": list(request.texts("sources")), "epochs": 1}


@contextmanager
def listening(directory: Path, told: Told) -> Iterator[Attached]:
    (directory / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    server = SteerServer(str(directory / "run" / "steer.sock"), told.commands)
    try:
        write_place(LocalStore(str(directory)), directory, server.path, 3)
        yield attach(directory)
    finally:
        server.close()


@pytest.fixture
def told(tmp_path: Path, short_directory: Path) -> Told:
    del tmp_path
    return Told(short_directory)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Return a directory in which a socket has a path that systems take."""
    from holdfast.spark.launch.stop_directory import temporary

    with temporary() as found:
        yield found


def test_a_command_is_carried_out_and_its_errors_come_back_as_they_were(told: Told) -> None:
    with listening(told.directory, told) as attached:
        assert attached.pause("rides", "trips")["sources"] == ["rides", "trips"]
        with pytest.raises(InvalidPipeline, match="no such source") as refused:
            attached.resume()
        assert (refused.value.why, refused.value.do) == ("there is none.", "name another.")
        with pytest.raises(InternalError, match="no logs today"):
            attached.log("debug")
        with pytest.raises(InvalidPipeline, match="does not understand") as unknown:
            attached.flush()
        assert "'flush' is none of checkpoint, log" in unknown.value.why
        assert len({request.id for request in told.requests}) == 3


def test_a_command_whose_connection_breaks_is_sent_again_under_its_id(told: Told) -> None:
    told.breaks = 2
    with listening(told.directory, told) as attached:
        assert attached.pause("rides")["sources"] == ["rides"]
        assert len(told.requests) == 3
        assert len({request.id for request in told.requests}) == 1
        told.breaks = 3
        with pytest.raises(InDoubt, match="not known whether the run has done"):
            attached.pause("rides")


def test_rows_that_were_told_before_a_connection_broke_are_not_asked_for_again(told: Told) -> None:
    told.breaks = 1
    came: list[Any] = []
    with listening(told.directory, told) as attached:
        found = attached.sample("rides", 3, timeout_s=60, shard=1, tell=lambda said: came.extend(said["rows"]))
    assert found == {"rows": [{"id": 0}, {"id": 1}, {"id": 0}], "epochs": 1}
    assert came == found["rows"]
    first, other = (request.arguments for request in told.requests)
    assert first == {"node": "rides", "n": 3, "timeout_s": 60, "shard": 1}
    assert other["n"] == 1
    assert 0 < other["timeout_s"] < 60


def test_who_waits_asks_again_with_the_token_that_was_told_first(told: Told) -> None:
    told.breaks = 1
    seen: list[Mapping[str, Any]] = []
    with listening(told.directory, told) as attached:
        attached.wait_until_held(tell=seen.append)
    assert [request.arguments["token"] for request in told.requests] == [None, {"trips": 7}]
    assert seen == [{"token": {"trips": 7}}, {"token": {"trips": 7}}]


@pytest.mark.parametrize("is_put", [True, False])
def test_of_a_run_that_has_gone_the_checkpoint_tells_whether_it_was_told(told: Told, is_put: bool) -> None:
    log = ControlLog(LocalStore(str(told.directory)))
    dead: list[SteerServer] = []

    def die(request: SteerRequest, tell: Progress) -> Mapping[str, Any]:
        del tell
        if is_put:
            log.put(ControlEntry(request.id, "pause", {}, 3, 7, Controls()), lambda told: told.pause(["rides"]))
        os.unlink(dead[0].path)  # nobody is found there any more
        raise CallerGone

    (told.directory / "run").mkdir(mode=0o700)
    dead.append(SteerServer(str(told.directory / "run" / "steer.sock"), {"pause": die, "checkpoint": die}))
    write_place(LocalStore(str(told.directory)), told.directory, dead[0].path, 3)
    try:
        if is_put:
            assert attach(told.directory).pause("rides")["paused"] == ["rides"]
        else:
            with pytest.raises(Unavailable, match="nothing of it is in force") as gone:
                attach(told.directory).pause("rides")
            assert "has ended before it has done what it was told: pause" in gone.value.what
    finally:
        dead[0].close()


@pytest.mark.parametrize("entries", ["none", "begun", "made"])
def test_of_a_checkpoint_of_a_run_that_has_gone_its_entries_tell(told: Told, entries: str) -> None:
    """Only between the two it is not known: the next run finds out, if it is asked again."""
    dead: list[SteerServer] = []

    def die(request: SteerRequest, tell: Progress) -> Mapping[str, Any]:
        ids = [] if entries == "none" else [request.id] if entries == "begun" else [request.id, made_id(request.id)]
        for each in ids:
            entry = ControlEntry(each, "checkpoint", {"epoch": 7}, 3, 0, Controls())
            ControlLog(LocalStore(str(told.directory))).put(entry, lambda controls: controls)
        os.unlink(dead[0].path)
        raise CallerGone

    (told.directory / "run").mkdir(mode=0o700)
    dead.append(SteerServer(str(told.directory / "run" / "steer.sock"), {"checkpoint": die}))
    write_place(LocalStore(str(told.directory)), told.directory, dead[0].path, 3)
    try:
        if entries == "made":
            assert attach(told.directory).checkpoint("friday") == {"epoch": 7}
        else:
            with pytest.raises(InDoubt if entries == "begun" else Unavailable):
                attach(told.directory).checkpoint("friday")
    finally:
        dead[0].close()


def test_a_copy_of_a_checkpoint_does_not_lead_to_the_run_of_the_original(told: Told, tmp_path: Path) -> None:
    with listening(told.directory, told):
        shutil.copytree(told.directory / "steer", tmp_path / "copy" / "steer")
        with pytest.raises(Unavailable, match="none has ever listened"):
            attach(tmp_path / "copy").pause("rides")
        link = tmp_path / "link"
        link.symlink_to(told.directory)
        attach(link).pause("rides")
    assert len(told.requests) == 1


def test_what_this_user_may_not_read_or_connect_to_is_said_to_be_anothers(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with listening(told.directory, told) as attached:
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "connect", refuse)
            with pytest.raises(InvalidPipeline, match="is another user's"):
                attached.status()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", refuse)
            with pytest.raises(InvalidPipeline, match="is another user's"):
                attached.status()


NOBODY = 65_534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Be another user: who connects meanwhile is that one, to the kernel."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_gets_nowhere_and_is_not_heard_where_all_doors_are_open(told: Told) -> None:
    with listening(told.directory, told) as attached:
        with as_nobody(), pytest.raises(InvalidPipeline, match="is another user's"):
            attached.pause("rides")
        found = read_place(told.directory)
        assert found is not None
        for path in (told.directory, told.directory / "run", Path(found.socket)):
            os.chmod(path, 0o777)
        with socket.socket(socket.AF_UNIX) as connection:
            with as_nobody():
                connection.connect(found.socket)
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have hung up already
                connection.sendall(request_line(SteerRequest("9", "pause")))
                assert connection.recv(100) == b""
    assert told.requests == []


def test_of_a_flush_of_a_run_that_has_gone_it_is_not_known(told: Told) -> None:
    dead: list[SteerServer] = []

    def die(request: SteerRequest, tell: Progress) -> Mapping[str, Any]:
        os.unlink(dead[0].path)
        raise CallerGone

    (told.directory / "run").mkdir(mode=0o700)
    dead.append(SteerServer(str(told.directory / "run" / "steer.sock"), {"flush": die, "log": die}))
    write_place(LocalStore(str(told.directory)), told.directory, dead[0].path, 3)
    try:
        with pytest.raises(InDoubt, match="whether the sinks were asked"):
            attach(told.directory).flush()
    finally:
        dead[0].close()


def test_root_may_tell_the_run_of_any_user(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(told.directory, told) as attached:
        monkeypatch.setattr("holdfast.steer.client.is_own", lambda connection: False)
        monkeypatch.setattr(os, "getuid", lambda: 0)
        attached.pause("rides")
    assert len(told.requests) == 1


def test_a_large_token_is_told_and_what_is_larger_than_a_line_leaves_the_connection_open(told: Told) -> None:
    with listening(told.directory, told) as attached, socket.socket(socket.AF_UNIX) as connection:
        attached.wait_until_held({"rides": {f"topic/{number}": number for number in range(20_000)}})
        with pytest.raises(InvalidPipeline, match="does not understand"):
            attached.wait_until_held({"rides": {"x" * LINE_MAX: 1}})
        found = read_place(told.directory)
        assert found is not None
        connection.connect(found.socket)
        with connection.makefile("rwb") as file:
            file.write(b"[" * (LINE_MAX + 5) + b"\n" + request_line(SteerRequest("9", "pause")))
            file.flush()
            said = [json.loads(file.readline())["answer"] for _ in range(3)]
    assert said == ["failed", "accepted", "done"]


def test_nobody_listens_where_no_run_is_or_one_has_died(told: Told) -> None:
    with pytest.raises(Unavailable, match="none has ever listened") as never:
        attach(told.directory).status()
    assert str(told.directory) in never.value.what
    with listening(told.directory, told):
        pass
    with pytest.raises(Unavailable, match=f"process {os.getpid()} on {socket.gethostname()}"):
        attach(told.directory).status()
    stale = told.directory / "run" / "steer.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))  # as a process leaves it that is killed
    with pytest.raises(Unavailable, match="the last one that listened"):
        attach(told.directory).status()


def test_the_newest_run_is_told(told: Told) -> None:
    before = Told(told.directory)
    (told.directory / "run").mkdir(mode=0o700)
    server = SteerServer(str(told.directory / "run" / "before.sock"), before.commands)
    try:
        write_place(LocalStore(str(told.directory)), told.directory, server.path, 2)
        with listening(told.directory, told) as attached:
            attached.pause()
        assert (len(before.requests), len(told.requests)) == (0, 1)
    finally:
        server.close()


def test_only_this_user_and_root_are_heard(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(told.directory, told) as attached:
        found = read_place(told.directory)
        assert found is not None
        assert stat.S_IMODE(os.stat(found.socket).st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(found.socket)
            assert is_own(connection)
            assert is_own(connection, user=os.getuid() + 1) == (os.getuid() == 0)
        monkeypatch.setattr("holdfast.steer.server.is_own", lambda connection: False)
        with pytest.raises(InDoubt, match="broken the connection"):
            attached.pause("rides")
        assert told.requests == []
        monkeypatch.undo()
        monkeypatch.setattr("holdfast.steer.client.is_own", lambda connection: False)
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        with pytest.raises(InvalidPipeline, match="is another user's"):
            attached.pause("rides")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello\n", "no request in JSON"),
        (b"[]\n", "no request in JSON"),
        (b'{"protocol":2,"id":"a","command":"pause"}\n', "version 2"),
        (b'{"protocol":1,"id":"","command":"pause"}\n', "not what they should be"),
        (b'{"protocol":1,"id":"a","command":7}\n', "not what they should be"),
        (b'{"protocol":1,"id":"a","command":"pause","arguments":[]}\n', "not what they should be"),
        (b'{"protocol":1,"id":"a","command":"pause","arguments":{"sources":"rides"}}\n', "no list of names"),
        (b'"' + b"a" * LINE_MAX + b'"\n', "more than 16,777,216 bytes"),
    ],
)
def test_what_is_no_request_is_answered_with_what_is_wrong(told: Told, line: bytes, why: str) -> None:
    with listening(told.directory, told), socket.socket(socket.AF_UNIX) as connection:
        found = read_place(told.directory)
        assert found is not None
        connection.connect(found.socket)
        with connection.makefile("rwb") as file:
            file.write(line)
            file.flush()
            answers = [json.loads(file.readline())]
            if answers[0]["answer"] == "accepted":
                answers.append(json.loads(file.readline()))
    assert answers[-1]["answer"] == "failed"
    assert why in answers[-1]["error"]


def test_a_request_is_what_its_line_says() -> None:
    request = SteerRequest("7", "pause", {"sources": ["rides"]})
    assert read_request(request_line(request)) == request


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_place(tmp_path) is None
    (tmp_path / "steer").mkdir()
    (tmp_path / "steer" / "run.json").write_text("{")
    assert read_place(tmp_path) is None
    assert place.read_place(tmp_path / "nowhere") is None
