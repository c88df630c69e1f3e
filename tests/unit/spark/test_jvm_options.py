"""Which JVM a run starts: one that is ready soon, where no row enters it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.config import Settings
from holdfast.graph.trigger import available_now
from holdfast.spark.launch import class_archive, early, jvm, session, warm_workers
from holdfast.spark.launch.early import begin, rows_in_jvm
from holdfast.spark.launch.jvm import JvmEnded, options_for, plain_options
from holdfast.spark.launch.jvm_options import TRIM, JvmOptions, RowsInJvm, options_of_java
from holdfast.starts.context import StartOptions, context_of
from holdfast.starts.warm_up import warm_up


class Started(Exception):
    """The session is asked for."""


def asks_for_one_for(monkeypatch: pytest.MonkeyPatch, directory: Path, stream: hf.Stream, **settings: Any) -> RowsInJvm:
    """Return for which rows the JVM is optimised that a start asks for; nothing is started."""

    def create_session(master: str, memory: str, *, rows: RowsInJvm, has_archive: bool) -> None:
        raise Started(rows)

    monkeypatch.setattr(session, "create_session", create_session)
    pipeline = hf.Pipeline("p", stream | hf.write.sqlite(directory / "p.db", table="t", name="t"))
    asked = StartOptions(pipeline, str(directory / "c"), available_now(), None, False, None, Settings(**settings))
    with pytest.raises(Started) as started:
        context_of(asked)
    asked_for: RowsInJvm = started.value.args[0]
    return asked_for


def read() -> hf.Stream:
    return hf.read.rows([[{"k": "a", "n": 1}]], schema="k STRING, n BIGINT", name="rows")


def in_arrow(rows: hf.Stream) -> hf.Stream:
    return rows | hf.filter("n > 0", name="some")


def in_spark(rows: hf.Stream) -> hf.Stream:
    return rows | hf.map(lambda frame: frame.selectExpr("k", "n + rand() as n"), name="mapped")


ROWS = read()
IN_ARROW = in_arrow(ROWS)
IN_SPARK = in_spark(ROWS)
WITH_STATE = ROWS | hf.reduce(by="k", n=hf.count(), name="sums")
STATE_BEHIND_SPARK = IN_SPARK | hf.reduce(by="k", n=hf.count(), name="sums_of_mapped")


@pytest.mark.parametrize("stream", [IN_ARROW, WITH_STATE], ids=["stateless", "state"])
def test_a_jvm_that_evaluates_no_row_is_ready_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: hf.Stream
) -> None:
    assert asks_for_one_for(monkeypatch, tmp_path, stream) is RowsInJvm.NONE


@pytest.mark.parametrize("stream", [IN_SPARK, STATE_BEHIND_SPARK], ids=["stateless", "state"])
def test_a_jvm_that_evaluates_rows_optimises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: hf.Stream
) -> None:
    assert asks_for_one_for(monkeypatch, tmp_path, stream) is RowsInJvm.ALL
    assert asks_for_one_for(monkeypatch, tmp_path, stream, jvm="quick") is RowsInJvm.NONE


def test_a_jvm_that_evaluates_rows_between_operators_with_state_alone_optimises_what_stays_hot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    between = WITH_STATE | hf.select("k", n="bround(n, 0)", name="rounded") | hf.reduce(by="k", m=hf.sum("n"), name="m")
    assert asks_for_one_for(monkeypatch, tmp_path, between) is RowsInJvm.BETWEEN_STATE
    assert asks_for_one_for(monkeypatch, tmp_path, between, columnar=False) is RowsInJvm.ALL
    assert asks_for_one_for(monkeypatch, tmp_path, between, jvm="full") is RowsInJvm.ALL
    behind_spark = STATE_BEHIND_SPARK | hf.map(lambda frame: frame, name="again")
    assert asks_for_one_for(monkeypatch, tmp_path, behind_spark) is RowsInJvm.ALL
    assert "-XX:+UseSerialGC" in options_of_java(RowsInJvm.BETWEEN_STATE, {}, 2)
    assert not any(
        "Tier" in option for option in options_of_java(RowsInJvm.BETWEEN_STATE, {"_JAVA_OPTIONS": "-Xint"}, 2)
    )


@pytest.mark.parametrize("settings", [{"jvm": "full"}, {"columnar": False}], ids=["full", "through Spark's plan"])
def test_it_can_be_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any]) -> None:
    assert asks_for_one_for(monkeypatch, tmp_path, IN_ARROW, **settings) is RowsInJvm.ALL


def test_what_the_user_has_chosen_for_the_jvm_stands() -> None:
    chosen = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn1g"
    assert options_of_java(RowsInJvm.NONE, {"SPARK_SUBMIT_OPTS": chosen}, 2) == TRIM
    assert options_of_java(RowsInJvm.NONE, {"JDK_JAVA_OPTIONS": "-Xint"}, 1) == ("-XX:+UseSerialGC", "-Xms96m", *TRIM)
    kept = {"JAVA_TOOL_OPTIONS": "-XX:TrimNativeHeapInterval=0"}
    assert options_of_java(RowsInJvm.NONE, kept, 16) == ("-XX:TieredStopAtLevel=1", "-Xms96m")


def test_a_large_machine_keeps_javas_collector() -> None:
    assert options_of_java(RowsInJvm.NONE, {}, 16) == ("-XX:TieredStopAtLevel=1", "-Xms96m", *TRIM)


def test_what_is_freed_outside_of_the_heap_goes_back_whatever_the_jvm_evaluates() -> None:
    assert all(set(TRIM) <= set(options_of_java(rows, {}, 2)) for rows in RowsInJvm)


def test_a_function_that_is_given_frames_has_a_jvm_that_optimises(tmp_path: Path) -> None:
    frames = hf.Pipeline("p", IN_ARROW | hf.write.foreach_batch(lambda frame, epoch: None, name="frames"))
    assert rows_in_jvm(frames, Settings()) is RowsInJvm.ALL
    table = hf.Pipeline("p", IN_ARROW | hf.write.sqlite(tmp_path / "p.db", table="t", name="t"))
    assert rows_in_jvm(table, Settings()) is RowsInJvm.NONE


def test_what_a_start_asks_twice_of_its_graph_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[hf.Pipeline] = []

    def build_program(pipeline: hf.Pipeline, *_: object) -> object:
        looked.append(pipeline)
        return object()

    monkeypatch.setattr(early, "build_program", build_program)
    monkeypatch.setattr(jvm, "begin", lambda options: None)
    pipeline = hf.Pipeline("p", IN_ARROW | hf.write.sqlite(tmp_path / "p.db", table="t", name="t"))
    begin(pipeline, {})
    assert rows_in_jvm(pipeline, Settings()) is RowsInJvm.NONE
    assert rows_in_jvm(pipeline, Settings(columnar=False)) is RowsInJvm.ALL
    assert looked == [pipeline]


@pytest.mark.slow
@pytest.mark.parametrize("several", [(in_arrow, in_spark), (in_arrow, in_arrow)], ids=["unlike", "alike"])
def test_pipelines_that_share_a_jvm_have_a_quick_one_if_it_evaluates_no_row_of_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, several: tuple[Callable[[hf.Stream], hf.Stream], ...]
) -> None:
    rows = read()

    def create_session(master: str, memory: str, *, rows: RowsInJvm, has_archive: bool) -> None:
        raise Started(rows)

    monkeypatch.setattr(session, "create_session", create_session)
    pipelines = [
        hf.Pipeline(f"p{number}", make(rows) | hf.write.sqlite(tmp_path / f"{number}.db", table="t", name="t"))
        for number, make in enumerate(several)
    ]
    with pytest.raises(Started) as started:
        hf.start_all(pipelines, checkpoint=tmp_path)
    assert started.value.args == (RowsInJvm.NONE if several[1] is in_arrow else RowsInJvm.ALL,)


def test_a_jvm_that_does_not_start_with_our_options_is_started_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A collector was chosen where nobody sees it beforehand; and an archive of classes may be damaged."""
    tried: list[JvmOptions] = []

    plain = plain_options("1g")

    def started_with(options: dict[str, str], jvm: JvmOptions) -> str:
        tried.append(jvm)
        if jvm != plain:
            raise JvmEnded(["Conflicting collector combinations in option list"])
        return "a session"

    archive = tmp_path / "classes.jsa"
    archive.touch()
    monkeypatch.setattr(class_archive, "path_for", lambda environment: archive)
    monkeypatch.setattr(session, "_started_with", started_with)
    ours = options_for("1g", rows=RowsInJvm.NONE, has_archive=True)
    assert session._started({}, ours) == "a session"
    assert tried == [ours, plain]
    assert not archive.exists()  # it may have been that
    tried.clear()
    assert session._started({}, plain) == "a session"
    assert tried == [plain]


def test_a_jvm_is_begun_for_a_start_unless_the_start_has_a_session_or_hooks_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[JvmOptions] = []
    monkeypatch.setattr(jvm, "begin", begun.append)
    sink = hf.write.sqlite(tmp_path / "p.db", table="t", name="t")
    pipeline = hf.Pipeline("p", IN_ARROW | sink)
    settings = Settings(driver_memory="512 MiB", class_archive="off")
    begin(pipeline, {"settings": settings})
    assert [options.memory for options in begun] == ["512m"]
    assert begun[0] == options_for("512m", rows=RowsInJvm.NONE, has_archive=False)
    begun.clear()
    begin(pipeline, {"settings": settings, "session": object()})
    begin(pipeline, {"settings": settings, "master": "spark://host:7077"})
    begin(hf.Pipeline("p", IN_ARROW | sink, hooks=hf.Hooks(on_setup=lambda: None)), {"settings": settings})
    assert begun == []


def test_a_jvm_that_cannot_be_begun_is_the_starts_business(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def begin_nothing(options: JvmOptions) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(jvm, "begin", begin_nothing)
    begin(hf.Pipeline("p", IN_ARROW | hf.write.sqlite(tmp_path / "p.db", table="t", name="t")), {})


def test_a_spare_has_a_session_with_a_local_master_only_and_not_before_a_hook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    monkeypatch.setattr(jvm, "begin", lambda options: None)
    monkeypatch.setattr(session, "session_of", lambda settings, **_: made.append(settings.master))
    monkeypatch.setattr(session, "run_session", lambda base, parallelism: None)
    sink = hf.write.sqlite(tmp_path / "p.db", table="t", name="t")
    warm_up(hf.Pipeline("p", IN_ARROW | sink), {"master": "spark://host:7077"})
    warm_up(hf.Pipeline("p", IN_ARROW | sink, hooks=hf.Hooks(on_setup=lambda: None)), {"master": "local[1]"})
    assert made == []
    warm_up(hf.Pipeline("p", IN_ARROW | sink), {"master": "local[1]"})
    assert made == ["local[1]"]


def test_workers_are_warmed_up_where_a_core_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the start, into which kills fall, would wait for what is to shorten it."""
    monkeypatch.setattr("holdfast.spark.launch.warm_workers.os.cpu_count", lambda: 2)
    found = []
    for load in (0.4, 1.9, 2.0, 14.0):
        monkeypatch.setattr("holdfast.spark.launch.warm_workers.os.getloadavg", lambda load=load: (load, 9.0, 9.0))
        found.append(warm_workers.has_idle_core())
    assert found == [True, True, False, False]


@pytest.mark.parametrize(("name", "value"), [("MIMALLOC_PURGE_DELAY", "1000"), ("MIMALLOC_ALLOW_THP", "0")])
def test_the_allocator_of_workers_is_set_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    with jvm.environment_of_workers(is_local=True):
        assert os.environ[name] == value
    assert name not in os.environ
    monkeypatch.setenv(name, "7")
    with jvm.environment_of_workers(is_local=True):
        assert os.environ[name] == "7"
    assert os.environ[name] == "7"
