"""The archive of Spark's classes: where it is, when it is used, when it is made."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from holdfast.spark.launch import class_archive, jvm_options


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").write_text("")
    (java / "release").write_text('JAVA_VERSION="17.0.15"')
    spark = tmp_path / "spark"
    (spark / "jars").mkdir(parents=True)
    (spark / "jars" / "core.jar").write_text("core")
    monkeypatch.setattr(jvm_options, "spark_home", lambda: spark)
    return {"JAVA_HOME": str(java), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def archive_of(environment: dict[str, str]) -> Path:
    path = class_archive.path_for(environment)
    assert path is not None
    return path


def put_archive(environment: dict[str, str]) -> Path:
    path = archive_of(environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_it_is_used_where_it_is(environment: dict[str, str]) -> None:
    assert class_archive.options(environment) == ()
    path = put_archive(environment)
    assert class_archive.options(environment)[0] == f"-XX:SharedArchiveFile={path}"


def test_its_pages_stay_those_of_the_file(environment: dict[str, str]) -> None:
    """Mapped elsewhere, as Java prefers, they are written, and are the process's own (design/0014)."""
    put_archive(environment)
    options = class_archive.options(environment)
    assert options.index("-XX:+UnlockDiagnosticVMOptions") < options.index("-XX:ArchiveRelocationMode=0")


def test_the_archive_that_a_user_has_chosen_stands(environment: dict[str, str]) -> None:
    put_archive(environment)
    assert class_archive.options({**environment, "SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=mine.jsa"}) == ()


def test_another_java_or_another_jar_has_another_archive(environment: dict[str, str], tmp_path: Path) -> None:
    first = archive_of(environment)
    assert archive_of(environment) == first
    (tmp_path / "spark/jars/sql.jar").write_text("sql")
    second = archive_of(environment)
    (tmp_path / "java/release").write_text('JAVA_VERSION="21"')
    assert len({first, second, archive_of(environment)}) == 3


def test_where_there_is_no_java_or_no_spark_there_is_none(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert class_archive.path_for({}) is None
    monkeypatch.setattr(jvm_options, "spark_home", lambda: None)
    assert class_archive.path_for(environment) is None


@pytest.fixture
def begun(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is begun to be made: at once, and nothing is made."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(class_archive, "_is_to_be_made", threading.Lock())
    monkeypatch.setattr("holdfast.spark.launch.class_archive.atexit.register", lambda function: function)
    found: list[Path] = []

    class Timer(threading.Timer):
        def start(self) -> None:
            self.function()

    monkeypatch.setattr("holdfast.spark.launch.class_archive.threading.Timer", Timer)
    monkeypatch.setattr(
        "holdfast.spark.launch.class_archive.subprocess.Popen", lambda command, **_: found.append(Path(command[-1]))
    )
    return found


def test_it_is_made_once_where_a_second_start_finds_none(
    environment: dict[str, str], begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class_archive.make_later()
    class_archive.make_later()
    assert begun == [], "the first start: perhaps nothing lasts here until the next one"
    monkeypatch.setattr(class_archive, "_is_to_be_made", threading.Lock())  # another process
    class_archive.make_later()
    class_archive.make_later()
    assert begun == [archive_of(environment)]


def test_it_is_never_made_where_nothing_lasts_or_nothing_can_be_written(
    environment: dict[str, str], begun: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(3):  # containers: each has a home of its own
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"home-{number}"))
        monkeypatch.setattr(class_archive, "_is_to_be_made", threading.Lock())
        class_archive.make_later()
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a_file"))
    for _ in range(2):
        monkeypatch.setattr(class_archive, "_is_to_be_made", threading.Lock())
        class_archive.make_later()
    assert begun == []


def test_it_is_not_made_where_it_is_or_where_that_failed_lately(
    environment: dict[str, str], begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = put_archive(environment).with_suffix(".failed")
    failed.with_suffix(".missed").touch()
    class_archive.make_later()
    archive_of(environment).unlink()
    failed.touch()
    class_archive.make_later()
    assert begun == []
    monkeypatch.setattr(class_archive, "_is_to_be_made", threading.Lock())
    os.utime(failed, (1, 1))
    class_archive.make_later()
    assert begun == [archive_of(environment)]


def test_an_attempt_that_fails_leaves_a_note_and_no_archive(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(environment)

    def half_made(place: Path, archive: Path) -> str:
        archive.write_text("half")
        return "the pipeline failed"

    monkeypatch.setattr(class_archive, "_run_pipeline", half_made)
    assert not class_archive.make(path)
    assert path.with_suffix(".failed").read_text() == "the pipeline failed"
    assert {each.suffix for each in path.parent.iterdir()} == {".failed", ".lock"}


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("java", 600), OSError("no room")])
def test_an_attempt_that_takes_too_long_or_finds_no_java_is_not_repeated_at_each_start(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = archive_of(environment)

    def raised(place: Path, archive: Path) -> str:
        archive.write_text("half")
        raise error

    monkeypatch.setattr(class_archive, "_run_pipeline", raised)
    assert not class_archive.make(path)
    assert path.with_suffix(".failed").read_text() == str(error)
    assert not path.with_suffix(".new").exists()


def test_an_archive_that_java_does_not_take_is_none(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(environment)

    def made(place: Path, archive: Path) -> str:
        archive.write_text("all of it")
        return ""

    monkeypatch.setattr(class_archive, "_run_pipeline", made)
    monkeypatch.setattr(class_archive, "_verify", lambda archive: "no")
    assert not class_archive.make(path)
    monkeypatch.setattr(class_archive, "_verify", lambda archive: "")
    assert class_archive.make(path)
    assert path.read_text() == "all of it"
    assert not path.with_suffix(".failed").exists()


def test_archives_of_installations_that_are_gone_are_removed(environment: dict[str, str]) -> None:
    path = put_archive(environment)
    other = path.with_name("spark-classes-0123.jsa")
    other.touch()
    os.utime(other, (1, 1))
    class_archive._remove_unused(path.parent)
    assert path.exists()
    assert not other.exists()


def test_the_lesser_of_the_machines_and_the_containers_counts(tmp_path: Path) -> None:
    assert class_archive.available_bytes(tmp_path, tmp_path) == class_archive._UNKNOWN
    (tmp_path / "meminfo").write_text("MemTotal: 8000 kB\nMemAvailable:    4000 kB\n")
    assert class_archive.available_bytes(tmp_path, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert class_archive.available_bytes(tmp_path, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("3000000\n")
    assert class_archive.available_bytes(tmp_path, tmp_path) == 2_000_000


def test_an_archive_that_others_could_have_written_is_not_used(environment: dict[str, str]) -> None:
    path = put_archive(environment)
    path.chmod(0o666)
    assert class_archive.options(environment) == ()
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert class_archive.options(environment) == ()
    path.parent.chmod(0o700)
    assert class_archive.options(environment)


def test_none_is_made_where_others_may_write_or_memory_is_short(
    environment: dict[str, str], begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(environment)
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    class_archive._begin(path)
    assert not class_archive.make(path)
    path.parent.chmod(0o700)
    monkeypatch.setattr(class_archive, "available_bytes", lambda: 2 << 30)
    class_archive._begin(path)
    assert begun == []


def test_an_attempt_that_is_killed_is_not_repeated_at_each_start(
    environment: dict[str, str], begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(environment)

    class KilledError(BaseException):
        pass

    def killed(place: Path, archive: Path) -> str:
        raise KilledError

    monkeypatch.setattr(class_archive, "_run_pipeline", killed)
    with pytest.raises(KilledError):
        class_archive.make(path)
    path.with_suffix(".missed").touch()
    class_archive.make_later()
    assert begun == []


def test_what_a_link_of_somebody_else_leads_to_is_not_written(environment: dict[str, str], tmp_path: Path) -> None:
    path = archive_of(environment)
    path.parent.mkdir(parents=True)
    (tmp_path / "victim").write_text("mine")
    path.with_suffix(".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        class_archive.make(path)
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_runs_that_make_an_archive_make_no_other_one(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        given.append(env)
        return subprocess.CompletedProcess([], 1, "", "no")

    monkeypatch.setattr("holdfast.spark.launch.class_archive.subprocess.run", run)
    assert class_archive._run_pipeline(Path(), Path("classes.jsa")) == "no"
    assert given[0]["HOLDFAST_CLASS_ARCHIVE"] == "off"
