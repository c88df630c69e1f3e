"""Sinks that lie behind Spark's log are found by positions, and by nothing that is planned only."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import FILE_NAME, LEFT, DirectoryHeader, read_origin
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.source_history import note_positions
from holdfast.errors import Diverged, Fenced
from holdfast.graph.nodes import Node
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.starts.act import DirectoryIsLeft
from holdfast.starts.behind import behind, ranges_text, unreadable
from holdfast.starts.directory import Directory, find_directory
from holdfast.starts.facts import look
from holdfast.starts.restore import epochs_between, left_at
from holdfast.starts.table import Spark, StartWay
from holdfast.store.local import LocalStore
from tests.starts import begun, inputs_of


def at(number: int, **more: int) -> Positions:
    return {"given": {"log": number, **more}}


def log_spark(checkpoint: Path, origin: DirectoryHeader, ends: list[Positions], *, planned_only: int = 0) -> Path:
    """Write a directory of Spark's with the entries of epochs, of which the last ones are not finished."""
    spark = checkpoint / "spark/1"
    LocalStore(str(checkpoint)).put(f"spark/1/{FILE_NAME}", origin.to_json())
    for log in ("offsets", "commits"):
        (spark / log).mkdir()
    for number, positions in enumerate(ends):
        lines = ["v2", json.dumps({"batchTimestampMs": number})]
        for name, of in positions.items():
            offset: Any = {"positions": of, "size_bytes": 0, "row_count": 0} if "" not in of else {"at": of[""]}
            lines.append(f"{name}:{json.dumps(offset)}")
        (spark / "offsets" / str(number)).write_text("\n".join(lines))
        if number < len(ends) - planned_only:
            (spark / "commits" / str(number)).write_text("v1\n{}")
    return spark


def found_in(spark: Path, epoch: int, positions: Positions) -> list[tuple[int, int, str]]:
    found = behind(spark, {"table": Held(epoch, 1, positions), "new": Held()})
    return [(each.held.epoch, each.published, ranges_text(each.lost)) for each in found]


def test_a_sink_that_lacks_what_sparks_log_calls_finished_lies_behind(tmp_path: Path) -> None:
    spark = log_spark(tmp_path, DirectoryHeader(1), [at(1), at(2), at(3), at(4)], planned_only=1)
    assert found_in(spark, 1, at(1)) == [(1, 3, "source 'given' from log=1 to log=3")]
    assert found_in(spark, 3, at(3)) == []
    assert found_in(spark, 4, at(4)) == [], "it has published, and Spark's log did not hear of it"
    assert found_in(spark, 9, at(9)) == [], "ahead: whether that is right others ask"
    assert found_in(tmp_path / "spark/2", 1, at(1)) == [], "a directory that has not begun"


def test_an_entry_that_the_disk_lost_proves_nothing(tmp_path: Path) -> None:
    spark = log_spark(tmp_path, DirectoryHeader(1), [at(1), at(2), at(3)])
    (spark / "offsets/2").unlink()
    assert found_in(spark, 3, at(3)) == found_in(spark, 2, at(2)) == []
    assert found_in(spark, 1, at(1)) == [(1, 2, "source 'given' from log=1 to log=2")]


def test_a_directory_that_has_finished_nothing_begins_where_its_record_says(tmp_path: Path) -> None:
    stops = (at(3), at(5), at(9))
    spark = log_spark(tmp_path, DirectoryHeader(20, stops), [])
    assert found_in(spark, 2, at(2)) == [(2, 19, "source 'given' from log=2 to log=3")]
    assert found_in(spark, 3, at(3)) == found_in(spark, 5, at(5)) == found_in(spark, 9, at(9)) == []
    assert found_in(spark, 7, at(7)) == [(7, 19, "source 'given' from log=7 to log=9")], "no epoch will end there"


def test_a_sink_may_not_stand_in_the_middle_of_an_epoch_that_is_planned(tmp_path: Path) -> None:
    spark = log_spark(tmp_path, DirectoryHeader(1), [at(2), at(6)], planned_only=1)
    assert found_in(spark, 1, at(2)) == found_in(spark, 2, at(6)) == []
    assert found_in(spark, 7, at(4)) == [(7, 1, "source 'given' from log=4 to log=6")]


def test_epochs_without_rows_and_sources_that_came_later_count_too(tmp_path: Path) -> None:
    spark = log_spark(
        tmp_path, DirectoryHeader(1), [at(2), {**at(2), "late": {"log": 0}}, {**at(2), "late": {"log": 3}}]
    )
    assert found_in(spark, 1, at(2)) == [(1, 3, "source 'late' from log=0 to log=3")]
    assert ranges_text({"given": {"@ticks": (1, 2)}}) == "epochs without rows"


def test_of_positions_that_only_spark_reads_the_numbers_of_epochs_decide(tmp_path: Path) -> None:
    spark = log_spark(tmp_path, DirectoryHeader(1), [{"stream": {"": n}} for n in (1, 2, 3)])
    opaque = {"stream": {"": '{"at": 1}'}}
    assert found_in(spark, 1, opaque) == [(1, 3, "source 'stream' from where it holds it on")]
    assert found_in(spark, 3, opaque) == found_in(spark, 4, opaque) == []


def test_where_epochs_end_between_two_sinks_is_kept_if_all_of_it_is_known() -> None:
    known = [EpochSpan(at(i), EpochEnd(i + 1, i + 1, at(i + 1), 0)) for i in range(6)]
    assert epochs_between([at(1), at(3)], known) == [known[1].ended, known[2].ended]
    assert epochs_between([at(1), at(3), at(9)], known) is None
    renumbered = [EpochSpan(at(3), EpochEnd(9, 1, at(4), 0))]
    assert epochs_between([at(1), at(4)], [*known, *renumbered]) is None, "steps see numbers that ascend"


# --- leaving a directory ----------------------------------------------------------------------------------------------


def files_of(work: Path, count: int) -> Node:
    """Return a source of so many files, all of which are logged."""
    (work / "in").mkdir(exist_ok=True)
    for number in range(count):
        (work / "in" / f"{number}.json").write_text('{"id": 1}\n')
    node = hf.read.files(work / "in", schema="id BIGINT", name="given").node
    node.spec.open("given", str(work / "sources/given")).latest({"log": 0}, bounded=False)
    return node


def test_a_directory_is_left_and_the_next_one_begins_where_the_sinks_are_with_numbers_that_are_new(
    tmp_path: Path,
) -> None:
    node, store = files_of(tmp_path, 4), LocalStore(str(tmp_path))
    spark = log_spark(tmp_path, DirectoryHeader(1, graph=""), [at(1), at(2), at(3), at(4)], planned_only=1)
    held = {"table": Held(1, 1, at(1)), "files": Held(3, 1, at(3)), "new": Held()}
    beginning = inputs_of(store, tmp_path, "spark/1", "p", [node])
    with pytest.raises(DirectoryIsLeft):
        begun(beginning, held)
    assert left_at(store, "spark/1") == at(3)
    chosen = find_directory(store, tmp_path, "")
    assert chosen == Directory("spark/2", Spark.LEFT, "spark/1")

    origin = begun(inputs_of(store, tmp_path, "spark/2", "p", [node], previous="spark/1", spark=Spark.LEFT), held, 3)
    assert (origin.base, origin.seek) == (5, (at(1), at(2), at(3)))
    assert read_origin(tmp_path / "spark/2" / FILE_NAME) == origin
    assert find_directory(store, tmp_path, "") == Directory("spark/2", Spark.GOOD)
    assert behind(tmp_path / "spark/2", held) == ()
    assert spark.exists()


def test_a_range_of_which_files_are_gone_is_named_and_the_directory_stays(tmp_path: Path) -> None:
    node, store = files_of(tmp_path, 3), LocalStore(str(tmp_path))
    log_spark(tmp_path, DirectoryHeader(1), [at(1), at(2), at(3)])
    (tmp_path / "in/2.json").unlink()
    (tmp_path / "in/0.json").unlink()  # nobody needs it any more
    beginning = inputs_of(store, tmp_path, "spark/1", "p", [node])
    with pytest.raises(Diverged, match="'table' has lost what was published after epoch 1, up to epoch 3") as refused:
        begun(beginning, {"table": Held(1, 1, at(1))})
    assert "source 'given' from log=1 to log=3 cannot be read again: 1 of its 2 files" in refused.value.why
    assert str(tmp_path / "in/2.json") in refused.value.why
    assert store.get(f"spark/1/{LEFT}") is None
    assert look(beginning, {"table": Held(3, 1, at(3))}).case.way is StartWay.ON  # it was brought back


def test_files_that_state_needs_again_are_looked_for_although_the_sink_has_their_rows(tmp_path: Path) -> None:
    """Where state goes back further than the sink: once the directory is left there is no other."""
    node, store = files_of(tmp_path, 4), LocalStore(str(tmp_path))
    other = hf.read.rows([{"id": 1}, {"id": 2}], schema="id BIGINT", name="other").node
    ends: list[Positions] = [{**at(3), "other": {"rows": number}} for number in (1, 2)]
    spark = log_spark(tmp_path, DirectoryHeader(5), ends)
    found = behind(spark, {"table": Held(5, 1, ends[0])})
    assert "given" not in found[0].lost
    (tmp_path / "in/3.json").unlink()  # nobody has read it
    start = {**at(1), "other": {"rows": 0}}
    assert list(unreadable(found, start, [node, other], partial(workspace, tmp_path), store)) == []
    (tmp_path / "in/2.json").unlink()
    (why,) = unreadable(found, start, [node, other], partial(workspace, tmp_path), store)
    assert why.startswith("source 'given' cannot be read again: 1 of its 2 files are gone")


def test_what_a_source_gave_that_has_left_the_graph_cannot_be_replayed(tmp_path: Path) -> None:
    node, store = files_of(tmp_path, 2), LocalStore(str(tmp_path))
    spark = log_spark(tmp_path, DirectoryHeader(5), [at(2)])
    note_positions(store, 5, {"gone": {"log": 7}}, else_known={})
    for positions in ({**at(1), "gone": {"log": 3}}, at(1)):
        found = behind(spark, {"table": Held(4, 1, positions)})
        (why,) = unreadable(found, positions, [node], partial(workspace, tmp_path), store)
        assert "to log=7 cannot be read again: the source has left the graph" in why
    found = behind(spark, {"table": Held(5, 1, at(1))})
    assert list(unreadable(found, at(1), [node], partial(workspace, tmp_path), store)) == []


def test_a_source_that_came_behind_what_the_sink_holds_begins_at_its_beginning_again(tmp_path: Path) -> None:
    node, store = files_of(tmp_path, 3), LocalStore(str(tmp_path))
    late = hf.read.rows([{"id": 1}, {"id": 2}], schema="id BIGINT", name="late").node
    log_spark(tmp_path, DirectoryHeader(5, graph=""), [{**at(3), "late": {"rows": 1}}])
    note_positions(store, 5, {**at(2), "late": {"rows": 1}}, else_known={})
    held = {"table": Held(2, 1, at(1))}
    with pytest.raises(DirectoryIsLeft):
        begun(inputs_of(store, tmp_path, "spark/1", "p", [node, late]), held)
    origin = begun(
        inputs_of(store, tmp_path, "spark/2", "p", [node, late], previous="spark/1", spark=Spark.LEFT), held, 2
    )
    assert origin.start == at(1)
    assert "late" not in origin.retired


def test_where_no_sink_holds_anything_any_more_a_directory_that_was_left_begins_at_the_beginning(
    tmp_path: Path,
) -> None:
    node, store = files_of(tmp_path, 3), LocalStore(str(tmp_path))
    log_spark(tmp_path, DirectoryHeader(5, graph=""), [at(3)])
    with pytest.raises(DirectoryIsLeft):
        begun(inputs_of(store, tmp_path, "spark/1", "p", [node]), {"table": Held(2, 1, at(1))})
    beginning = inputs_of(store, tmp_path, "spark/2", "p", [node], previous="spark/1", spark=Spark.LEFT)
    assert begun(beginning, {"table": Held()}, 2).start == {}


def test_with_a_changed_graph_the_old_one_replays_first(tmp_path: Path) -> None:
    class Change:
        def begin(self, origin: DirectoryHeader, held: object) -> DirectoryHeader:
            raise AssertionError

    node, store = files_of(tmp_path, 3), LocalStore(str(tmp_path))
    log_spark(tmp_path, DirectoryHeader(1), [at(1), at(2), at(3)])
    beginning = inputs_of(store, tmp_path, "spark/2", "p", [node], previous="spark/1", spark=Spark.OTHER)
    with pytest.raises(Diverged, match="'table' has lost what was published") as refused:
        begun(beginning, {"table": Held(1, 1, at(1))}, 0, Change())
    assert "start the old graph with this sink once" in refused.value.do


def test_who_is_fenced_leaves_no_directory_of_the_run_that_took_over(tmp_path: Path) -> None:
    node, store = files_of(tmp_path, 4), LocalStore(str(tmp_path))
    log_spark(tmp_path, DirectoryHeader(1, graph=""), [at(1), at(2), at(3), at(4)], planned_only=1)

    def check_fenced() -> None:
        raise Fenced("another generation has taken over.")

    beginning = inputs_of(store, tmp_path, "spark/1", "p", [node])
    with pytest.raises(Fenced):
        begun(beginning, {"table": Held(1, 1, at(1))}, check_fenced=check_fenced)
    assert store.get(f"spark/1/{LEFT}") is None


def test_without_a_directory_every_range_that_is_gone_is_refused_by_name_before_it_is_read(tmp_path: Path) -> None:
    """The sinks say from where to read again; what lies between them must still be there, of every source."""
    node, store = files_of(tmp_path, 5), LocalStore(str(tmp_path))
    (tmp_path / "feed").mkdir()
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id BIGINT")
    feed.push([{"id": 1}])
    pushed = hf.read.callback(feed, name="pushed").node
    beginning = inputs_of(store, tmp_path, "spark/1", "p", [node, pushed])
    held = {
        "table": Held(1, 1, {**at(1), "pushed": {"log": 0}}),
        "files": Held(4, 1, {**at(4), "pushed": {"log": 1}}),
    }
    gone = [tmp_path / "in" / f"{number}.json" for number in (1, 3)]
    (tmp_path / "in/0.json").unlink()  # both have it
    for path in gone:
        path.rename(path.with_suffix(".aside"))
    further = {**held, "files": Held(4, 1, {**at(4), "pushed": {"log": 3}})}
    with pytest.raises(Diverged, match="sink 'files' holds epoch 4") as refused:
        begun(beginning, further, 4)
    assert f"2 of its 3 files are gone, or are not as they were: position 1, {gone[0]} (" in refused.value.why
    assert f"position 3, {gone[1]} (" in refused.value.why
    assert "source 'pushed' cannot be taken" in refused.value.why, "both sources are named"
    assert "reaches from entry 0 to 1, and does not hold 3" in refused.value.why
    for path in gone:
        path.with_suffix(".aside").rename(path)
    assert begun(beginning, held, 4).seek == (held["table"].positions, held["files"].positions)


def test_a_sink_that_lost_what_grew_since_the_first_epoch_gets_everything_from_the_beginning(tmp_path: Path) -> None:
    """Its answer is epoch 0, and up to where its sealed files have rows: it is not one that holds nothing."""
    node, store = files_of(tmp_path, 4), LocalStore(str(tmp_path))
    Participation("p", store, ["segments"]).note(["segments"], 1)
    note_positions(store, 3, at(3), else_known={})  # of a directory that was lost before
    held = {"segments": Held(0, 1, {}, stops=(at(2), at(4))), "table": Held(4, 1, at(4))}
    beginning = inputs_of(store, tmp_path, "spark/1", "p", [node])
    header = begun(beginning, held, 4)
    assert (header.seek, header.retired, header.base) == (({}, at(2), at(4)), {}, 5)

    lost = Held(0, 1, {}, stops=(at(2),))
    spark = log_spark(tmp_path, DirectoryHeader(1), [at(number) for number in range(1, 5)])
    (found,) = behind(spark, {"segments": lost, "table": Held(4, 1, at(4)), "new": Held()})
    assert (found.sink, found.lost) == ("segments", {"given": {"log": (0, 4)}})
    with pytest.raises(Diverged, match="holds nothing, and has taken part since epoch 1"):
        begun(beginning, {**held, "segments": Held()}, 4)
