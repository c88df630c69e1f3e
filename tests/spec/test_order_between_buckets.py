"""A promise of a whole input holds behind an operator with another key, too: no row becomes late there (design/0009).

Rows of a source keep a disorder as a whole.  ``distinct`` by their id passes them in the order of their arrival, each
bucket its own; behind it another key counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import close, drive

pytestmark = pytest.mark.slow

Row = dict[str, Any]
DISORDER = 6
COLUMNS = "id BIGINT, k STRING, t BIGINT"


def windows(once: hf.Stream, other: hf.Stream) -> hf.Stream:
    return once | hf.aggregate(by="k", window=hf.tumbling(10), disorder=DISORDER, n=hf.count(), name="behind")


def pairs(once: hf.Stream, other: hf.Stream) -> hf.Stream:
    return hf.join(once, other, on="k", within=3, disorder=DISORDER, name="behind")


def known(once: hf.Stream, other: hf.Stream) -> hf.Stream:
    changes = hf.table(other, key="k", disorder=DISORDER)
    return hf.lookup(once, changes, on="k", columns={"of": "id"}, disorder=DISORDER, name="behind")


def sets(once: hf.Stream, other: hf.Stream) -> hf.Stream:
    return hf.sync({"a": once, "b": other}, by="k", disorder=DISORDER, name="behind")


def arrived(seed: int) -> list[Row]:
    """Return rows, up to ``DISORDER`` out of order, none of them twice at one time."""
    luck = random.Random(seed)
    rows = [{"id": luck.randrange(10**6), "k": luck.choice("abc"), "t": t} for t in range(90)]
    return sorted(rows, key=lambda row: row["t"] + luck.randint(0, DISORDER))


@pytest.mark.parametrize("build", [windows, pairs, known, sets])
def test_buckets_make_no_row_late(build: Callable[[hf.Stream, hf.Stream], hf.Stream]) -> None:
    sources = [hf.read.rows([], schema=COLUMNS, timestamp="t", name=name, bounded=True) for name in ("a", "b")]
    once = [
        stream | hf.distinct(by="id", horizon=1, disorder=DISORDER, name=f"{stream.name}_once") for stream in sources
    ]
    behind = build(once[0], once[1])
    read = ("a",) if build is windows else ("a", "b")
    found = []
    for buckets, size in ((1, 30), (4, 50), (3, 90)):
        epochs: dict[str, list[list[Any]]] = {}
        for seed, name in enumerate(read):
            rows = arrived(seed)
            epochs[name] = [*(rows[at : at + size] for at in range(0, len(rows), size)), [close()]]
        late = drive(behind.late, epochs, buckets=buckets)
        assert not any(late), (buckets, size, late)
        out = [row for epoch in drive(behind, epochs, buckets=buckets) for row in epoch]
        found.append(sorted(out, key=repr))
    assert found[0]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("buckets", [1, 4])
@pytest.mark.parametrize("build", [pairs, known])
def test_a_row_leaves_when_both_inputs_are_past_it_whatever_the_keys_that_say_so(
    build: Callable[[hf.Stream, hf.Stream], hf.Stream], buckets: int
) -> None:
    """Each bucket has few keys; what the others read tells it how far the sources are."""
    sources = [hf.read.rows([], schema=COLUMNS, timestamp="t", name=name) for name in ("a", "b")]
    keys = [f"k{number}" for number in range(8)]
    first = [{"id": number, "k": key, "t": number} for number, key in enumerate(keys)]
    later = [{"id": 100, "k": "k0", "t": 60}]
    epochs = {name: [first, later, []] for name in ("a", "b")}
    rows = [row for epoch in drive(build(*sources), epochs, buckets=buckets) for row in epoch]
    assert {row["k"] for row in rows} >= set(keys)
