"""Which Sparks run a pipeline, and what is said of the others (design/0052)."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from packaging.specifiers import SpecifierSet

import holdfast as hf
from holdfast.cli.check import findings
from holdfast.errors import InvalidPipeline
from holdfast.spark import spark_versions
from holdfast.spark.spark_versions import (
    VERSIONS,
    bounds,
    by_name,
    first_release,
    installed_version,
    require_classic,
    require_for,
    require_version,
    supported_versions,
    trigger_of,
)

REFUSED = [minor for minor, version in VERSIONS.items() if not version.is_supported]


class ConnectSession:
    """What a session of Spark Connect is known by, where its libraries are not installed."""

    __module__ = "pyspark.sql.connect.session"


def pipeline_of(work: Path) -> hf.Pipeline:
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    return hf.Pipeline("small", rows | hf.write.sqlite(str(work / "out.db"), table="rows", name="rows_table"))


@pytest.mark.parametrize("minor", supported_versions())
def test_a_version_that_has_everything_is_not_refused(minor: str) -> None:
    require_version(f"{minor}.7")


@pytest.mark.parametrize("minor", REFUSED)
def test_a_version_that_lacks_something_is_refused_with_the_one_that_has_it(minor: str) -> None:
    with pytest.raises(InvalidPipeline, match=rf"PySpark {minor}\.1 cannot run") as refused:
        require_version(f"{minor}.1")
    assert all(each in refused.value.why for each in VERSIONS[minor].lacks)
    assert f"Spark {first_release()} is the first" in refused.value.why
    assert "pip install 'pyspark>=" in refused.value.do


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0"])
def test_a_version_that_was_not_tried_is_refused_with_those_that_were(version: str) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        require_version(version)
    assert " and ".join(supported_versions()) in refused.value.why


def test_a_release_that_does_not_recover_is_refused_with_the_first_that_does() -> None:
    """4.2.0 cannot start again after a crash in an epoch (design/0052, section 1)."""
    with pytest.raises(InvalidPipeline, match=r"4\.2\.0 cannot run") as refused:
        require_version("4.2.0")
    assert "4.2.1 is the first release" in refused.value.why
    require_version("4.2.1")


def test_a_release_that_was_not_tried_is_refused_with_the_first_that_was() -> None:
    with pytest.raises(InvalidPipeline, match=r"4\.1\.3 cannot run") as refused:
        require_version("4.1.3")
    assert "were not tried; 4.1.4 is the first release" in refused.value.why


@pytest.mark.parametrize(("minor", "arguments"), [("4.1", "processingTime"), ("4.3", "availableNow")])
def test_a_query_that_ends_is_triggered_as_its_spark_can_end_it(
    minor: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "running", lambda: VERSIONS[minor])
    assert list(trigger_of(None)) == [arguments]
    assert trigger_of(250_000) == {"processingTime": "250 milliseconds"}


def test_pip_is_asked_for_no_release_that_is_refused() -> None:
    releases = [f"{minor}.{patch}" for minor in VERSIONS for patch in range(6)]
    asked = SpecifierSet(bounds())
    for release in releases:
        try:
            require_version(release)
            runs = True
        except InvalidPipeline:
            runs = False
        assert (release in asked) is runs, release


def spark_source() -> Any:
    return hf.read.spark("rate", schema="value BIGINT", name="ticks")


def test_sources_of_sparks_own_need_positions_under_names() -> None:
    """By place only Spark knows whose they are (design/0052, section 1)."""
    sources = [spark_source().node]
    require_for(sources, "4.2.1")
    require_for(sources, None)
    require_for([hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows").node], "4.1.4")
    with pytest.raises(InvalidPipeline, match=r"PySpark 4\.1\.4 cannot run a pipeline with read\.spark") as refused:
        require_for(sources, "4.1.4")
    assert f"Spark {by_name()} is the first" in refused.value.why
    assert refused.value.participant == "ticks"


def test_check_and_start_refuse_what_a_version_lacks_for_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "installed_version", lambda: "4.1.4")
    sink = hf.write.sqlite(str(tmp_path / "out.db"), table="rows", name="rows_table")
    pipeline = hf.Pipeline("small", spark_source() | sink)
    assert ["read.spark" in error.what for error in findings(pipeline, None)] == [True]
    with pytest.raises(InvalidPipeline, match=r"read\.spark"):
        pipeline.start(checkpoint=tmp_path / "ckpt")
    assert not (tmp_path / "ckpt").exists()


def test_the_version_is_read_and_not_imported() -> None:
    assert installed_version() == pyspark.__version__


def test_the_version_is_read_from_sparks_own_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spark-submit puts it on the path."""
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "raise ImportError('it is not to be imported')")
        archive.writestr("pyspark/version.py", '__version__: str = "4.0.3"\n')
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path / "pyspark.zip"))
    assert installed_version() == "4.0.3"


def test_check_and_start_refuse_a_version_that_lacks_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "installed_version", lambda: "4.1.1")
    pipeline = pipeline_of(tmp_path)
    assert [error.what for error in findings(pipeline, None)] == ["PySpark 4.1.1 cannot run a pipeline."]
    with pytest.raises(InvalidPipeline, match=r"PySpark 4\.1\.1 cannot run"):
        pipeline.start(checkpoint=tmp_path / "ckpt")
    assert not (tmp_path / "ckpt").exists()


def test_a_session_of_spark_connect_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="one of Spark Connect") as refused:
        pipeline_of(tmp_path).start(checkpoint=tmp_path / "ckpt", session=ConnectSession())
    assert "has no JVM" in refused.value.why
    assert "spark-submit" in refused.value.do
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPARK_REMOTE", "sc://host"), ("SPARK_CONNECT_MODE_ENABLED", "1"), ("SPARK_API_MODE", "connect")],
)
def test_an_environment_in_which_a_session_would_be_one_of_connect_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"{name} is set") as refused:
        require_classic(None, {name: value})
    assert refused.value.do.startswith(f"unset {name}")
    require_classic(None, {"SPARK_API_MODE": "classic"})


def test_a_session_that_was_given_is_not_asked_about_the_environment() -> None:
    require_classic(object(), {"SPARK_REMOTE": "sc://host"})
