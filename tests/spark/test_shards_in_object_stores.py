"""Shards whose checkpoint is in an object store: scratches that are lost, old, or another host's (design/0048, 16)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.s3_server import CREDENTIALS, create_bucket
from tests.spark.object_store_runs import RunsElsewhere
from tests.spark.object_store_shards import ShardsPlace, command, run, run_on_two_hosts
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

SNAPSHOTS = {"HOLDFAST_CHECKPOINT_FREQ": "1"}


@pytest.fixture(scope="module")
def elsewhere(s3_of_session: str) -> Iterator[RunsElsewhere]:
    create_bucket(s3_of_session, "shards")
    found = RunsElsewhere({**CREDENTIALS, "AWS_ENDPOINT_URL": s3_of_session})
    yield found
    found.close()


@pytest.fixture
def place(tmp_path: Path) -> ShardsPlace:
    return ShardsPlace(tmp_path, f"s3://shards/{tmp_path.name}/kept")


def test_every_row_is_there_once_whatever_becomes_of_the_scratch(elsewhere: RunsElsewhere, place: ShardsPlace) -> None:
    place.arrive()
    assert elsewhere(run, place, 3) == ("", [0, 0, 0])
    place.check()
    assert (place.of_pipeline / "sources/rows/log").is_dir()
    assert (place.of_pipeline / "shards/2/spark/1").is_dir()
    place.copy_scratch("of the first start")

    place.arrive()  # one fails between its two sinks, and comes back: its neighbours' logs are as they were
    assert elsewhere(run, place, None, ("after-publish", 1, 1)) == ("", [0, 1, 0])
    place.check()

    place.move_scratch("of the first host")  # the next one is without
    place.arrive()
    assert elsewhere(run, place) == ("", [0, 0, 0])
    place.check()

    shutil.rmtree(place.scratch)  # a half-old one: of an earlier generation, as a copy brings it back
    (place.work / "of the first start").rename(place.scratch)
    place.arrive()
    assert elsewhere(run, place, 2) == ("", [0, 0])  # and at once another number
    place.check()
    assert not (place.of_pipeline / "shards/2/spark/1/offsets").exists(), "what it had planned is not run"


def test_state_goes_on_from_the_snapshots_of_each_shard_and_moves_when_it_is_there(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    place.keeps_state = True
    for count in (2, 2):
        place.arrive()
        assert elsewhere(run, place, count, **SNAPSHOTS) == ("", [0, 0])
    shutil.rmtree(place.scratch)
    place.arrive()
    said, _ = elsewhere(run, place, 3, **SNAPSHOTS)
    assert "Spark's directory is lost" in said
    assert "start with as many shards as before" in said
    assert elsewhere(run, place, **SNAPSHOTS) == ("", [0, 0])
    place.check()
    place.arrive()
    assert elsewhere(run, place, 3, **SNAPSHOTS) == ("", [0, 0, 0])
    place.check()


def test_one_shard_runs_alone_over_the_scratch_of_all_and_over_no_other(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    place.arrive()
    assert elsewhere(run, place, 2) == ("", [0, 0])
    place.arrive()
    assert elsewhere(run, place, None, None, 1)[0] == ""
    place.move_scratch("of all")
    said, _ = elsewhere(run, place, None, None, 0)
    assert "cannot run alone over the scratch" in said
    assert "start all shards here once" in said
    shutil.rmtree(place.scratch)
    (place.work / "of all").rename(place.scratch)
    assert elsewhere(run, place, None, None, 0)[0] == ""
    place.check()


def test_the_log_is_restored_from_the_sinks_of_all_before_one_of_them_reads(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    """Shard 0 knows the log up to its own last epoch: it would log other files under the numbers that follow.

    Shard 1 comes later than it has them.
    """
    place.arrive()
    assert elsewhere(run, place, 2) == ("", [0, 0])
    place.arrive()
    assert elsewhere(run, place, None, None, 1)[0] == ""
    shutil.rmtree(place.scratch)
    place.arrive(before=True)
    assert elsewhere(run, place, None, ("recovery-resolved", 1, 3)) == ("", [0, 2]), "the third is a takeover"
    place.check()


def test_a_start_of_all_on_another_host_ends_the_shards_on_the_first(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    """Each has a log of its own: what the first one logs after that is nobody's."""
    said, place.rows = elsewhere(run_on_two_hosts, place)
    assert said.startswith("Fenced: ")
    place.check()


def test_commands_elsewhere_see_and_resolve_every_shard(elsewhere: RunsElsewhere, place: ShardsPlace) -> None:
    place.arrive()
    failing = {"HOLDFAST_MAX_RESTARTS": "0"}
    said, _ = elsewhere(run, place, 2, ("after-decide", 1, 99), **failing)
    assert "after-decide:" in said
    place.move_scratch("of the host")
    code, said = elsewhere(command, place, "inspect", "TARGET")
    assert (code, "shard 1" in said) == (0, True), said
    code, said = elsewhere(command, place, "resolve", "TARGET", "--force")
    assert code == 0, said
    shutil.rmtree(place.scratch)
    (place.work / "of the host").rename(place.scratch)
    place.arrive()
    assert elsewhere(run, place)[0] == ""
    place.check()


@pytest.mark.nightly
def test_all_shards_go_back_to_a_named_checkpoint_on_the_host_that_ran_last(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    """What makes one, and what goes back, needs Spark's directories; a start after that needs none."""
    place.keeps_state = True
    commands = [("checkpoint", "create", "before", "--force"), ("rewind", "TARGET", "--to", "before", "--force")]
    for words in commands:
        place.arrive()
        assert elsewhere(run, place, 2) == ("", [0, 0])
        place.move_scratch("of the host")
        code, said = elsewhere(command, place, *words)
        assert (code, "needs Spark's part of the checkpoint" in " ".join(said.split())) == (2, True), said
        shutil.rmtree(place.scratch)
        (place.work / "of the host").rename(place.scratch)
        code, said = elsewhere(command, place, *words)
        assert code == 0, said
    shutil.rmtree(place.scratch)
    assert elsewhere(run, place) == ("", [0, 0])
    place.check()


@pytest.mark.nightly
def test_another_pipeline_begins_with_a_named_checkpoint_of_all_shards_at_its_address(
    elsewhere: RunsElsewhere, place: ShardsPlace
) -> None:
    place.keeps_state = True
    place.arrive()
    assert elsewhere(run, place, 2) == ("", [0, 0])
    assert elsewhere(command, place, "checkpoint", "create", "before", "--force")[0] == 0
    place.arrive()
    begins = f"{place.address}/before"
    (new := place.work / "other").mkdir()
    other = replace(place, work=new, address=f"{place.address}-other", begins=begins, beside=place.work)
    assert elsewhere(run, other, 2) == ("", [0, 0])
    begun = len(other.rows) // 2
    assert sqlite_rows(other.work / "out.db") == list(range(begun, 2 * begun))
    assert sqlite_rows(other.work / "out.db", "SELECT min(n) FROM rows") == [4]
