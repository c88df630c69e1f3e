"""What ``holdfast dead-letters`` says of letters whose source is in the graph no longer."""

import pyarrow as pa

from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader
from holdfast.cli.dead_letters import described, replay
from holdfast.quarantine.dead_letters import DeadLetters, Letter
from holdfast.quarantine.mask import LETTERS, Address, one_row
from holdfast.store.local import LocalStore

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})


def letter(source: str, position: int, again: int | None) -> Letter:
    return Letter(
        source, Address("log", position, 0), one_row(BATCH, 0), 5, {"kind": "", "what": "", "why": ""}, 1, again
    )


def test_letters_of_a_source_that_is_gone_wait_for_it_and_are_counted_on_from_where_it_stood(tmp_path):
    store = LocalStore(str(tmp_path))
    found = [letter("gone", 1, 0), letter("gone", 2, 1), letter("gone", 3, None), letter("here", 1, 0)]
    letters = DeadLetters(store, 1, isolates=True)
    for one in found:
        letters.add(one, lambda: None)
    origin = DirectoryHeader(7, ({"here": {"log": 5, LETTERS: 0}},), retired={"gone": {"log": 9, LETTERS: 1}})
    store.put(f"spark/1/{FILE_NAME}", origin.to_json())
    waits, left = "to be replayed when its source is back", "left out"
    standings = [one["standing"] for one in described(store, tmp_path)]
    assert standings == ["replayed", waits, left, "to be replayed at the next start"]
    assert [(one.name, one.again) for one in replay(store, tmp_path, ())] == [("gone/log/3/0", 2)]
    assert [one["standing"] for one in described(store, tmp_path)][:3] == ["replayed", waits, waits]
