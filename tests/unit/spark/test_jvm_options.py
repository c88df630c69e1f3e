"""Which JVM a run starts: one that is ready soon, where no row enters it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.config import Settings
from holdfast.graph.trigger import available_now
from holdfast.spark.launch import session
from holdfast.spark.launch.jvm_options import quick_options
from holdfast.spark.launch.jvm_output import JvmEnded
from holdfast.spark.resume import context
from holdfast.spark.resume.context import StartOptions, context_of, program_of, stays_out_of_the_jvm


class Started(Exception):
    """The session is asked for."""


def asks_for_a_quick_one(monkeypatch: pytest.MonkeyPatch, directory: Path, stream: hf.Stream, **settings: Any) -> bool:
    """Return whether a start asks for a JVM that is ready soon; nothing is started."""

    def create_session(master: str, memory: str, *, is_quick: bool) -> None:
        raise Started(is_quick)

    monkeypatch.setattr(context, "create_session", create_session)
    pipeline = hf.Pipeline("p", stream | hf.write.sqlite(directory / "p.db", table="t", name="t"))
    asked = StartOptions(pipeline, str(directory / "c"), available_now(), None, False, None, Settings(**settings))
    with pytest.raises(Started) as started:
        context_of(asked)
    return bool(started.value.args[0])


ROWS = hf.read.rows([[{"k": "a", "n": 1}]], schema="k STRING, n BIGINT", name="rows")
IN_ARROW = ROWS | hf.filter("n > 0", name="some")
IN_SPARK = ROWS | hf.map(lambda frame: frame.selectExpr("n + rand() as n"), name="mapped")
WITH_STATE = ROWS | hf.reduce(by="k", n=hf.count(), name="sums")


def test_a_jvm_that_no_row_enters_is_ready_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asks_for_a_quick_one(monkeypatch, tmp_path, IN_ARROW)


@pytest.mark.parametrize("stream", [IN_SPARK, WITH_STATE], ids=["spark", "state"])
def test_a_jvm_that_rows_enter_optimises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: hf.Stream) -> None:
    assert not asks_for_a_quick_one(monkeypatch, tmp_path, stream)
    assert asks_for_a_quick_one(monkeypatch, tmp_path, stream, jvm="quick")


@pytest.mark.parametrize("settings", [{"jvm": "full"}, {"columnar": False}], ids=["full", "through Spark's plan"])
def test_it_can_be_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any]) -> None:
    assert not asks_for_a_quick_one(monkeypatch, tmp_path, IN_ARROW, **settings)


def test_what_the_user_has_chosen_for_the_jvm_stands() -> None:
    assert quick_options({"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}) == ()
    assert quick_options({"JDK_JAVA_OPTIONS": "-Xint"}) == ("-XX:+UseSerialGC",)


def test_a_function_that_is_given_frames_has_a_jvm_that_optimises(tmp_path: Path) -> None:
    frames = hf.Pipeline("p", IN_ARROW | hf.write.foreach_batch(lambda frame, epoch: None, name="frames"))
    assert not stays_out_of_the_jvm(frames, program_of(frames, Settings(), ""))
    table = hf.Pipeline("p", IN_ARROW | hf.write.sqlite(tmp_path / "p.db", table="t", name="t"))
    assert stays_out_of_the_jvm(table, program_of(table, Settings(), ""))


@pytest.mark.parametrize("several", [(IN_ARROW, WITH_STATE), (IN_ARROW, IN_ARROW)], ids=["unlike", "alike"])
def test_pipelines_that_share_a_jvm_have_a_quick_one_if_no_row_of_any_enters_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, several: tuple[hf.Stream, hf.Stream]
) -> None:
    def create_session(master: str, memory: str, *, is_quick: bool) -> None:
        raise Started(is_quick)

    monkeypatch.setattr(context, "create_session", create_session)
    pipelines = [
        hf.Pipeline(f"p{number}", stream | hf.write.sqlite(tmp_path / f"{number}.db", table="t", name="t"))
        for number, stream in enumerate(several)
    ]
    with pytest.raises(Started) as started:
        hf.start_all(pipelines, checkpoint=str(tmp_path))
    assert started.value.args == (several[1] is IN_ARROW,)


def test_a_jvm_that_does_not_start_with_our_options_is_started_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector was chosen where nobody sees it beforehand."""
    tried: list[str] = []

    def started_with(options: dict[str, str]) -> str:
        tried.append(options["spark.driver.extraJavaOptions"])
        if "SerialGC" in tried[-1]:
            raise JvmEnded(["Conflicting collector combinations in option list"])
        return "a session"

    monkeypatch.setattr(session, "_started_with", started_with)
    assert session._started({}, "-Dlog", quick_options({})) == "a session"
    assert tried == ["-Dlog -XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "-Dlog"]
    tried.clear()
    assert session._started({}, "-Dlog", ()) == "a session"
    assert tried == ["-Dlog"]
