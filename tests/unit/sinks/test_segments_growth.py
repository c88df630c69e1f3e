"""What grows, as columns: the same segments are due, for the same reasons, as when each is looked at by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from holdfast import segments
from holdfast.connectors.segments import growth
from holdfast.connectors.segments.entries import Began, JournalFile, SealedSegment, SegmentsEntry
from holdfast.connectors.segments.growth import RATIO, Growth
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import INDEX
from holdfast.connectors.segments.places import PartitionRows, partition_rows
from holdfast.connectors.segments.policies import Policy, Segment, chosen, reason_of
from holdfast.positions import Positions

TARGET = 3000


def counted(rows: dict[str, int], *, is_parted: bool = False) -> PartitionRows:
    """As an index says it; in parts, where each partition with several rows is there twice."""
    pieces = list(rows.items())
    if is_parted:
        pieces = [(name, count - count // 2) for name, count in pieces] + [(n, c // 2) for n, c in pieces if c > 1]
    return PartitionRows(pa.array([each[0] for each in pieces], pa.string()), np.array([each[1] for each in pieces]))


def holdings_of(growing: dict[str, Began], epoch: int, journal_bytes: int = 0) -> Holdings:
    files = {"f": JournalFile("f", 1, 1, 1, journal_bytes)}
    starts: dict[int, Positions] = {began.epoch: {"log": {"log": began.epoch}} for began in growing.values()}
    return Holdings(SegmentsEntry(epoch=epoch), files, growing, starts=starts)


def a_seal(partition: str, row_bytes: int, size_bytes: int) -> SealedSegment:
    return SealedSegment(partition, "", "", 1, row_bytes, size_bytes, 1, 1, {}, {}, 0, 0, "")


def every_third(segment: Segment) -> str | None:
    return "third" if segment.rows % 3 == 0 else None


class Model:
    """One segment after the other, in Python: the definition."""

    def __init__(self) -> None:
        self.sizes: dict[str, tuple[int, float]] = {}
        self.ratio = RATIO
        self.ratios: dict[str, float] = {}

    def add(self, file: JournalFile, rows: dict[str, int], sealed_through: dict[str, int]) -> None:
        for partition, count in rows.items():
            if sealed_through.get(partition, 0) < file.epoch:
                known = self.sizes.get(partition, (0, 0.0))
                self.sizes[partition] = known[0] + count, known[1] + count * (file.row_bytes / file.row_count)

    def learn(self, seal: SealedSegment) -> None:
        self.ratios[seal.partition] = ratio = seal.size_bytes / seal.row_bytes
        self.ratio = (self.ratio + ratio) / 2

    def due(
        self, holdings: Holdings, policies: Sequence[Policy], now_us: int, flushed: set[str] | None, is_closing: bool
    ) -> list[tuple[Segment, str]]:
        found, older = [], 0.0
        for partition, began in sorted(holdings.growing.items(), key=lambda each: (each[1].epoch, each[0])):
            if partition not in self.sizes:
                continue
            rows, row_bytes = self.sizes[partition]
            segment = Segment(
                partition,
                rows,
                round(row_bytes * self.ratios.get(partition, self.ratio)),
                round(row_bytes),
                began.epoch,
                holdings.last.epoch,
                holdings.starts[began.epoch],
                holdings.last.positions,
                began.at_us,
                now_us,
                TARGET,
                holdings.journal_bytes(),
                round(older),
                flushed is None or partition in flushed,
                is_closing,
            )
            older += row_bytes
            reason = reason_of(policies, segment)
            if reason:
                found.append((segment, reason))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_is_due_is_what_is_due_of_each_segment_by_itself(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """design/0016, "One seal"."""
    monkeypatch.setattr(growth, "UNUSED_MIN", 3)
    chance = random.Random(seed)
    ours = [segments.rows(40), segments.pressure("9 kB"), segments.size("2 kB"), segments.shutdown(), every_third]
    policies = chosen(chance.choice([None, "8 s"]), chance.sample(ours, chance.randrange(len(ours))))
    model, columns = Model(), Growth()
    growing: dict[str, Began] = {}
    sealed_through: dict[str, int] = {}
    names = [f"day={number}" for number in range(chance.choice([1, 4, 30]))] + ["größe=/", "day=__HIVE__"]
    for epoch in range(1, 25):
        rows = {name: chance.randrange(1, 20) for name in chance.sample(names, chance.randrange(1, len(names) + 1))}
        total = sum(rows.values())
        file = JournalFile(f"{epoch}", epoch, total, total * chance.randrange(20, 200), 0)
        for name in rows:
            growing.setdefault(name, Began(epoch, epoch * 1_000_000))
        holdings = holdings_of(growing, epoch, journal_bytes=chance.randrange(20_000))
        holdings.sealed_through = dict(sealed_through)
        model.add(file, rows, sealed_through)
        columns.add(file, counted(rows, is_parted=chance.random() < 0.5), holdings)
        if chance.random() < 0.2:
            seal = a_seal(chance.choice(names), chance.randrange(1, 100), chance.randrange(1, 100))
            model.learn(seal)
            columns.learn(seal)
        flushed = chance.choice([None, set(), set(), set(chance.sample(names, 2))])
        is_closing = chance.random() < 0.1
        now_us = epoch * 1_000_000
        expected = model.due(holdings, policies, now_us, flushed, is_closing)
        found = columns.due(
            holdings, policies, target_bytes=TARGET, now_us=now_us, flushed=flushed, is_closing=is_closing
        )
        assert [(each.segment, each.reason) for each in found] == expected
        done = {segment.partition for segment, _ in expected if chance.random() < 0.7}
        columns.sealed(done, {})
        for name in done:
            del model.sizes[name], growing[name]
            sealed_through[name] = epoch


def test_a_journal_file_is_free_when_the_last_of_its_partitions_is_sealed() -> None:
    columns = Growth()
    growing = {name: Began(1, 0) for name in ("a", "b", "c")}
    holdings = holdings_of(growing, 1)
    holdings.sealed_through = {"c": 1}
    columns.add(JournalFile("f", 1, 4, 40, 0), counted({"a": 2, "b": 1, "c": 1}, is_parted=True), holdings)
    assert columns.pieces_left == {"f": 2}
    assert columns.free({"f": 1}) == ()
    columns.sealed({"a"}, {"f": 1})
    assert columns.free({"f": 1}) == ("f",)
    columns.sealed({"b"}, {"f": 1})
    assert columns.pieces_left == {}


@pytest.mark.slow
def test_policies_of_ours_are_asked_about_what_passed_the_smallest_limit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def noting(policies: Sequence[Policy], segment: Segment) -> str | None:
        asked.append(segment.partition)
        return reason_of(policies, segment)

    monkeypatch.setattr(growth, "reason_of", noting)
    rows = {f"day={number}": 1 for number in range(10_000)} | {"day=7": 100}
    growing = {name: Began(1, 0) for name in rows}
    columns = Growth()
    columns.add(JournalFile("f", 1, 10_099, 10_099 * 8, 0), counted(rows), holdings_of(growing, 1))
    policies = chosen("1 h", (segments.rows(50), segments.pressure("4 GB"), segments.shutdown()))
    (due,) = columns.due(holdings_of(growing, 1), policies, target_bytes=10**6, now_us=1)
    assert (due.segment.partition, due.reason, asked) == ("day=7", "rows", ["day=7"])
    columns.due(holdings_of(growing, 1), (*policies, every_third), target_bytes=10**6, now_us=1)
    assert len(asked) == 1 + 10_000  # a function of others may have a reason for any


@pytest.mark.slow
def test_the_places_of_partitions_that_do_not_come_again_are_used_again() -> None:
    columns = Growth()
    for epoch in range(1, 4):
        rows = {f"hour={epoch}-{number}": 1 for number in range(3000)}
        growing = {name: Began(epoch, 0) for name in rows}
        columns.add(JournalFile(f"{epoch}", epoch, 3000, 3000, 0), counted(rows), holdings_of(growing, epoch))
        due = columns.due(holdings_of(growing, epoch), chosen(None, (lambda segment: "all",)), target_bytes=9, now_us=0)
        assert {each.segment.partition for each in due} == set(rows)
        columns.sealed(rows, {})
        assert len(columns._names) <= 3000


def test_an_index_names_a_partition_for_each_record_batch() -> None:
    index = pa.table({"partition": ["a", "b", "a"], "batch": [0, 0, 1], "first": [0, 2, 0], "rows": [2, 1, 4]}, INDEX)
    found = partition_rows(index)
    assert list(zip(found.partitions.to_pylist(), found.rows.tolist(), strict=True)) == [("a", 2), ("b", 1), ("a", 4)]
    assert found.without(["a"]).partitions.to_pylist() == ["b"]
    assert found.among(["a", "c"]) == ["a", "a"]


@pytest.mark.parametrize("known_count", [1, 1000])
def test_unknown_partitions_are_found_by_either_way(known_count: int) -> None:
    known = {f"{number}": None for number in range(known_count)}
    rows = counted({"0": 1, "new": 2})
    assert rows.unknown(known, pa.array(known, pa.string())) == ["new"]
