"""The bytes of a decision."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.records import Decided, Done, decode, encode
from holdfast.errors import BadRow, Corrupt, InternalError
from holdfast.ports import Carried, EpochRecord, Explanation, Refused, Staged

RECORD = EpochRecord("trips", 42, 7, {"flights": {"log": 9}, "feed": {"": '{"offset": 3}'}}, 1_700_000_000_000_000)
TABLE = pa.table({"id": pa.array([1, 2, None], pa.int32()), "word": ["a", "ö", ""]}).replace_schema_metadata({"k": "v"})
STAGED = Staged("trips/7/42/0/1", 5, {"gid": "holdfast:x", "path": "a/b"})
DECIDED = Decided(
    RECORD, {"table": (STAGED,), "files": (Carried(TABLE), STAGED, Carried(TABLE.slice(1, 1))), "none": ()}
)
DONE = Done(RECORD, {"table": 5, "files": 9})


REJECTED = Decided(RECORD, {"table": (STAGED,)}, {"table": (1, 4)})
EXPLAINED = Decided(replace(RECORD, explanations=(Explanation("lines", 7, '{"a": "\u00e4"}'),)), {"table": (STAGED,)})
BEHIND = Decided(RECORD, {"table": (STAGED,)}, before={"table": 41})
WITHOUT = [Done(RECORD, {"table": 3}, {"table": (1, 4)}), Done(RECORD, {"table": 3}, None)]


@pytest.mark.parametrize(
    "value",
    [DECIDED, DONE, Decided(RECORD, {}), Done(EpochRecord("p", 1, 1, {}), {}), REJECTED, BEHIND, EXPLAINED, *WITHOUT],
)
def test_what_is_written_is_what_is_read(value):
    assert decode(encode(value), "ledger/x") == value


def test_the_schema_of_carried_rows_survives():
    read = decode(encode(DECIDED), "ledger/x")
    assert read.parts["files"][0].rows.schema.equals(TABLE.schema, check_metadata=True)


@pytest.mark.parametrize("value", [DECIDED, DONE], ids=["decided", "done"])
def test_a_record_truncated_anywhere_is_corrupt(value):
    data = encode(value)
    for length in range(len(data)):
        with pytest.raises(Corrupt) as caught:
            decode(data[:length], "ledger/000000000042-00000007")
        assert "ledger/000000000042-00000007" in caught.value.message
        assert "restore" in caught.value.do


@pytest.mark.slow
@given(st.data())
def test_a_record_changed_anywhere_is_corrupt(data):
    whole = bytearray(encode(DECIDED))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode(bytes(whole), "ledger/x")


def test_a_decision_that_says_how_many_rows_were_rejected_and_not_which_is_named():
    """Taken for none, the rows of a second rejection would get the numbers of the first."""
    number: Any = 2
    data = encode(Decided(RECORD, {"table": (STAGED,)}, {"table": number}))
    with pytest.raises(Corrupt, match="not which") as caught:
        decode(data, "ledger/x")
    assert "'ledger/x'" in caught.value.message


def test_something_appended_is_corrupt():
    with pytest.raises(Corrupt):
        decode(encode(DONE) + b"x", "ledger/x")


def test_a_decision_knows_whether_the_driver_holds_rows():
    assert not DECIDED.is_staged
    assert DECIDED.carried_bytes > 0
    assert Decided(RECORD, {"table": (STAGED,)}).is_staged
    assert Decided(RECORD, {"table": ()}).is_staged


def test_a_decision_without_some_rows_still_knows_what_came_before_it():
    assert BEHIND.without("table", (), ()).before == {"table": 41}


def test_a_row_is_rejected_once():
    """Its number is its name among the dead letters."""
    decided = Decided(RECORD, {"table": ()}, rejected={"table": (1,)})
    row = Refused(1, pa.table({"id": [1]}), BadRow("no."))
    with pytest.raises(InternalError, match=r"rejected by sink 'table' twice: numbers \[1, 1\]"):
        decided.without("table", (), [row])
