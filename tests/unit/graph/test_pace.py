"""What users may say of a sink's pace, and where it shows."""

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.trigger import SinkPace

ROWS = [{"id": 1, "value": 2, "at": 3, "data": b"x"}]
SCHEMA = "id BIGINT, value BIGINT, at BIGINT, data BINARY"


def table(commit_every, **options):
    return hf.write.sqlite("out.db", table="rows", commit_every=commit_every, name="slow", **options)


SINKS = {
    "sqlite": table,
    "postgres": lambda every: hf.write.postgres("host=db dbname=d", table="rows", commit_every=every, name="slow"),
    "files": lambda every: hf.write.files("out", commit_every=every, name="slow"),
    "byte_stream": lambda every: hf.write.byte_stream("out", timestamp="at", commit_every=every, name="slow"),
}


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_sinks_that_are_exactly_once_may_have_a_pace(sink):
    assert sink(None).pace is None
    assert sink("30 s").pace == SinkPace(every_us=30_000_000)
    assert sink(20).pace == SinkPace(every_epochs=20)


def test_of_an_upsert_the_key_is_known():
    assert table("1 min", mode="upsert", key=["id"]).pace == SinkPace(60_000_000, None, ("id",))


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "0 s"])
def test_a_pace_is_positive(wrong):
    with pytest.raises(InvalidPipeline, match=r"write.sqlite: commit_every=.* is no pace") as caught:
        table(wrong)
    assert "commit_every=10" in str(caught.value)


@pytest.mark.parametrize("wrong", ["30", "soon"])
def test_a_pace_is_a_duration_or_a_number_of_epochs(wrong):
    with pytest.raises(InvalidPipeline, match="commit_every"):
        table(wrong)


def test_segments_have_a_pace_of_their_own():
    with pytest.raises(InvalidPipeline, match="commit_every='1 s' has no meaning") as caught:
        hf.write.segments("out", commit_every="1 s")
    assert "max_age" in str(caught.value)


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (SinkPace(every_us=1), "1 us"),
        (SinkPace(every_us=1_500), "1500 us"),
        (SinkPace(every_us=1_500_000), "1500 ms"),
        (SinkPace(every_us=90_000_000), "90 s"),
        (SinkPace(every_us=7_200_000_000), "2 h"),
        (SinkPace(every_epochs=7), "7 epochs"),
    ],
)
def test_a_pace_in_words(pace, text):
    assert str(pace) == text


def flow(commit_every):
    rows = hf.read.rows(ROWS, schema=SCHEMA, name="rows", timestamp="at")
    slow = rows | table(commit_every, mode="upsert", key=["id"])
    return hf.Pipeline("flow", rows | hf.write.files("all", name="fast"), slow)


@pytest.mark.slow
def test_it_is_explained_and_has_no_part_in_the_fingerprint():
    text = flow("30 s").explain()
    assert "commits every 30 s: epochs that only it lacks are decided, and wait in the checkpoint" in text
    assert "the last row of each key" in text
    assert "commits every" not in flow(None).explain()
    assert flow("30 s").fingerprint() == flow(5).fingerprint() == flow(None).fingerprint()


def test_it_stays_when_a_gate_stands_before_the_sink():
    made = hf.Pipeline("flow", *flow("30 s").sinks, commit_at="pts")
    assert [str(sink.pace) for sink in made.sinks] == ["None", "30 s"]
