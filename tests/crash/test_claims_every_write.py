"""Who claims keys dies before each of its file operations, once and again (design/0048, section 7).

Two readers of one pipeline claim in turns.  A claim that a reader was told counts for ever, whoever dies; one that a
death has cut short counts as a whole or not at all, and then as the one who tries again says.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.shards.key_runs import UNKNOWN
from holdfast.shards.keys import HASHED, KEYS, KeyTable, ShardKey
from holdfast.store import increments
from holdfast.store.increments import Increments
from holdfast.types.row_ids import lanes_of_columns
from tests.crash.operations import die_once, die_twice

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STEPS = 13
MERGED = 4
"""As many increments become one here: merges happen within the few steps of a life."""


@pytest.fixture(autouse=True)
def _soon_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", MERGED)


class Claimers:
    """Two processes that claim; what each was told is kept outside of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: dict[str, str] = {}
        self.step = 0

    def run(self) -> None:
        key = ShardKey("device", str(self.directory / KEYS))
        key.begin()
        tables = [KeyTable(key.directory) for _ in range(2)]
        while self.step < STEPS:
            who, unit = self.step % 2, "ab"[self.step % 2]
            keys = [f"own {self.step}", f"shared {self.step // 3}", "everybody's"]
            found = tables[who].claim(lanes_of_columns(HASHED, [pa.array(keys)]), unit)
            for each, code in zip(keys, found.tolist(), strict=True):
                assert self.told.setdefault(each, tables[who].units[code]) == tables[who].units[code]
            self.step += 1

    def recover(self) -> None:
        self.run()

    def check(self) -> None:
        table = ShardKey("device", str(self.directory / KEYS)).open()
        codes = table.owners(lanes_of_columns(HASHED, [pa.array(list(self.told))]))
        assert UNKNOWN not in codes.tolist()
        assert [table.units[code] for code in codes] == list(self.told.values())
        written = Increments(str(self.directory / KEYS), "the claims", is_read_only=True)
        keys = Counter(itertools.chain.from_iterable(map(_keys_of, (payload for _, payload in written.read_on()))))
        assert max(keys.values()) == 1, "a key is claimed once"
        assert len(keys) == table.count == len(self.told)
        temporary = [path for path in (self.directory / KEYS / "aside").iterdir() if path.stat().st_nlink == 1]
        assert temporary == []


def _keys_of(payload: bytes) -> list[bytes]:
    data = base64.b64decode(json.loads(payload)["keys"])
    return [data[at : at + 16] for at in range(0, len(data), 16)]


def _life(root: Path) -> Callable[[object], Claimers]:
    def make(name: object) -> Claimers:
        return Claimers(root / str(name))

    return make


@pytest.mark.slow
def test_a_death_before_any_file_operation_takes_no_claim_back(tmp_path: Path) -> None:
    assert die_once(_life(tmp_path)) > 40, "the audit hook saw the work"


@pytest.mark.slow
def test_a_second_death_during_recovery_takes_no_claim_back(tmp_path: Path) -> None:
    assert die_twice(_life(tmp_path), 5, 7) > 40
