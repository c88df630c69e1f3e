"""Kill a pipeline of all that goes by time, wherever it may be: its sinks are as if nothing had happened.

One chain kills one pipeline (:mod:`tests.crash.timed_pipeline`) again and again.  What the policies of ``sync`` must
give was recorded from the reference (design/0007, section 4); what the reference does not have is run undisturbed and
without Spark, in the epochs and at the batch times that Spark has logged (design/0010, section 5).  State that is given
is there before the first epoch, and counts once (design/0012).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from holdfast import faults
from holdfast.checkpoint.directory_header import FILE_NAME, read_origin
from holdfast.checkpoint.spark_log import read_offsets
from holdfast.testing.drive import drive
from holdfast.testing.given import close
from tests.crash import timed_pipeline as timed
from tests.crash.lives import MODES, Lives
from tests.spark.running import batches_of_log, sqlite_rows
from tests.spec.oracle_cases import expected_sets, late_at_last

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FIRST = 2
"""The first epoch: given state is the end of one before it."""

CHAIN = (("carried", f"after-decide:{FIRST}"), ("staged", "publish-uncommitted:7"))
"""How a life stages its rows, and where it dies."""

WHOLE = {
    "carried": (
        "recovery-resolved",
        f"before-stage:{FIRST}",
        "recovery-resolved",
        f"after-stage:{FIRST}",
        f"after-decide:{FIRST}",
        f"after-forget:{FIRST}",
        "publish-begun:6",
        "jvm:2",
        "moment:2",
        "before-forget:11",
    ),
    "staged": (
        f"before-publish:{FIRST}",
        f"after-publish:{FIRST}",
        "jvm:1",
        "after-stage:6",
        "publish-uncommitted:8",
        "moment:1",
        "recovery-resolved",
        "after-publish:11",
    ),
}


# --- what must come out -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """What Spark has logged of an epoch: the lists of rows of each source that it brings, who ends, and its time."""

    lists: dict[str, range]
    ended: frozenset[str]
    batch_us: int


def epochs(checkpoint: Path) -> Iterator[Epoch]:
    """Yield the epochs that Spark has logged."""
    spark = checkpoint / "spark/1"
    at: dict[str, int] = {}
    closed: set[str] = set()
    assert read_origin(spark / FILE_NAME).base == FIRST
    for batch in batches_of_log(spark / "offsets"):
        found = read_offsets(spark, batch)
        to = {source: int(positions["rows"]) for source, positions in found.positions.items() if "rows" in positions}
        ended = {source for source, positions in found.positions.items() if "@ended" in positions}
        yield Epoch(
            {name: range(at.get(name, 0), end) for name, end in to.items()}, frozenset(ended - closed), found.batch_us
        )
        at |= to
        closed |= ended


def undisturbed(stream: str, checkpoint: Path) -> list[dict[str, Any]]:
    """Return the rows of a stream, run without Spark in the epochs that Spark has logged."""
    given: dict[str, list[list[Any]]] = {side: [] for side in ("left", "right")}
    times = []
    for epoch in epochs(checkpoint):
        for side, fed in given.items():
            rows = [row for number in epoch.lists.get(side, ()) for row in timed.rows_of(side)[number]]
            fed.append([*rows, *([close()] if side in epoch.ended else [])])
        times.append(epoch.batch_us)
    used = {"alarms": ("left",)}.get(stream, ("left", "right"))
    found = drive(timed.parts()[stream], {side: given[side] for side in used}, batch_times=times)
    return [row for rows in found for row in rows]


def counts(checkpoint: Path) -> list[tuple[str, int]]:
    """Return what the counts say that begin with state, from a loop over the rows."""
    held, found = Counter(timed.GIVEN), []
    for epoch in epochs(checkpoint):
        rows = [row["k"] for number in epoch.lists.get("right", ()) for row in timed.rows_of("right")[number]]
        held.update(rows)
        found += [(key, held[key]) for key in dict.fromkeys(rows)]
    return sorted(found)


# --- what the sinks hold ----------------------------------------------------------------------------------------------


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a directory of Parquet files."""
    return dataset.dataset(directory, format="parquet").to_table().to_pylist()


def check_policies(work: Path) -> None:
    """Compare the sets of every policy, and their order within a key."""
    found: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for _, node, key, time, holds in sqlite_rows(work / "out.db", "SELECT rowid, node, k, t, holds FROM sets"):
        found[node.partition("_")[0], key].append((time, json.loads(holds)))
    for name, case in timed.RUN.cases.items():
        sets = [(time, {of: row["v"] for of, row in held.items()}) for time, held in found.pop(("node", name), [])]
        assert sets == expected_sets(case), name
    for node in ("near", "bursts"):
        wanted: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in undisturbed(node, work / "checkpoint"):
            held = {name: row[name] for name in ("left", "right") if row[name] is not None}
            wanted[node, row["k"]].append((row["timestamp"], held))
        assert any(len(held) == 2 for sets in wanted.values() for _, held in sets), "nothing meets"
        for at, sets in wanted.items():
            assert found.pop(at) == sets, at
    assert not found
    late = Counter((row["k"], row["input"], row["t"]) for row in rows_of(work / "late"))
    for name, case in timed.RUN.cases.items():
        if (last := late_at_last(case)) is not None:
            assert late[name, *last] == 1, name


def check_timers(work: Path) -> None:
    """Compare which timers fired, in which epoch, and that none did twice."""
    found = Counter(tuple(row.values()) for row in rows_of(work / "alarms"))
    assert found == Counter(tuple(row.values()) for row in undisturbed("alarms", work / "checkpoint"))
    fired = Counter((key, clock, at) for key, clock, at, *_ in found.elements())
    assert set(fired.values()) == {1}
    rows = {("event", row["k"], row["t"] + 3) for rows in timed.rows_of("left") for row in rows}
    assert {(clock, key, at) for key, clock, at in fired if clock == "event"} == rows, "the end fires what is left"
    assert sum(clock == "batch" for _, clock, _ in fired) > 5


def check(lives: Lives) -> None:
    """Run to a good end, and look into the sinks."""
    assert lives.end() == 0, lives.said()
    check_policies(lives.work)
    check_timers(lives.work)
    assert sqlite_rows(lives.work / "out.db", "SELECT k, n FROM counts") == counts(lives.work / "checkpoint")


def begun(work: Path) -> Lives:
    pq.write_table(pa.table({"k": list(timed.GIVEN), "n": list(timed.GIVEN.values())}), work / "counts.parquet")
    return Lives(work, "timed_pipeline", {}, arguments=("--state", f"counts={work / 'counts.parquet'}"))


def test_policies_timers_and_given_state_are_exact_after_a_chain_of_kills(tmp_path: Path) -> None:
    lives = begun(tmp_path)
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    check(lives)
    assert f"epoch {FIRST} is held by every sink: evaluated for its state alone" in lives.logged()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_policies_timers_and_given_state_are_exact_after_the_whole_chain(mode: str, tmp_path: Path) -> None:
    lives = begun(tmp_path)
    lives.environment |= MODES[mode]
    for where in WHOLE[mode]:
        lives.die(where)
    check(lives)


def test_the_chains_kill_before_the_first_epoch_and_behind_its_decision() -> None:
    policies = {case["policy"] for case in timed.RUN.cases.values()}
    assert {"immediate", "fixed_size", "mux", "timestamp_align"} <= policies
    assert {f"before-stage:{FIRST}", f"after-decide:{FIRST}"} <= {*WHOLE["carried"]}
    named = {where.partition(":")[0] for each in WHOLE.values() for where in each}
    assert named <= {*faults.POINTS, "jvm", "moment"}
