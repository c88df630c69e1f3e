"""A key is of the unit that claimed it first, whoever reads its rows, and for ever (design/0048, section 7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.shards.key_runs import UNKNOWN
from holdfast.shards.keys import HASHED, KEYS, TABLES_MAX, KeyTable, ShardKey, copy_claims
from holdfast.store.local import LocalStore
from holdfast.types.row_ids import Lanes, lanes_of_columns


def hashed(keys: Sequence[str | None]) -> Lanes:
    return lanes_of_columns(HASHED, [pa.array(keys, pa.string())])


def opened(directory: Path) -> KeyTable:
    """A table as another process has it."""
    return KeyTable(str(directory))


def claim(table: KeyTable, keys: Sequence[str | None], unit: str) -> list[str]:
    return [table.units[code] for code in table.claim(hashed(keys), unit)]


def owners(table: KeyTable, keys: Sequence[str | None]) -> list[str | None]:
    return [None if code == UNKNOWN else table.units[code] for code in table.owners(hashed(keys))]


class World:
    """Several processes that claim, and what plain Python says of it."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.tables = [opened(directory) for _ in range(count)]
        self.said: dict[str, str] = {}

    def claim(self, who: int, keys: Sequence[str], unit: str) -> None:
        for key in keys:
            self.said.setdefault(key, unit)
        assert claim(self.tables[who], keys, unit) == [self.said[key] for key in keys]

    def restart(self, who: int) -> None:
        self.tables[who] = opened(self.directory)
        assert owners(self.tables[who], list(self.said)) == list(self.said.values())


KEY = st.integers(0, 40).map(str)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 2), st.lists(KEY, max_size=12), st.sampled_from("abc")),
        st.tuples(st.just("restart"), st.integers(0, 2)),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_whoever_claims_is_told_what_plain_python_says(acts: list[tuple], tmp_path_factory: pytest.TempPathFactory):
    world = World(tmp_path_factory.mktemp("keys"), 3)
    for name, *arguments in acts:
        getattr(world, name)(*arguments)
    for who in range(3):
        world.restart(who)


@pytest.mark.slow
def test_claims_of_hundreds_of_writes_are_merged_and_stay(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    for number in range(230):
        world.claim(number % 2, [f"k{number}", f"k{number // 2}"], "ab"[number % 2])
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".json")]) < 140
    world.restart(0)
    assert world.tables[0].count == len(world.said) == 230


def test_a_claim_of_known_keys_writes_nothing(tmp_path: Path) -> None:
    table = opened(tmp_path)
    claim(table, ["a", "b"], "left")
    before = sorted(os.listdir(tmp_path))
    assert claim(table, ["b", "a"], "right") == ["left", "left"]
    assert sorted(os.listdir(tmp_path)) == before


def test_two_that_claim_a_key_at_once_agree(tmp_path: Path) -> None:
    tables = [opened(tmp_path) for _ in range(4)]
    barrier = threading.Barrier(len(tables))
    keys = [str(number) for number in range(60)]
    found: list[list[str]] = [[] for _ in tables]

    def run(who: int) -> None:
        barrier.wait()
        for first in range(0, len(keys), 6):
            found[who] += claim(tables[who], keys[first : first + 6], f"u{who}")

    threads = [threading.Thread(target=run, args=(who,)) for who in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * len(tables)
    assert owners(opened(tmp_path), keys) == found[0]


def test_threads_of_one_process_share_writes_and_agree(tmp_path: Path) -> None:
    table = opened(tmp_path)
    barrier = threading.Barrier(8)
    keys = [str(number) for number in range(40)]
    found: list[list[str]] = [[] for _ in range(8)]

    def run(who: int) -> None:
        barrier.wait()
        found[who] = claim(table, [*keys, f"own {who}"], f"u{who}")

    threads = [threading.Thread(target=run, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each[:-1] for each in found] == [found[0][:-1]] * 8
    assert [each[-1] for each in found] == [f"u{who}" for who in range(8)]


@pytest.mark.slow
def test_processes_that_claim_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from holdfast.shards.keys import HASHED, KeyTable\n"
        "from holdfast.types.row_ids import lanes_of_columns\n"
        "table = KeyTable(sys.argv[1])\n"
        "sys.stdin.readline()\n"
        "for key in range(40):\n"
        "    table.claim(lanes_of_columns(HASHED, [pa.array([str(key)])]), sys.argv[2])\n"
        "keys = lanes_of_columns(HASHED, [pa.array([str(key) for key in range(40)])])\n"
        "print(','.join(table.units[code] for code in table.owners(keys)))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), unit], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for unit in "ab"
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers[0] == answers[1]


def test_keys_whose_first_lanes_are_equal_are_different_keys(tmp_path: Path) -> None:
    table = opened(tmp_path)
    first, second = np.full(5, 7, np.uint64), np.arange(5, dtype=np.uint64)
    for at in range(4):
        table.claim((first[at : at + 1], second[at : at + 1]), str(at))
    found = table.owners((first, second))
    assert [table.units[code] for code in found[:4]] == ["0", "1", "2", "3"]
    assert found[4] == UNKNOWN


def test_null_is_a_key_and_widths_of_numbers_make_no_difference(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert claim(table, [None, ""], "left") == ["left", "left"]
    assert claim(table, [None], "right") == ["left"]
    wide = lanes_of_columns(HASHED, [pa.array([1], pa.int64())])
    narrow = lanes_of_columns(HASHED, [pa.array([1], pa.int8())])
    table.claim(wide, "left")
    assert table.units[table.claim(narrow, "right")[0]] == "left"


def test_a_process_has_one_table_for_a_directory_and_another_one_after_it_was_begun_anew(tmp_path: Path) -> None:
    key = ShardKey("device", str(tmp_path / "keys"))
    key.begin()
    table = key.open()
    key.begin()
    assert key.open() is table
    claim(table, ["a"], "left")
    for name in sorted(os.listdir(tmp_path / "keys")):
        if name != "aside":
            (tmp_path / "keys" / name).unlink()
    key.begin()
    assert owners(key.open(), ["a"]) == [None]


def test_a_process_keeps_the_tables_that_it_has_read_last(tmp_path: Path) -> None:
    """A worker opens its sources for each task: it must not read all keys each time."""
    keys = [ShardKey("device", str(tmp_path / str(number))) for number in range(TABLES_MAX + 1)]
    for key in keys:
        key.begin()
    first = id(keys[0].open())
    for key in keys[1:TABLES_MAX]:
        key.open()
    assert id(keys[0].open()) == first
    second = keys[1].open()
    for key in keys[2:]:
        key.open()
        keys[0].open()
    assert id(keys[0].open()) == first
    assert keys[1].open() is not second, "its turn is over, and who has it still has it"


def test_another_column_is_refused(tmp_path: Path) -> None:
    ShardKey("device", str(tmp_path)).begin()
    with pytest.raises(InvalidPipeline, match=r"shard_by='site'.*by 'device'"):
        ShardKey("site", str(tmp_path)).begin()


def test_a_process_that_does_not_see_the_claims_is_refused_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="does not see the checkpoint"):
        ShardKey("device", str(tmp_path / "elsewhere")).open()
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_increment_is_said(tmp_path: Path) -> None:
    claim(opened(tmp_path), ["a"], "left")
    (path,) = tmp_path.glob("*.json")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Corrupt):
        opened(tmp_path)


def test_an_increment_that_says_something_else_is_said(tmp_path: Path) -> None:
    from holdfast.store import sealed

    sealed.prepare(str(tmp_path))
    said = {"units": ["left"], "counts": [2], "keys": ""}
    sealed.put_if_absent(str(tmp_path / f"{1:012d}.json"), json.dumps(said).encode())
    with pytest.raises(Corrupt, match="increment 1 of the keys of the shards"):
        opened(tmp_path)


def test_what_was_read_before_a_damaged_increment_is_not_forgotten(tmp_path: Path) -> None:
    """Else a key of it could be claimed once more, behind the damage."""
    table, other = opened(tmp_path), opened(tmp_path)
    for key in "abc":
        claim(other, [key], "left")
    third = tmp_path / f"{3:012d}.json"
    data = third.read_bytes()
    third.write_bytes(data[:-1])
    with pytest.raises(Corrupt):
        table.refresh()
    third.write_bytes(data)
    assert claim(table, ["a", "b", "c"], "right") == ["left"] * 3


@pytest.mark.slow
def test_a_copy_has_the_same_verdicts_and_one_of_its_own_stays(tmp_path: Path) -> None:
    ours, copy, other = (LocalStore(str(tmp_path / name)) for name in ("ours", "copy", "other"))
    key = ShardKey("device", str(tmp_path / "ours" / KEYS))
    key.begin()
    for number in range(120):
        claim(key.open(), [str(number)], "ab"[number % 2])
        if number % 50 == 0:
            copy_claims(ours, copy)
    copy_claims(ours, copy)
    assert owners(ShardKey("device", str(tmp_path / "copy" / KEYS)).open(), ["0", "1", "119"]) == ["a", "b", "b"]
    alone = ShardKey("device", str(tmp_path / "other" / KEYS))
    alone.begin()
    claim(alone.open(), ["0"], "b")
    copy_claims(ours, other)
    assert owners(opened(tmp_path / "other" / KEYS), ["0", "1"]) == ["b", None]
