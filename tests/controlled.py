"""Streams with control rows, and what a naive model makes of them: a list of rows, one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

import holdfast as hf
from holdfast.connectors.control.columns import EXTRA_TYPE
from holdfast.ports import Carried, EpochRecord, Part, Publication, Sink, Task

PIPELINE = "words"
SCHEMA = pa.schema([("id", pa.int32()), ("day", pa.string()), ("control", pa.string()), ("extra", EXTRA_TYPE)])
DAYS = ["mo", "tu", "a/b", None]

Row: TypeAlias = tuple[int, str | None] | tuple[int, str | None, dict[str, str]]
Item: TypeAlias = Row | str
"""A row of data, perhaps with extra values, or a command."""

GUST = hf.control.add_column("gust", "float")
WIDE_GUST = hf.control.widen("gust", "double")
WIDE_ID = hf.control.widen("id", "bigint")


def table(items: Sequence[Item]) -> pa.Table:
    """Return rows as a pipeline has them."""
    rows: list[tuple[Any, ...]] = [
        (None, None, item, None)
        if isinstance(item, str)
        else (item[0], item[1], None, list(item[2].items()) if len(item) > 2 else None)
        for item in items
    ]
    columns = zip(*rows, strict=True) if rows else [[]] * len(SCHEMA)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def carried(items: Sequence[Item]) -> Carried:
    """Return rows that the driver carries."""
    return Carried(table(items))


def staged(sink: Sink, epoch: int, items: Sequence[Item], *, task: int = 0, generation: int = 1) -> Part:
    """Return rows that a task staged."""
    writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, task, 0))
    for batch in table(items).to_batches(max_chunksize=3):
        writer.write(batch)
    return writer.stage()


def publication(epoch: int, *parts: Part, generation: int = 1) -> Publication:
    """Return an epoch."""
    return Publication(EpochRecord(PIPELINE, epoch, generation, {"log": {"log": epoch}}), parts)


class NaiveTable:
    """What a sink must hold: its columns, and its rows."""

    def __init__(self) -> None:
        self.columns = ["id", "day"]
        self.rows: list[dict[str, Any]] = []

    def take(self, items: Sequence[Item]) -> None:
        """Take items in their order."""
        for item in items:
            if not isinstance(item, str):
                extra = {name: float(value) for name, value in item[2].items()} if len(item) > 2 else {}
                self.rows.append({"id": item[0], "day": item[1], **extra})
            elif item == GUST:
                self.columns = ["id", "day", "gust"]
            elif "drop_partition" in item:
                self.rows = [row for row in self.rows if item != hf.control.drop_partition(day=row["day"])]

    def sorted(self) -> list[dict[str, Any]]:
        """Return all rows, in the order of their numbers."""
        return [{name: row.get(name) for name in self.columns} for row in sorted(self.rows, key=lambda row: row["id"])]


def stream(seed: int, count: int) -> list[Item]:
    """Return random items that no sink refuses."""
    chance, items, has_gust = random.Random(seed), list[Item](), False
    for number in range(count):
        if chance.random() < 0.75:
            day = chance.choice(DAYS)
            items.append(
                (number, day, {"gust": f"{number}.5"}) if has_gust and chance.random() < 0.5 else (number, day)
            )
            continue
        commands = [GUST, WIDE_ID, *[hf.control.drop_partition(day=day) for day in DAYS]]
        items.append(chance.choice([*commands, WIDE_GUST] if has_gust else commands))
        has_gust = has_gust or items[-1] == GUST
    return items


def epochs(seed: int, items: Sequence[Item]) -> list[list[list[Item]]]:
    """Return items cut into epochs, and these into parts."""
    chance, left, found = random.Random(seed), list(items), []
    while left:
        count = chance.randrange(1, 12)
        taken, left = left[:count], left[count:]
        place = chance.randrange(len(taken) + 1)
        found.append([taken[:place], taken[place:]])
    return found
