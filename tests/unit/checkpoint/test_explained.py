"""What positions mean travels into sinks and back: nothing is left out, whoever lacks what, and whenever it dies."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.explained import Explanations, lost_pasts, restore, told_by, workspace
from holdfast.connectors.files.source.log import FileLog, whole
from holdfast.errors import Diverged
from holdfast.graph.nodes import Node
from holdfast.ports import EpochRecord, Explanation, Held, Publication, RunIdentity, Sink
from holdfast.store import sealed
from holdfast.testing.sink import SimulatedSink

PIPELINE = "trips"


@pytest.fixture
def source(tmp_path: Path) -> Node:
    (tmp_path / "in").mkdir()
    return hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", name="rows").node


def filled(source: Node, checkpoint: Path, count: int) -> list[Explanation]:
    """Log some files; return what explains their positions."""
    directory = workspace(checkpoint, source.name)
    log = FileLog.of_source(directory, source.name, {"root": "r", "format": "json"})
    for number in range(count):
        assert log.append([whole(f"{number}ü.json", 7)])
        log.merge()
    return list(source.spec.explanations(source.name, directory, 0))


def sink_with(name: str, explanations: list[Explanation]) -> Sink:
    sink = SimulatedSink(name)
    held = sink.open(RunIdentity(PIPELINE, 1))
    record = EpochRecord(PIPELINE, 1, 1, {"rows": {"log": 1}})
    sink.publish([Publication(replace(record, explanations=tuple(explanations)), ())], held)
    return sink


def held_of(sinks: dict[str, Sink], generation: int = 2) -> dict[str, Held]:
    return {name: sink.open(RunIdentity(PIPELINE, generation)) for name, sink in sinks.items()}


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 230])
def test_a_log_that_is_restored_is_the_one_that_was_lost(tmp_path: Path, source: Node, count: int) -> None:
    told = filled(source, tmp_path / "lost", count)
    assert [each.number for each in told] == list(range(1, count + 2))
    sinks = {"table": sink_with("table", told)}
    restore([source], tmp_path / "new", sinks, held_of(sinks), has_begun=False)
    assert (
        FileLog(str(tmp_path / "new/sources/rows/log")).blocks
        == FileLog(str(tmp_path / "lost/sources/rows/log")).blocks
    )
    assert source.spec.explanations(source.name, workspace(tmp_path / "new", "rows"), 0) == told


def test_what_is_new_above_a_number_is_all_that_is_new(tmp_path: Path, source: Node) -> None:
    told = filled(source, tmp_path, 120)
    for after in (0, 1, 2, 57, 100, 101, 120, 121):
        assert source.spec.explanations("rows", workspace(tmp_path, "rows"), after) == told[after:]


def test_a_death_within_restoring_is_made_good_by_the_next_start(
    tmp_path: Path, source: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = filled(source, tmp_path / "lost", 4)
    sinks = {"table": sink_with("table", told)}
    put, puts = sealed.put_if_absent, []

    def dies(path: str, payload: bytes, **more: bool) -> bool:
        puts.append(path)
        if len(puts) == deadly:
            raise KeyboardInterrupt
        return put(path, payload, **more)

    deadly = 0
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "put_if_absent", dies)
        for deadly in range(1, 6):
            puts.clear()
            with pytest.raises(KeyboardInterrupt):
                restore([source], tmp_path / f"new{deadly}", sinks, held_of(sinks, 1 + deadly), has_begun=False)
    for number in range(1, 6):
        for generation in (20, 40):  # the second time there is nothing to do
            held = held_of(sinks, 2 * number + generation // 20 + 20)
            restore([source], tmp_path / f"new{number}", sinks, held, has_begun=False)
            assert source.spec.explanations("rows", workspace(tmp_path / f"new{number}", "rows"), 0) == told


def test_a_checkpoint_that_has_more_than_the_sinks_is_left_alone(tmp_path: Path, source: Node) -> None:
    told = filled(source, tmp_path, 3)
    assert lost_pasts([source], tmp_path, [Held(1, explained={"rows": 2})], has_begun=False) == []
    assert lost_pasts([source], tmp_path, [Held(1, explained={"rows": 9})], has_begun=True) == [], "an older copy"
    assert lost_pasts([source], tmp_path, [Held(1, explained={"rows": 9})], has_begun=False) == [source]
    assert lost_pasts([source], tmp_path / "new", [Held(1, explained=None)], has_begun=False) == []
    assert len(told) == 4


def test_a_start_with_a_whole_past_reads_no_more_than_its_end(
    tmp_path: Path, source: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, opened, read = filled(source, tmp_path, 40), list[str](), sealed.read_sealed

    def counted(path: str) -> bytes | None:
        opened.append(path)
        return read(path)

    monkeypatch.setattr(sealed, "read_sealed", counted)
    assert lost_pasts([source], tmp_path, [Held(1, explained={"rows": len(told)})], has_begun=True) == []
    assert [os.path.basename(path) for path in opened] == [f"{40:012}.json"]


def test_sinks_that_disagree_are_named_with_what_each_says(tmp_path: Path) -> None:
    one = [Explanation("rows", 1, "{}"), Explanation("rows", 2, json.dumps({"name": "a"}))]
    other = [one[0], Explanation("rows", 2, json.dumps({"name": "b"}))]
    with pytest.raises(Diverged, match="'first' and sink 'second' disagree on explanation 2 of source 'rows'") as said:
        told_by({"first": sink_with("first", one), "second": sink_with("second", other)})
    assert '{"name": "a"}' in said.value.why
    assert '{"name": "b"}' in said.value.why


def test_the_sink_that_has_most_is_believed_where_they_agree(tmp_path: Path) -> None:
    long = [Explanation("rows", number, str(number)) for number in range(1, 9)]
    told = told_by({"behind": sink_with("behind", long[:3]), "ahead": sink_with("ahead", long)})
    assert told == {"rows": long}


def test_an_epoch_for_some_sinks_only_leaves_no_gap_in_the_others() -> None:
    """A replay brings one sink up: what it needs the others may have; what they lack comes with their next epoch."""
    durable = [Explanation("rows", number, str(number)) for number in range(1, 4)]
    explanations = Explanations({"rows": lambda after: durable[after:]}, {"ahead": {"rows": 2}, "behind": {}})
    assert explanations.take(["behind"]) == tuple(durable)
    durable.append(Explanation("rows", 4, "4"))
    assert explanations.take(["ahead", "behind"]) == tuple(durable[2:])
    assert explanations.take(["ahead", "behind"]) == ()
    assert explanations.take(["console"]) == (), "keeps none"


def test_a_sink_that_keeps_none_does_not_make_the_others_get_all_again() -> None:
    durable = [Explanation("rows", 1, "1")]
    explanations = Explanations({"rows": lambda after: durable[after:]}, {"table": {"rows": 1}})
    assert explanations.take(["table", "console"]) == ()


def test_a_log_without_merged_objects_is_read_from_where_it_is_new(tmp_path: Path, source: Node) -> None:
    filled(source, tmp_path, 3)
    directory = tmp_path / "sources/rows/log"
    os.unlink(directory / "000000000001.json")  # not needed for what is new
    (new,) = source.spec.explanations("rows", workspace(tmp_path, "rows"), 3)
    assert new.number == 4
