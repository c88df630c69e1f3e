"""What the views show, of given values: pure functions of them (design/0049, section 6)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.checkpoint.start_history import StartLine
from holdfast.config import Settings
from holdfast.health import ExpectationStatus
from holdfast.observe.shards import ShardReport
from holdfast.page import layout
from holdfast.page.condition import sentence
from holdfast.page.model import Asked, Moment
from holdfast.page.reading import CheckpointReader
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.status import ShardStatus, Status
from holdfast.store.local import LocalStore
from tests.page.given import (
    NOW_US,
    GivenReader,
    behind_a_sink,
    epoch_lines,
    graph,
    in_doubt,
    inspection,
    letter,
    story,
    waiting_key,
    words,
)


def parts(reader: Any, view: str = "now", **asked: Any) -> dict[str, str]:
    return {**layout.fragments(Moment(reader, Asked(view, **asked), NOW_US))}


def test_the_first_sentence_says_why_a_pipeline_is_behind_and_leads_there() -> None:
    shown = parts(GivenReader(behind_a_sink(), drawn=graph()))["part-condition"]
    assert "Source rides is behind, with 3,400 left to read, for 2 min 5 s." in shown
    assert "publish to hourly_table, 81 % of the epoch" in shown
    assert 'href="/sinks"' in shown


def test_a_paused_source_is_named() -> None:
    status = behind_a_sink()
    paused = replace(status, sources=(replace(status.sources[0], is_paused=True),))
    assert "Source rides is paused, with 3,400 left to read" in parts(GivenReader(paused))["part-condition"]


def test_a_key_that_waits_for_long_is_named_with_the_input_it_waits_on() -> None:
    status = behind_a_sink()
    waits = replace(status.operators[0], waits=(waiting_key(status),))
    reader = GivenReader(replace(status, operators=(waits,)))
    shown = parts(reader)["part-condition"]
    assert "In sums, origin=JFK waits on weather since" in shown
    assert 'href="/state"' in shown
    listed = parts(reader, "state")["part-waits"]
    assert "origin=JFK" in listed
    assert "5 min 0 s ago" in listed


def test_rejected_rows_are_named_with_their_most_frequent_reason() -> None:
    status = behind_a_sink()
    source = replace(status.sources[0], rejects=7, reasons={"rejects": {"it is not UTF-8": 2, "no JSON": 5}}, lag_s=0.0)
    assert "has rejected 7 rows: no JSON" in parts(GivenReader(replace(status, sources=(source,))))["part-condition"]


def test_what_is_well_is_said_to_be_well() -> None:
    assert sentence(Status("trips", state="running", doing="waiting for files"), None, []) == (
        "good",
        "All is well: waiting for files; 0 rows/s.",
    )


def test_a_sink_that_is_stale_and_an_expectation_that_is_broken_are_said_as_probes_hear_them() -> None:
    status = behind_a_sink()
    sink = replace(status.sinks[0], stale_s=400.0, freshness_s=300.0)
    broken = ExpectationStatus("valid", "speed > 0", "warn", 0.01, 900, 40, 900, 40, 50, 3, is_broken=True)
    reader = GivenReader(replace(status, sinks=(sink,), expectations=(broken,)))
    shown = parts(reader)["part-condition"]
    assert "lacks a row that is 400 s old, and 5 min are allowed." in shown
    assert "3 of the last 50 rows do not meet it" in shown
    assert "6 min 40 s of 5 min 0 s" in parts(reader, "sinks")["part-publish"]
    assert "3 of 50" in parts(reader, "state")["part-expectations"]


def test_what_is_bad_comes_before_what_is_not() -> None:
    status = replace(behind_a_sink(), waits_for="hourly_table: connection refused")
    shown = parts(GivenReader(status))["part-condition"]
    assert shown.index("A system does not answer") < shown.index("Source rides is behind")
    assert 'class="condition bad"' in shown


def test_the_graph_has_rates_lag_and_waiting_rows_on_its_edges_and_busy_nodes_in_colour() -> None:
    drawn = parts(GivenReader(behind_a_sink(), drawn=graph()))["part-graph"]
    assert "1,200/s, lag 3,400, 12 wait" in drawn
    assert "box sink busy4" in drawn
    assert "box source busy0" in drawn
    assert "style=" not in drawn  # the page allows none


def test_a_run_that_is_gone_shows_what_is_left_of_it_and_what_to_do() -> None:
    needs = ["! decided, and not known to be published everywhere: epoch 42.", "  Do: start the pipeline again"]
    shown = parts(GivenReader(None, said=in_doubt(), needs=needs, tail=["ERROR the last line password=hunter2"]))
    assert "No run is alive. Decided, and not known to be published everywhere: epoch 42." in shown["part-condition"]
    assert "4242 on host, gone" in shown["part-left"]
    assert "Do: start the pipeline again" in shown["part-findings"]
    assert "password=***" in shown["part-log"]


def in_shards(needs: list[str]) -> GivenReader:
    shards = tuple(ShardReport(shard, 3, generation=shard % 3, state="running", at_us=NOW_US) for shard in range(3))
    return GivenReader(None, said=inspection(shards=shards), needs=needs)


def test_what_is_in_doubt_in_any_shard_is_said_of_the_whole_and_leads_there() -> None:
    needs = ["! decided, and not known to be published everywhere: epoch 42.", "  Do: start the pipeline again"]
    shown = parts(in_shards(needs))
    assert "No run is alive. Shard 1: decided, and not known" in shown["part-condition"]
    assert "And 1 more." in shown["part-condition"]
    assert 'href="/sinks?shard=2"' in shown["part-condition"]
    assert shown["part-findings"].count("Do: start the pipeline again") == 2
    assert 'href="/?shard=1"' in shown["part-shards"]
    assert 'href="/?shard=0"' not in shown["part-shards"], "it has never run"
    assert "last done epoch" not in shown["part-left"]


def test_a_shard_that_waits_to_be_started_again_is_not_taken_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_layout(LocalStore(str(tmp_path)), ShardLayout(Assignment(2, {"a": 0, "b": 1})))
    live = replace(
        behind_a_sink(), shards=(ShardStatus(0, "running"), ShardStatus(1, "waiting", error="no disk\n  Why"))
    )

    class Attached:
        def status(self, shard: int | None) -> Any:
            return (
                live if shard != 0 else replace(live, shards=())
            ).as_json()  # as a run answers for one that is not there

    monkeypatch.setattr("holdfast.page.reading.attach", lambda checkpoint: Attached())
    reader = CheckpointReader(str(tmp_path), words(), Settings())
    assert reader.status(None) == live
    assert reader.status(0) is not None
    assert reader.status(1) is None
    assert reader.epochs(1) == ()
    shown = parts(reader, shard=1)
    assert "Shard 1 does not run, while others may: it is waiting: no disk" in shown["part-condition"]
    assert "part-numbers" not in shown


@pytest.mark.parametrize("view", ["sources", "sinks", "epochs", "state", "starts"])
def test_what_each_shard_has_of_its_own_is_in_its_own_view(view: str) -> None:
    shown = parts(in_shards([]), view)
    assert f'href="/{view}?shard=1"' in shown["part-of-shards"]
    assert "part-ledger" not in shown
    assert "part-of-shards" not in parts(in_shards([]), view, shard=1)


def test_sinks_say_what_they_hold_and_what_is_in_doubt() -> None:
    shown = parts(GivenReader(behind_a_sink(), said=in_doubt()), "sinks")["part-sink-hourly_table"]
    assert "<dt>holds everything up to epoch</dt><dd>41</dd>" in shown
    assert "ledger commit, sink staged" in shown
    assert 'href="/epochs/42"' in shown


def test_the_story_of_an_epoch_in_doubt_is_told_with_the_files_that_it_read() -> None:
    shown = parts(GivenReader(None, said=in_doubt(), told=story(), lines=epoch_lines(42)), "epochs", item="42")
    assert "the answer was lost: timeout" in shown["part-story"]
    assert "in doubt" in shown["part-story"]
    assert "/data/in/2026-09-01.json" in shown["part-read-rides"]
    assert '<td class="number">900</td><td class="number">950</td>' in shown["part-read-rides"]
    assert "ledger commit, sink staged" in shown["part-sinks"]


def test_epochs_are_paged_the_newest_first() -> None:
    reader = GivenReader(behind_a_sink(), lines=epoch_lines(250))
    first, last = parts(reader, "epochs")["part-list"], parts(reader, "epochs", page=3)["part-list"]
    assert first.count("<tr>") == 101
    assert '<a href="/epochs/250">' in first
    assert '<a href="/epochs/151">' in first
    assert '<a href="/epochs/150">' not in first
    assert last.count("<tr>") == 51
    assert '<a href="/epochs/1">' in last
    assert 'href="/epochs?page=3"' in first


def test_each_start_is_shown_with_the_row_that_decided_it() -> None:
    start = StartLine(3, NOW_US, "J", "continues", "from the directory", "where they were", "what they lack", "a kill")
    shown = parts(GivenReader(noted=[start]), "starts")["part-starts"]
    assert "<td>J</td>" in shown
    assert "The pipeline continues." in shown
    assert "a kill" in shown


def test_a_rewind_is_shown_in_the_words_of_its_dry_run() -> None:
    named = {"name": "monday", "epoch": 30, "at_us": NOW_US, "rows": 5, "size_bytes": 900, "problem": ""}
    reader = GivenReader(names=[named])
    assert 'href="/starts/monday"' in parts(reader, "starts")["part-named"]
    assert (
        "5 rows of 2 epochs after epoch monday: would be withdrawn"
        in parts(reader, "starts", item="monday")["part-rewind"]
    )


def test_dead_letters_are_replayed_by_who_may_and_shown_to_all() -> None:
    reader = GivenReader(dead=[letter()])
    shown = parts(reader, "letters")
    assert "1 times BadRow: the value &#x27;x&#x27; is no number." in shown["part-sum"]
    assert "<form" not in shown["part-sum"] + shown["part-letters"]
    assert shown["part-letters"].count("<td") == 7
    told = parts(reader, "letters", form_token="t")
    assert "Replay all 1" in told["part-sum"]
    assert 'value="rides/log/901/0"' in told["part-letters"]


def test_dead_letters_of_shards_say_whose_they_are_and_are_replayed_there() -> None:
    reader = GivenReader(dead=[{**letter(), "shard": 0}, {**letter("rides/log/7/0"), "shard": 1}])
    told = parts(reader, "letters", form_token="t")
    assert "Replay all 2" in told["part-sum"]
    assert 'name="shard"' not in told["part-sum"]
    assert '<input type="hidden" name="shard" value="1">' in told["part-letters"]
    of_one = parts(reader, "letters", form_token="t", shard=1)
    assert "Replay all 1" in of_one["part-sum"]
    assert 'name="shard" value="1"' in of_one["part-sum"]
    assert "rides/log/901/0" not in of_one["part-letters"]


def test_segments_are_paged_the_one_that_is_most_behind_first() -> None:
    status = behind_a_sink()
    at = {f"s{n}": 10 for n in range(150)}
    newest = {f"s{n}": 10 + n for n in range(150)}
    reader = GivenReader(replace(status, sources=(replace(status.sources[0], positions=at, newest=newest),)))
    first = parts(reader, "sources", item="rides")["part-segments"]
    assert first.index("s149") < first.index("s148")
    assert "page 1 of 2" in first


def test_settings_say_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PAGE_TOKEN", "hunter2-hunter2-hunter2")
    shown = parts(GivenReader(), "settings")["part-settings"]
    assert "HOLDFAST_METRICS" in shown
    assert "default" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize("view", layout.VIEWS)
def test_every_view_is_there_of_a_run_and_of_a_checkpoint_in_which_nothing_has_run(view: str) -> None:
    for reader in (GivenReader(behind_a_sink(), drawn=graph()), GivenReader(None, said=inspection("", owner=NOBODY))):
        page = layout.page(Moment(cast("CheckpointReader", reader), Asked(view), NOW_US))
        assert page.startswith("<!doctype html>")
        assert page.count("<script ") == 2
        assert "<script>" not in page


NOBODY = type(inspection().owner)()
