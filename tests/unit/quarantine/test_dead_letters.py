"""Dead letters: kept once, honoured by every later start, by no run that was fenced (design/0013, section 4)."""

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.commit.ledger import Ledger
from holdfast.commit.records import Decided, Done
from holdfast.errors import Corrupt, Fenced, InternalError, InvalidPipeline
from holdfast.ports import EpochRecord, Staged
from holdfast.quarantine.dead_letters import (
    REJECTED,
    DeadLetters,
    Letter,
    Rejection,
    ledger_of,
    masks_of,
    read_letters,
    rejection,
    send_again,
)
from holdfast.quarantine.mask import LETTERS, Address, one_row
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "text": ["a", None, "c"]})
ERROR = {"kind": "BadRow", "what": "it fails.", "why": "because."}


def letter(position=1, ordinal=0, source="in"):
    return Letter(source, Address("log", position, ordinal), one_row(BATCH, ordinal), 5, ERROR, 99)


def rejected(number):
    return Letter("table", Address(REJECTED, 7, number), one_row(BATCH, number), 7, ERROR, 99)


def is_owner():
    """No other run has taken over."""


def names(store):
    return [one.name for one in read_letters(store)]


def test_a_letter_is_kept_once_with_its_row_and_found_by_every_later_start():
    store = SimulatedStore()
    letters = DeadLetters(store, 1, isolates=True)
    letters.add(letter(1, 2), is_owner)
    letters.add(letter(1, 2), is_owner)
    assert names(store) == ["in/log/1/2"]
    later = DeadLetters(store, 2, isolates=True)
    assert later.letters == (letter(1, 2),)
    assert later.letters[0].table.to_pylist() == [{"id": 3, "text": "c"}]
    assert later.masks()["in"].left_out == {Address("log", 1, 2)}
    assert len(store.keys("dead-letters/")) == 1


def test_a_letter_is_shown_whose_row_holds_what_python_cannot_say():
    """Such values are among those that rows fail of."""
    raw = pa.array([b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    seen = pa.array([[{"at": 2**62}]], pa.list_(pa.struct([("at", pa.timestamp("us"))])))
    batch = pa.RecordBatch.from_arrays([pa.array([1]), text, pa.array([3_000_000], pa.date32()), seen], list("abcd"))
    shown = Letter("in", Address("log", 1, 0), one_row(batch, 0), 5, ERROR, 99).described()["row"]
    assert (shown["a"], shown["b"], shown["c"]) == (1, '[ "\N{REPLACEMENT CHARACTER}" ]', "[ 10183-09-21 ]")
    assert "out of range: 4611686018427387904" in shown["d"]


def test_the_ledger_has_the_last_word_on_what_a_sink_has_refused_and_a_start_notes_it():
    """Killed before row 2 was taken out of the decision too, its table mended: it was published, row 1 was not."""
    store = SimulatedStore()
    ledger = Ledger(store, "p")
    generation = ledger.take_generation(0, 0)
    ledger.fence()
    record = EpochRecord("p", 7, generation, {})
    key = ledger.decide(Decided(record, {"table": (Staged("p/1/7/0/0", 2),)}, {"table": (1,)}))
    letters = DeadLetters(store, generation, isolates=True)
    for number in (1, 2):
        letters.add(rejected(number), is_owner)

    def told():
        found = read_letters(store)
        return [rejection(one, ledger_of(store, found)) for one in found]

    assert told() == [Rejection.MADE, Rejection.OPEN]
    ledger.forget(key, Done(record, {"table": 2}, {"table": (1,)}))
    assert told() == [Rejection.MADE, Rejection.UNDONE]
    DeadLetters(store, generation + 1, isolates=False)
    store.delete(key.path)  # as the ledger does with old epochs
    assert told() == [Rejection.MADE, Rejection.UNDONE]


def test_a_ledger_that_did_not_note_rejections_is_not_taken_at_its_word():
    """Of a version of before."""
    done = Done(EpochRecord("p", 7, 1, {}), {"table": 2}, None)
    assert rejection(rejected(1), {7: done}) is Rejection.MADE


def test_what_a_fenced_run_adds_late_counts_for_nobody():
    store = SimulatedStore()
    old, new = DeadLetters(store, 1, isolates=True), DeadLetters(store, 2, isolates=True)
    old.add(letter(1), is_owner)
    assert names(store) == []
    new.add(letter(2), is_owner)
    assert [one.name for one in DeadLetters(store, 3, isolates=True).letters] == ["in/log/2/0"]


def test_the_letters_that_count_are_those_of_the_highest_generation_however_many_digits_it_has():
    """As text 100000000 stands before 99999999: a row that was left out would come back."""
    store = SimulatedStore()
    old, new = (DeadLetters(store, generation, isolates=True) for generation in (99_999_999, 100_000_000))
    old.add(letter(1), is_owner)  # late, and fenced
    new.add(letter(2), is_owner)
    assert names(store) == ["in/log/2/0"]
    assert [one.name for one in send_again(store, [], {})] == ["in/log/2/0"]
    later = DeadLetters(store, 100_000_001, isolates=True)
    assert later.letters[0].name == "in/log/2/0"
    assert store.keys("dead-letters/") == ["dead-letters/100000001.json"]


def test_a_run_that_does_not_isolate_writes_nothing_until_there_are_letters_and_then_its_copy():
    store = SimulatedStore()
    assert DeadLetters(store, 1, isolates=False).masks() == {}
    assert store.objects == {}
    DeadLetters(store, 2, isolates=True).add(letter(1), is_owner)
    assert DeadLetters(store, 3, isolates=False).letters == (letter(1),)
    assert store.keys("") == ["dead-letters/00000003.json"]


def test_a_run_that_writes_its_first_object_behind_a_takeover_finds_itself_fenced_before_it_adds():
    store = SimulatedStore()
    DeadLetters(store, 2, isolates=False)
    late = DeadLetters(store, 1, isolates=True)

    def fenced():
        raise Fenced("generation 1 is fenced.")

    with pytest.raises(Fenced):
        late.add(letter(1), fenced)
    assert read_letters(store) == ()


def test_letters_are_sent_again_in_the_order_in_which_that_was_asked_for_and_stay_left_out():
    store = SimulatedStore()
    letters = DeadLetters(store, 1, isolates=True)
    for each in (letter(1), letter(2), letter(1, source="other")):
        letters.add(each, is_owner)
    assert [one.name for one in send_again(store, ["in/log/2/0"], {})] == ["in/log/2/0"]
    assert len(send_again(store, [], {})) == 2
    assert send_again(store, [], {}) == []
    found = {one.name: one.again for one in read_letters(store)}
    assert found == {"in/log/1/0": 1, "in/log/2/0": 0, "other/log/1/0": 0}
    masks = masks_of(read_letters(store))
    assert len(masks["in"].left_out) == len(masks["in"].again) == 2


def test_letters_of_a_fork_are_numbered_behind_those_that_the_pipeline_it_comes_from_had_sent():
    store = SimulatedStore()
    DeadLetters(store, 1, isolates=True).add(letter(1), is_owner)
    (sent,) = send_again(store, [], {"in": {"log": 9, "letters": 2}})
    assert sent.again == 2
    assert masks_of([sent])["in"].again == (b"", b"", sent.row)


def test_damaged_letters_stop_the_start():
    store = SimulatedStore()
    store.put("dead-letters/00000001.json", b"[{")
    with pytest.raises(Corrupt, match=r"dead-letters/00000001\.json"):
        DeadLetters(store, 2, isolates=True)


@pytest.mark.slow
def test_no_bit_of_a_letter_changes_unnoticed():
    """A wrong address would leave out a good row, and let the bad one back in."""
    store = SimulatedStore()
    DeadLetters(store, 1, isolates=True).add(letter(1), is_owner)
    (key,) = store.keys("dead-letters/")
    for damaged in flipped(store.get(key)):
        store.put(key, damaged)
        with suppress(Corrupt):
            assert read_letters(store) == (letter(1),)


def test_letters_are_read_and_written_as_older_versions_did():
    """Three of them: left out, to be read again, and one that a sink refused and published after all."""
    text = (
        b'{"#sha256":"af31b2e5a77978c8","letters":[{"address":["log",7,2],"again":null,"at_us":99,"epoch":5,"error":'
        b'{"kind":"BadRow","what":"it fails.","why":"because."},"row":"//4gcm93","source":"in"},{"address":["log",8,0],'
        b'"again":3,"at_us":99,"epoch":5,"error":{"kind":"BadRow","what":"it fails.","why":"because."},"row":"",'
        b'"source":"in"},{"address":["rejected",7,1],"again":null,"at_us":100,"epoch":7,"error":{"kind":"BadRow"},'
        b'"is_published":true,"row":"eA==","source":"table"}]}'
    )
    store = SimulatedStore()
    store.put("dead-letters/00000001.json", text)
    assert read_letters(store) == (
        Letter("in", Address("log", 7, 2), b"\xff\xfe row", 5, ERROR, 99),
        Letter("in", Address("log", 8, 0), b"", 5, ERROR, 99, again=3),
        Letter("table", Address(REJECTED, 7, 1), b"x", 7, {"kind": "BadRow"}, 100, is_published=True),
    )
    DeadLetters(store, 2, isolates=True)
    assert store.get("dead-letters/00000002.json") == text


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"row":"', b'"row":7,"r":"'), (b'"epoch":5', b'"epoch":null'), (b"7,2]", b"7]"), (b'"at_us":99,', b"")],
)
def test_letters_without_a_checksum_that_are_none_are_corrupt(before, after):
    """As versions wrote them that knew no checksum."""
    store = SimulatedStore()
    DeadLetters(store, 1, isolates=True).add(letter(7, 2), is_owner)
    (key,) = store.keys("dead-letters/")
    store.put(key, store.get(key).replace(b"#sha256", b"nothing").replace(before, after))
    with pytest.raises(Corrupt, match=r"dead-letters/00000001\.json"):
        read_letters(store)


def test_no_letter_is_lost_or_kept_twice():
    letters = DeadLetters(SimulatedStore(), 1, isolates=True)
    letters.add(letter(1), is_owner)
    for wrong in ([], [letter(2)], [letter(1), letter(1)]):
        with pytest.raises(InternalError, match="dead letters are to become"):
            letters._put(wrong)
    assert letters.letters == (letter(1),)


def test_no_two_letters_are_read_again_at_one_position():
    with pytest.raises(InternalError, match="to be read again at one position"):
        masks_of([replace(letter(1), again=0), replace(letter(2), again=0)])


def test_one_row_does_not_carry_its_batch_along():
    assert len(one_row(pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 1000}), 500)) < 5000


def given(schema):
    return [hf.read.rows([], schema=schema, name="in").node]


def sent_again(*letters):
    store = SimulatedStore()
    first = DeadLetters(store, 1, isolates=True)
    for one in letters:
        first.add(one, is_owner)
    send_again(store, (), {})
    return store


def rows_again(letters):
    return [pa.ipc.open_stream(row).read_all().to_pylist()[0] for row in letters.masks()["in"].again]


def test_what_is_sent_again_comes_with_the_columns_that_its_source_has_now():
    store = sent_again(letter(1, 0), letter(1, 2))
    letters = DeadLetters(store, 2, isolates=False)
    letters.fit(given("more DOUBLE, text STRING, id INT"), {})
    assert rows_again(letters) == [{"more": None, "text": text, "id": number} for number, text in [(1, "a"), (3, "c")]]
    assert [one.table.column_names for one in read_letters(store)] == [["id", "text"]] * 2, "kept as they were"


def test_a_letter_that_no_longer_fits_is_refused_before_it_is_read_and_named():
    store = sent_again(letter(1, 0), letter(1, 1))
    now = given("id BIGINT, text STRING NOT NULL")
    with pytest.raises(InvalidPipeline, match="in/log/1/1") as refused:
        DeadLetters(store, 2, isolates=False).fit(now, {})
    assert "column 'text' is NOT NULL now" in refused.value.why
    assert "id int64, text string" in refused.value.why
    assert "declare that column as it was" in refused.value.do
    letters = DeadLetters(store, 3, isolates=False)
    letters.fit(now, {"in": {"log": 9, LETTERS: 2}})  # both were replayed
    assert len(rows_again(letters)) == 2
    letters.fit(given("id BIGINT, text STRING"), {})


def test_a_letter_that_failed_again_need_not_fit():
    store = sent_again(letter(1, 1))
    again = DeadLetters(store, 2, isolates=True)
    again.add(Letter("in", Address(LETTERS, 0, 0), one_row(BATCH, 1), 7, ERROR, 99), is_owner)
    again.fit(given("id BIGINT, text STRING NOT NULL"), {})
    again.fit([], {})
