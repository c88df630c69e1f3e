"""What ``holdfast dead-letters`` says of letters whose source is in the graph no longer, and of those of shards."""

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader
from holdfast.cli.app import app
from holdfast.cli.dead_letters import described, replay
from holdfast.quarantine.dead_letters import DeadLetters, Letter
from holdfast.quarantine.mask import LETTERS, Address, one_row
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.shards.naming import shard_checkpoint
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


@pytest.fixture
def in_shards(tmp_path):
    """Return a checkpoint of two shards, and of a third that was given up; each has letters."""
    record_layout(LocalStore(str(tmp_path)), ShardLayout(Assignment(2, {"a": 0, "b": 1}, {3: {"c": 2}})))
    for shard, numbers in {0: (1, 7), 1: (2, 7), 2: (3,)}.items():
        letters = DeadLetters(LocalStore(shard_checkpoint(str(tmp_path), shard)), 1, isolates=True)
        for number in numbers:
            letters.add(letter("rides", number, None), lambda: None)
    return tmp_path


def tell(checkpoint, *arguments):
    return CliRunner().invoke(app, ["dead-letters", *arguments, "--checkpoint", str(checkpoint)])


def standings(checkpoint):
    said = json.loads(tell(checkpoint, "list", "--json").stdout)["dead_letters"]
    return {(each["shard"], each["address"]["position"]): each["standing"] for each in said}


def test_letters_of_all_shards_are_listed_and_sent_where_they_are(in_shards):
    left, again, former = "left out", "to be replayed at the next start", "of a shard that was given up"
    assert standings(in_shards) == {(0, 1): left, (0, 7): left, (1, 2): left, (1, 7): left, (2, 3): former}
    listed = tell(in_shards, "list").stdout
    assert "rides/log/2/0  shard 1, epoch 5," in listed
    assert "5 dead letters, 4 of them not sent again." in listed
    assert "rides/log/1/0" not in tell(in_shards, "list", "--shard", "1").stdout
    assert tell(in_shards, "replay", "rides/log/2/0").stdout.startswith("rides/log/2/0\n1 dead letters")
    assert standings(in_shards) == {(0, 1): left, (0, 7): left, (1, 2): again, (1, 7): left, (2, 3): former}
    assert tell(in_shards, "replay", "rides/log/7/0", "--shard", "1").exit_code == 0
    assert standings(in_shards) == {(0, 1): left, (0, 7): left, (1, 2): again, (1, 7): again, (2, 3): former}
    assert tell(in_shards, "replay").stdout.endswith("2 dead letters are replayed by the next start.\n")
    assert standings(in_shards) == {(0, 1): again, (0, 7): again, (1, 2): again, (1, 7): again, (2, 3): former}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rides/log/7/0"], "shards 0, 1 have one of that name each"),
        (["rides/log/2/0", "--shard", "0"], "there is no dead letter 'rides/log/2/0'"),
        (["rides/log/2/0", "rides/log/3/0"], "it is of shard 2, and the pipeline has fewer by now"),
        (["--shard", "3"], "there is no shard 3 in this checkpoint"),
    ],
)
def test_of_letters_in_shards_that_are_not_known_none_is_sent(in_shards, arguments, said):
    before = standings(in_shards)
    answer = tell(in_shards, "replay", *arguments)
    assert (answer.exit_code, said in answer.stderr) == (2, True), answer.stderr
    assert standings(in_shards) == before


def test_a_checkpoint_without_shards_has_none_to_name(tmp_path):
    DeadLetters(LocalStore(str(tmp_path)), 1, isolates=True).add(letter("rides", 1, None), lambda: None)
    assert "there is no shard 0" in tell(tmp_path, "list", "--shard", "0").stderr
