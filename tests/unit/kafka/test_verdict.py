"""Native functions are used where a process of their own has shown that they do what the public ones do."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.connectors.kafka.brokers import NATIVE, Brokers
from holdfast.connectors.kafka.native import clients, verdict
from holdfast.connectors.kafka.public import PublicConsumer, PublicProducer
from holdfast.errors import InvalidPipeline
from holdfast.spark.launch import early

BROKERS = Brokers("127.0.0.1:1")
SETTINGS = {**BROKERS.client(), "group.id": "nobody"}

Says = Callable[[str], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing was tried yet, and a process that knows nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(NATIVE, raising=False)
    monkeypatch.setattr(verdict, "_level", logging.WARNING)  # of a driver
    verdict._verdict.cache_clear()
    yield tmp_path / "cache" / "holdfast"
    verdict._verdict.cache_clear()


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Return what lets the child be a line of shell, which notes that it was begun."""

    def is_(line: str) -> None:
        script = f"echo begun >> {tmp_path / 'begun'}; {line}"
        monkeypatch.setattr(verdict, "COMMAND", ("/bin/sh", "-c", script))

    is_("echo agrees")
    return is_


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[], int]:
    """Return what counts the children that were begun."""
    return lambda: (tmp_path / "begun").read_text().count("begun") if (tmp_path / "begun").exists() else 0


def asked_anew() -> bool:
    """Ask as another process does, and see that its clients go by the answer."""
    verdict._verdict.cache_clear()
    return clients.is_native(BROKERS)


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*")) if cache.exists() else []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kill -SEGV $$", "ended it (SIGSEGV)"),
        ("kill -ABRT $$", "ended it (SIGABRT)"),
        ("echo values of messages that the native ones have written", "differ: values of messages"),
        ("sleep 60", "had not ended after 0.05 s"),
    ],
)
def test_a_child_that_dies_differs_or_hangs_means_public_functions_on_this_machine(
    line: str,
    why: str,
    child: Says,
    begun: Callable[[], int],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if line.startswith("sleep"):
        monkeypatch.setattr(verdict, "TIMEOUT_S", 0.05)
    child(f"exec {line}" if line.startswith("sleep") else line)
    assert not clients.is_native(BROKERS)
    assert isinstance(clients.open_consumer(BROKERS, SETTINGS), PublicConsumer)
    assert isinstance(clients.open_producer(BROKERS, BROKERS.client()), PublicProducer)
    (said,) = [record.getMessage() for record in caplog.records]
    (path,) = kept(cache)
    assert why in said
    assert f"remove {path}" in said
    assert f"{NATIVE}=off" in said
    child("echo agrees")
    assert not asked_anew()
    assert begun() == 1
    path.unlink()
    assert asked_anew()
    assert begun() == 2


def test_a_child_that_agrees_is_asked_once(child: Says, begun: Callable[[], int], cache: Path) -> None:
    assert [clients.is_native(BROKERS), asked_anew(), asked_anew()] == [True, True, True]
    assert begun() == 1
    (path,) = kept(cache)
    assert "kafka-native-" in path.name
    path.write_text('{"wh')  # a disk that was full
    assert asked_anew()
    assert begun() == 2


@pytest.mark.parametrize("line", ["kill -KILL $$", "kill -TERM $$", "exit 1", "exit 0"])
def test_a_child_that_others_end_or_that_cannot_begin_says_nothing_for_other_processes(
    line: str, child: Says, begun: Callable[[], int], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child(line)
    assert not clients.is_native(BROKERS)
    assert not clients.is_native(BROKERS)
    assert (begun(), len(caplog.records), kept(cache)) == (1, 1, [])
    child("echo agrees")
    assert asked_anew()


def test_where_no_process_can_be_started_public_functions_are_used(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(verdict, "COMMAND", ("/nowhere/python",))
    assert not clients.is_native(BROKERS)
    assert kept(cache) == []


def test_where_nothing_can_be_kept_each_process_tries_for_itself(
    child: Says, begun: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no directory")
    assert [clients.is_native(BROKERS), asked_anew()] == [True, True]
    assert begun() == 2


def test_a_version_that_was_not_tried_is_not_tried_by_a_user_either(
    child: Says, begun: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert verdict._versions() in verdict.TRIED
    monkeypatch.setattr(verdict, "TRIED", {("2.9.0", "2.9.0"), ("2.11.1", "2.11.1")})
    assert not clients.is_native(BROKERS)
    assert not clients.is_native(BROKERS)
    assert begun() == 0
    (said,) = [record.getMessage() for record in caplog.records]
    assert "{} with librdkafka {} is none of the versions".format(*verdict._versions()) in said
    assert "pip install confluent-kafka==2.11.1" in said


def test_another_library_another_python_or_other_constants_are_tried_again(
    child: Says, begun: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clients.is_native(BROKERS)
    monkeypatch.setattr("holdfast.connectors.kafka.native.verdict.np.__version__", "3.0.0")
    assert asked_anew()
    monkeypatch.setattr("holdfast.connectors.kafka.native.verdict.platform.python_version", lambda: "3.11.99")
    assert asked_anew()
    monkeypatch.setattr(verdict, "__file__", __file__)
    assert asked_anew()
    assert begun() == 4


def test_a_start_has_it_tried_beside_the_jvm_and_its_driver_alone_says_what_is_against_it(
    child: Says,
    begun: Callable[[], int],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(verdict, "_level", logging.DEBUG)
    monkeypatch.setattr(early, "_begin_jvm", lambda *_: None)
    messages = hf.read.kafka("127.0.0.1:1", "messages", format="bytes", disorder="1 s", timestamp="message", name="m")
    copies = hf.write.kafka("127.0.0.1:1", "copies", format="bytes", value="value", name="copies")
    pipeline = hf.Pipeline("p", messages | hf.select("value", name="values") | copies)
    child("kill -SEGV $$")
    early.begin(pipeline, {})
    assert not clients.is_native(BROKERS)  # and waits for that
    for thread in threading.enumerate():
        if thread.name == "kafka-native":
            thread.join()
    assert begun() == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(verdict, "_level", logging.DEBUG)  # of a worker, which finds what is kept
    assert not asked_anew()
    assert begun() == 1
    assert [record.levelname for record in caplog.records if record.levelno >= logging.INFO] == ["WARNING"]
    monkeypatch.setenv(NATIVE, "off")
    monkeypatch.setattr(verdict, "prepare", lambda: pytest.fail("it was asked"))
    early.begin(pipeline, {})


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_off_asks_nobody_and_says_nothing(
    value: str,
    child: Says,
    begun: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(NATIVE, value)
    assert isinstance(clients.open_producer(BROKERS, BROKERS.client()), PublicProducer)
    assert (begun(), caplog.records) == (0, [])


def test_off_on_the_driver_holds_on_executors(
    child: Says, begun: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    sent = pickle.dumps(BROKERS.expanded({NATIVE: "off"}))
    assert not clients.is_native(pickle.loads(sent))
    assert begun() == 0
    for value in ("auto", ""):
        assert clients.is_native(BROKERS.expanded({NATIVE: value}))


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidPipeline, match="HOLDFAST_KAFKA_NATIVE='on' is not known"):
        BROKERS.expanded({NATIVE: "on"})


def in_process(code: str, cache: Path) -> str:
    """Return what a process says that begins with this cache directory."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


LOADED = """
import sys
from holdfast.connectors.kafka.native import clients
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.native import verdict
from holdfast.connectors.kafka.sink import session
from holdfast.connectors.kafka.source import source
brokers = Brokers("127.0.0.1:1")
consumer = clients.open_consumer(brokers, {**brokers.client(), "group.id": "nobody"})
native = "holdfast.connectors.kafka.native."
print(sorted(name.removeprefix(native) for name in sys.modules if name.startswith(native)), type(consumer).__name__)
"""


@pytest.mark.slow
def test_no_native_function_is_loaded_before_a_verdict_for_it(child: Says, cache: Path) -> None:
    child("kill -SEGV $$")
    assert not clients.is_native(BROKERS)
    assert in_process(LOADED, cache) == "['clients', 'verdict'] PublicConsumer"


@pytest.mark.slow
def test_the_child_finds_that_the_library_of_this_machine_agrees(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert clients.is_native(BROKERS)
    assert caplog.records == []
    (path,) = kept(cache)
    assert path.stat().st_mode & 0o077 == 0
    assert "BulkConsumer" in in_process(LOADED, cache)


WRONG = {
    "where a value is": "messages.MESSAGE = moved(messages.MESSAGE, value=32)",
    "where a key's size is": "messages.MESSAGE = moved(messages.MESSAGE, key_size=56)",
    "what a header is": "producing._HEADER = 8",
    "what a list of messages is": "messages._malloc = elsewhere(messages._malloc)",
}
WRONG_TOO = {
    "the size of a message": "producing.MESSAGE = moved(messages.MESSAGE, itemsize=80)",
    "where a value is when it is sent": "producing.MESSAGE = moved(messages.MESSAGE, value=40)",
    "where a header's name is": "producing._PART = moved(producing._PART, a=16)",
    "where the topics of a cluster are": "metadata._Metadata = without(metadata._Metadata, 'brokers')",
}
"""Some of these leave the child waiting for what does not come."""


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [*WRONG, *(pytest.param(each, marks=pytest.mark.nightly) for each in WRONG_TOO)])
def test_the_child_finds_a_wrong_constant(wrong: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies, or says what differs; whoever waits for it does neither."""
    code = BROKEN.format({**WRONG, **WRONG_TOO}[wrong])
    monkeypatch.setattr(verdict, "COMMAND", (sys.executable, "-c", code))
    assert not clients.is_native(BROKERS)
    assert len(kept(cache)) == 1


BROKEN = """
import ctypes
import sys
import numpy as np
from holdfast.connectors.kafka.native import messages, metadata, producing, trial
def moved(layout, itemsize=None, **places):
    offsets = [places.get(name, layout.fields[name][1]) for name in layout.names]
    formats = [layout.fields[name][0] for name in layout.names]
    size = layout.itemsize if itemsize is None else itemsize
    return np.dtype(dict(names=layout.names, formats=formats, offsets=offsets, itemsize=size))
def without(struct, left_out):
    return type("Other", (ctypes.Structure,), {{"_fields_": [each for each in struct._fields_ if each[0] != left_out]}})
def elsewhere(malloc):
    return lambda client, size: malloc(client, size + 8) + 8
{}
sys.exit(trial.main())
"""
