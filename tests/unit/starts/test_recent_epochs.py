"""Whether state after the loss of Spark's directory is what it was, or the start is refused (design/0018)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import progress
from holdfast.checkpoint.directory_header import DirectoryHeader, note_beginning
from holdfast.checkpoint.graph_record import state_fingerprint
from holdfast.checkpoint.manifest import EpochEnd, StateSchema
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.errors import Diverged
from holdfast.plan.lookup_versions import VersionRecord
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.starts.decide import decide, why_not_rebuilt
from holdfast.starts.directory import Directory
from holdfast.starts.facts import StartFacts, look
from holdfast.starts.inputs import StartInputs
from holdfast.starts.table import Spark
from holdfast.store import sealed
from holdfast.store.local import LocalStore
from tests.starts import begun
from tests.unit.checkpoint.snapshots import KEEPS, snapshot

PRICES = pa.table({"id": [1], "price": [5]})
SNAPSHOT, HELD = 3, 9
SEGMENT = "orders@28LoSSUP/0"


def at(position: int) -> Positions:
    return {"given": {"log": position}}


def steps(first: int, last: int) -> list[EpochSpan]:
    return [EpochSpan(at(number - 1), EpochEnd(number, number, at(number), 0)) for number in range(first, last + 1)]


def graph(kind: str) -> hf.Pipeline:
    given = hf.read.rows([[{"id": 1}]] * HELD, schema="id BIGINT", name="given")
    if kind == "timed":
        step: Any = hf.apply(fired, by="id", state="n BIGINT", timers="batch", schema="id BIGINT", name="counted")
    else:
        given = hf.lookup(given, PRICES, on="id", name="priced") if kind == "priced" else given
        step = hf.accumulate(by="id", n=hf.count(), name="counted")
    return hf.Pipeline("counts", given | step | hf.write.memory("table"))


def fired(key: int, rows: list[dict[str, int]], state: Any) -> list[dict[str, int]]:
    return []


def lost(work: Path, kind: str, *, recorded: range, versions: range) -> StartInputs:
    """Return a checkpoint without Spark's directory, with a snapshot and some records."""
    store = LocalStore(str(work))
    store.prepare()
    snapshot(store, SNAPSHOT)
    progress.add(store, steps(recorded[0], recorded[-1]) if recorded else [], 1)
    for epoch in versions:
        record = VersionRecord(1, epoch, "of some bytes")
        store.put(record.key("priced"), sealed.dump({"version": record.version}))
    pipeline = graph(kind)
    schemas: dict[str, StateSchema] = {"counted": KEEPS}
    return StartInputs(store, work, Directory("spark/1", Spark.NONE), pipeline, schemas, state_fingerprint(pipeline))


def accepting(inputs: StartInputs) -> StartInputs:
    return replace(inputs, rebuild_state=True)


def check(facts: StartFacts) -> None:
    """Raise what a start is refused for before it writes."""
    refusal = decide(facts).refusal
    assert refusal is not None
    raise refusal


def held(told: range) -> dict[str, Held]:
    return {"table": Held(HELD, 1, at(HELD), recent_ends=progress.to_text(steps(told[0], told[-1])))}


@pytest.mark.parametrize("kind", ["priced", "timed", "plain"])
def test_what_records_tell_and_what_the_sink_tells_is_all_that_state_depends_on(tmp_path: Path, kind: str) -> None:
    inputs = lost(tmp_path, kind, recorded=range(4, 7), versions=range(2, 3))
    facts = look(inputs, held(range(7, HELD + 1)))
    assert facts.case.letter == "F"
    assert facts.point.snapshot is not None
    assert [each.epoch for each in facts.point.snapshot.replayed] == list(range(4, HELD + 1))


@pytest.mark.parametrize(
    ("kind", "recorded", "versions"),
    [
        pytest.param("priced", range(0), range(2, 3), id="no-records"),
        pytest.param("priced", range(4, 7), range(0), id="no-versions"),
        pytest.param("priced", range(4, 7), range(5, 7), id="the-first-version-is-gone"),
        pytest.param("timed", range(4, 6), range(0), id="a-gap"),
    ],
)
def test_where_what_epochs_decided_is_lost_the_start_is_refused_and_names_the_operator(
    tmp_path: Path, kind: str, recorded: range, versions: range
) -> None:
    """It went on with one version of the table, and one time, for all epochs: exit code 0, and other totals."""
    inputs = lost(tmp_path, kind, recorded=recorded, versions=versions)
    facts = look(inputs, held(range(7, HELD + 1)))
    assert facts.case.letter == "S"
    with pytest.raises(Diverged, match="state cannot be what it was") as refused:
        check(facts)
    assert "The state of counted depends on" in refused.value.why
    assert "--rebuild-state" in refused.value.do
    accepted = look(accepting(inputs), held(range(7, HELD + 1)))
    assert (accepted.case.letter, accepted.point.unsure) == ("F", ("counted",))


def test_an_operator_that_does_not_depend_on_how_epochs_were_cut_goes_on(tmp_path: Path) -> None:
    inputs = lost(tmp_path, "plain", recorded=range(0), versions=range(0))
    facts = look(inputs, held(range(7, HELD + 1)))
    assert facts.case.letter == "F"
    assert facts.point.snapshot is not None
    assert facts.point.snapshot.joined_count == 1


# --- nothing is left of the state -------------------------------------------------------------------------------------


def nothing_left(work: Path, kind: str, *, recorded: range = range(0)) -> StartInputs:
    inputs = lost(work, kind, recorded=recorded, versions=range(0))
    for key in snapshot_keys(inputs.store):
        inputs.store.delete(key.path)
    return inputs


def test_state_of_which_nothing_is_left_is_refused_and_the_refusal_says_whether_it_can_be_rebuilt(
    tmp_path: Path,
) -> None:
    inputs = nothing_left(tmp_path, "plain")
    facts = look(inputs, held(range(HELD, HELD + 1)))
    assert facts.case.letter == "H"
    with pytest.raises(Diverged) as refused:
        check(facts)
    assert "sources, which still give everything: start once with --rebuild-state" in refused.value.do
    rate = hf.read.spark("rate", options={}, schema="id BIGINT", name="given")
    gone = replace(inputs, pipeline=hf.Pipeline("counts", rate | hf.write.memory("table")))
    with pytest.raises(Diverged) as refused:
        check(replace(facts, inputs=gone))
    assert "It cannot be computed again from the sources: source 'given'" in refused.value.why
    assert "--rebuild-state" not in refused.value.do


def test_it_is_rebuilt_in_epochs_as_the_source_cuts_them_and_at_the_times_that_the_sink_tells(tmp_path: Path) -> None:
    """At the present time a timer that fell due after the sink's last epoch would fire muted."""
    inputs = accepting(nothing_left(tmp_path, "timed"))
    ends = [EpochEnd(20, 20, stood(8), 800), EpochEnd(21, 21, stood(HELD), 900)]
    told = progress.to_text([EpochSpan(stood(7), ends[0]), EpochSpan(stood(8), ends[1])])
    sinks = {"table": Held(21, 1, stood(HELD), recent_ends=told), "late": Held(6, 1, stood(5))}
    facts = look(inputs, sinks)
    assert facts.case.letter == "T"
    header = begun(inputs, sinks, 21)
    assert list(header.seek) == [stood(number) for number in range(HELD + 1)]
    assert header.replayed == tuple((number, 900 if number == HELD else 800) for number in range(1, HELD + 1))
    assert (header.seed, header.base) == ("", 22)


def test_epochs_that_are_all_known_are_the_same_again(tmp_path: Path) -> None:
    """As after a death before the first snapshot."""
    inputs = accepting(nothing_left(tmp_path, "plain", recorded=range(1, 7)))
    first = EpochSpan({}, EpochEnd(1, 1, at(1), 0))
    inputs.store.delete(next(iter(inputs.store.keys("progress/"))))
    progress.write(inputs.store, [first, *steps(2, 6)], 1)
    header = begun(inputs, held(range(7, HELD + 1)), HELD)
    assert header.replayed == tuple((number, 0) for number in range(1, HELD + 1))


@pytest.mark.parametrize("gone", ["a source has left", "it began with state"])
def test_state_that_the_sources_cannot_give_is_not_rebuilt(tmp_path: Path, gone: str) -> None:
    inputs = accepting(nothing_left(tmp_path, "plain"))
    sinks = held(range(HELD, HELD + 1))
    if gone == "a source has left":
        sinks = {"table": replace(sinks["table"], positions={**at(HELD), "former": {"log": 3}})}
    else:
        note_beginning(inputs.store, "state=...", DirectoryHeader(1, (at(0),), "snapshots/given"))
    with pytest.raises(Diverged) as refused:
        check(look(inputs, sinks, HELD))
    wanted = {"a source has left": "source 'former'", "it began with state": "the pipeline began with state=..."}
    assert wanted[gone] in refused.value.why
    assert not list((tmp_path / "spark").glob("*")), "nothing is changed"


@pytest.mark.parametrize(
    ("start", "why"), [("latest", "where reading of source 'given' began is not known"), ("earliest", "")]
)
def test_where_nobody_knows_where_a_source_began_nothing_is_rebuilt_from_what_is_left_of_it(
    tmp_path: Path, start: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there now may begin later: state would lack the rows before it."""
    asked: list[dict[str, tuple[int, int]]] = []
    monkeypatch.setattr(
        "holdfast.connectors.kafka.source.cluster.gone", lambda cluster, wanted, **more: asked.append(wanted) or ""
    )
    kafka = hf.read.kafka("nowhere:1", "orders", schema="id BIGINT", start=start, name="given")
    pipeline = hf.Pipeline("counts", kafka | hf.write.memory("table"))
    inputs = replace(nothing_left(tmp_path, "plain"), pipeline=pipeline)
    said = why_not_rebuilt(inputs, {"given": {SEGMENT: 7}})
    assert said.startswith(why) if why else said == ""
    assert asked == ([] if why else [{SEGMENT: (0, 7)}]), "the first messages that there ever were"


def test_a_sink_that_catches_up_without_state_sees_the_versions_of_then_or_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sinks = {"ahead": Held(4, 1, at(4), recent_ends=progress.to_text(steps(3, 4))), "late": Held(2, 1, at(2))}
    inputs = replace(lost(tmp_path, "priced", recorded=range(0), versions=range(1, 2)), state_schemas={})
    header = begun(inputs, sinks, 4)
    assert (header.seek, header.replayed) == ((at(2), at(3), at(4)), ((3, 0), (4, 0)))
    assert "as they are now" not in caplog.text
    shutil.rmtree(tmp_path / "spark")
    begun(inputs, {**sinks, "ahead": replace(sinks["ahead"], recent_ends="")}, 4)
    assert "what sinks lack is looked up in tables as they are now, by priced" in caplog.text


def stood(position: int) -> Positions:
    """Return a position as the source itself says it."""
    return {"given": {"rows": position}}
