"""Keys and the units that have them, in memory: sorted runs, of which there are few.

A key takes 20 bytes: 128 bits of a hash in two lanes, and the code of its unit.  A run never changes; keys are added as
another run, and runs are merged so that each is at least twice the next one.  So a look-up asks as many as the count of
keys has digits in base 2, at most, and mostly one or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.types.row_ids import U64, Lanes

Codes = npt.NDArray[np.int32]

UNKNOWN = -1
"""Code of no unit: nobody has claimed the key."""


class KeyRun(NamedTuple):
    """Some keys, in the order of their first lanes, and the codes of their units."""

    first: U64
    second: U64
    codes: Codes

    @classmethod
    def of(cls, first: U64, second: U64, codes: Codes) -> KeyRun:
        """Return the run of some keys."""
        order = np.argsort(first, kind="stable")
        return cls(first[order], second[order], codes[order])

    def find(self, first: U64, second: U64) -> Codes:
        """Return the code of each key; UNKNOWN where it is not here."""
        found = np.full(len(first), UNKNOWN, np.int32)
        at = np.searchsorted(self.first, first)
        asked = np.arange(len(first))
        while len(asked):  # once, and once more for each 2**64 pairs of keys
            here = at[asked]
            asked, here = asked[inside := here < len(self.first)], here[inside]
            asked, here = asked[alike := self.first[here] == first[asked]], here[alike]
            is_it = self.second[here] == second[asked]
            found[asked[is_it]] = self.codes[here[is_it]]
            asked = asked[~is_it]
            at[asked] += 1
        return found


def owners(runs: Sequence[KeyRun], keys: Lanes) -> Codes:
    """Return the codes of the units that have some keys; UNKNOWN where no run has one.

    Examples
    --------
    >>> run = KeyRun.of(np.array([9, 7], np.uint64), np.array([1, 1], np.uint64), np.array([0, 1], np.int32))
    >>> owners([run], (np.array([7, 8, 9], np.uint64), np.array([1, 1, 2], np.uint64))).tolist()
    [1, -1, -1]
    """
    found = np.full(len(keys[0]), UNKNOWN, np.int32)
    asked = np.argsort(keys[0])  # places that follow each other are looked up several times as fast
    for run in reversed(runs):
        found[asked] = run.find(keys[0][asked], keys[1][asked])
        asked = asked[found[asked] == UNKNOWN]
    return found


def add(runs: Sequence[KeyRun], run: KeyRun) -> list[KeyRun]:
    """Return runs with another one."""
    found = [*runs, run]
    while len(found) > 1 and len(found[-2].first) < 2 * len(found[-1].first):
        found[-2:] = [together(found[-2:])]
    return found


def firsts(first: U64, second: U64, codes: Codes) -> KeyRun:
    """Return a run of some keys; of a key that comes more than once the first counts.

    Examples
    --------
    >>> run = firsts(np.array([7, 7], np.uint64), np.array([1, 1], np.uint64), np.array([5, 6], np.int32))
    >>> run.codes.tolist()
    [5]
    """
    order = np.lexsort((second, first))  # stable: equal keys stay in their order
    is_next = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    chosen = order[np.concatenate([[True], is_next])]
    return KeyRun(first[chosen], second[chosen], codes[chosen])


def together(runs: Sequence[KeyRun]) -> KeyRun:
    """Return all keys of some runs in one."""
    first, second = (np.concatenate([run[lane] for run in runs]) for lane in (0, 1))
    return KeyRun.of(first, second, np.concatenate([run.codes for run in runs]))
