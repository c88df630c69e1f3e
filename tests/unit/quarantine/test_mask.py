"""Rows that are left out, sent again, or tried: by address, whatever the spans are (design/0013, section 4)."""

import json
import pickle

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors import rate
from holdfast.connectors.files.source import division as files_division
from holdfast.connectors.reading.bounds import MarkedSource
from holdfast.connectors.reading.parts import in_parts
from holdfast.connectors.segments import source as segments_source
from holdfast.positions import UNDIVIDED
from holdfast.quarantine.mask import (
    LETTERS,
    Address,
    LetteredSource,
    Mask,
    lettered,
    mask_file,
    one_row,
    read_mask,
    readable,
    segments_of,
    write_masks,
)
from holdfast.spark.quarantine.rows import EpochRows

EPOCHS = [[0, 1, 2], [10, 11], [20], [30, 31, 32, 33]]
SCHEMA = pa.schema([("id", pa.int64())])


def rows_source(workspace):
    rows = [[{"id": number} for number in numbers] for numbers in EPOCHS]
    return hf.read.rows(rows, schema="id BIGINT", name="in").node.spec.open("in", str(workspace)), "rows"


def files_source(workspace, parts=0):
    directory = workspace / "files"
    directory.mkdir()
    for number, ids in enumerate(EPOCHS):
        (directory / f"{number}.json").write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    spec = hf.read.files(directory, schema="id BIGINT", name="in").node.source_spec
    source = (in_parts(spec, parts) if parts else spec).open("in", str(workspace / "log"))
    source.latest(source.initial(), bounded=False)
    return source, "log"


SOURCES = pytest.mark.parametrize("make", [rows_source, files_source])


def read(source, segment, start=0, end=4, letters=(0, 0), parallelism=2):
    begin, until = {segment: start, LETTERS: letters[0]}, {segment: end, LETTERS: letters[1]}
    spans = pickle.loads(pickle.dumps(source.spans(begin, until, parallelism=parallelism)))
    bare = source.source  # executors know the spans alone
    batches = [batch for span in spans for batch in readable(bare, span).read(span)]
    return [one for batch in batches for one in batch.column("id").to_pylist()]


def all_ids():
    return [one for ids in EPOCHS for one in ids]


@SOURCES
def test_rows_are_left_out_wherever_an_epoch_begins_and_ends(tmp_path, make):
    source, segment = make(tmp_path)
    out = {Address(segment, 0, 1), Address(segment, 2, 0), Address(segment, 3, 0), Address(segment, 3, 3)}
    masked = LetteredSource(source, Mask(frozenset(out)))
    for cut in range(5):
        assert read(masked, segment, 0, cut) + read(masked, segment, cut, 4) == [0, 2, 10, 11, 31, 32]
    assert read(masked, segment, parallelism=1) == [0, 2, 10, 11, 31, 32]
    assert read(LetteredSource(source), segment) == all_ids()
    assert lettered(source, Mask()) is source


@pytest.mark.slow
@SOURCES
def test_a_trial_reads_the_rows_between_two_addresses(tmp_path, make):
    source, segment = make(tmp_path)
    addresses = [Address(segment, at, ordinal) for at, ids in enumerate(EPOCHS) for ordinal in range(len(ids))]
    addresses.append(Address(segment, 4, 0))
    for low in range(len(addresses)):
        for high in range(low, len(addresses)):
            mask = Mask(frozenset({addresses[4]}), first=addresses[low], last=addresses[high])
            expected = [one for number, one in enumerate(all_ids()) if low <= number < high and number != 4]
            assert read(LetteredSource(source, mask), segment) == expected


@pytest.mark.slow
def test_a_trial_reads_the_rows_between_two_addresses_of_several_segments(tmp_path):
    """A shard reads several segments: each row of each has an address, in one order."""
    source, _ = files_source(tmp_path, parts=3)
    end = source.latest(source.initial(), bounded=False)
    assert len(segments_of(end)) > 1
    rows = EpochRows({"in": LetteredSource(source)}, {}, {"in": end}, {})
    addresses = [rows.at(number)[1] for number in range(rows.count)]
    ids = [pa.ipc.open_stream(rows.row(number)).read_all()["id"][0].as_py() for number in range(rows.count)]
    assert sorted(ids) == all_ids()
    out = 4
    for low in range(rows.count + 1):
        for high in range(low, rows.count + 1):
            first, last = rows.window("in", low, high)
            masked = LetteredSource(source, Mask(frozenset({addresses[out]}), first=first, last=last))
            spans = masked.spans({}, end, parallelism=2)
            found = [one for span in spans for batch in masked.read(span) for one in batch["id"].to_pylist()]
            assert sorted(found) == sorted(
                one for number, one in enumerate(ids) if low <= number < high and number != out
            )


def test_segments_of_a_source_that_is_divided_later_begin_where_the_whole_was_read():
    assert UNDIVIDED == (files_division.SEGMENT, segments_source.SEGMENT, rate.SEGMENT)


def test_rows_come_again_once_each_behind_the_others_and_positions_say_so(tmp_path):
    source, segment = rows_source(tmp_path)
    again = tuple(one_row(pa.RecordBatch.from_pydict({"id": [7, one]}, SCHEMA), 1) for one in (100, 101, 102))
    masked = LetteredSource(source, Mask(frozenset({Address(LETTERS, 1, 0)}), again))
    assert masked.latest({segment: 0}, bounded=False) == {segment: 1, LETTERS: 3}
    assert masked.latest({segment: 4, LETTERS: 3}, bounded=True) == {segment: 4, LETTERS: 3}
    assert LetteredSource(source).latest({segment: 0}, bounded=False) == {segment: 1}
    assert read(masked, segment, 3, 4, letters=(0, 3)) == [30, 31, 32, 33, 100, 102]
    assert read(masked, segment, 4, 4, letters=(1, 3)) == [102]
    window = Mask(again=again, first=Address(segment, 3, 2), last=Address(LETTERS, 2, 0))
    assert read(LetteredSource(source, window), segment, letters=(0, 3)) == [32, 33, 100, 101]
    window = Mask(again=again, first=Address(LETTERS, 1, 0), last=Address(LETTERS, 3, 0))
    assert read(LetteredSource(source, window), segment, letters=(0, 3)) == [101, 102]


def test_bound_rows_are_rows_with_an_address(tmp_path):
    rows = [[{"id": 0, "b": True}, {"id": 1, "b": False}, {"id": 2, "b": False}]]
    stream = hf.read.rows(rows, schema="id BIGINT, b BOOLEAN", timestamp="id", bounds="b", name="in")
    masked = lettered(stream.node.spec.open("in", str(tmp_path)), Mask(frozenset({Address("rows", 0, 1)})))
    assert isinstance(masked, MarkedSource)
    spans = masked.spans({"rows": 0}, {"rows": 1}, parallelism=1)
    assert [batch.column("id").to_pylist() for span in spans for batch in masked.read(span)] == [[2]]
    assert [batch.column("id").to_pylist() for span in spans for batch in masked.read_marked(span)] == [[0, 2]]


def test_masks_reach_planning_processes_through_a_file(tmp_path):
    path = mask_file(str(tmp_path / "stop"))
    assert read_mask(path, "in") == Mask()
    mask = Mask(frozenset({Address("log", 1, 2)}), (b"\x00\xff",), None, Address("log", 3, 0))
    write_masks(path, {"in": mask})
    assert (read_mask(path, "in"), read_mask(path, "other")) == (mask, Mask())
