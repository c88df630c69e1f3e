"""What a start does about each kind of damaged file: the one table that tests check and the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass

DAMAGES = ("truncated", "emptied", "flipped", "removed")

CONTINUES = "continues"
RESTORES = "stops, continues"
STOPS = "stops"
OUTCOMES = {CONTINUES, RESTORES, STOPS}

WHOLE, LOST, SEEDED = "whole", "lost", "seeded"
BASES = (WHOLE, LOST, SEEDED)
"""Checkpoints: what a killed run has left; the same without Spark's directory; and after the next run from that.

In the last one Spark's directory started from a snapshot, and still needs it for a bucket that was not called since.
"""

Cell = tuple[str, str, str]
"""Base, kind of file, damage."""


@dataclass(frozen=True)
class Row:
    """The outcomes of damage to one kind of file.

    Parameters
    ----------
    truncated, emptied, flipped, removed : str
        Outcomes; several, where files of the kind differ, with a semicolon between them.
    means : str
        How it recovers, or what to do.
    """

    truncated: str
    emptied: str
    flipped: str
    removed: str
    means: str

    def words(self, how: str) -> set[str]:
        """Return the possible outcomes of a damage."""
        return {word for word in getattr(self, how).split("; ") if word}


def always(word: str, means: str) -> Row:
    """Return a row of which every damage has one outcome."""
    return Row(word, word, word, word, means)


def table_of(base: str) -> str:
    """Return the table of a base as the page shows it."""
    lines = [f"| file | {' | '.join(DAMAGES)} | recovery, or what to do |", f"|---|{'---|' * (len(DAMAGES) + 1)}"]
    for (of, kind), row in sorted(TABLE.items()):
        if of == base:
            lines.append(f"| `{kind}` | {' | '.join(getattr(row, how) for how in DAMAGES)} | {row.means} |")
    return "\n".join(lines)


HANDFUL: tuple[Cell, ...] = (
    (WHOLE, "ledger/<n>-<n>", "flipped"),
    (WHOLE, "spark/<n>/offsets/<n>", "removed"),
    (WHOLE, "spark/<n>/journal/<n>-<n>.entry", "flipped"),
    (WHOLE, "spark/<n>/journal/sums/<n>/<n>-<x>.part", "flipped"),
    (LOST, "snapshots/<n>-<n>.manifest", "flipped"),
    (LOST, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet", "truncated"),
    (SEEDED, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet", "removed"),
)
"""What is tried with every ``make test``: of the newest file of the kind."""

_VERSIONS = "a new directory starts from a snapshot; versions that no epoch needs are not read"
_ENTRIES = "a new directory starts from a snapshot; older entries are not read"
_ANOTHER = "another snapshot is used"
_OR_REMOVE = "restore it; or remove it, if the sink is to start at the present"
_OR_MOVE = "restore it; or move Spark's directory away: a new one starts from a snapshot"
_LEDGER = "sinks know what they hold; the newest decision must be restored if a sink lacks its epoch"

_ROWS: tuple[tuple[tuple[str, ...], str, Row], ...] = (
    (
        (WHOLE, LOST),
        "fences/<n>.json",
        always("continues; stops", "each run has its own; restore that of the last run"),
    ),
    ((WHOLE, LOST), "generations/<n>.json", always("continues", "each run has its own")),
    ((WHOLE, LOST), "graph/<x>.json", always("continues", "a human-readable description; each start writes it")),
    (
        (WHOLE, LOST),
        "identity.json",
        Row("stops", "stops", "stops", "continues", "restore it: it ties the checkpoint to its sinks"),
    ),
    (
        (WHOLE, LOST),
        "ledger/<n>-<n>",
        Row("continues; stops", "continues; stops", "continues; stops", "continues", _LEDGER),
    ),
    (
        (WHOLE, LOST),
        "progress/<n>-<n>-<n>",
        always(
            "continues",
            "Spark's offset log has these ends, too, and the sinks the newest; without any, they are replayed as one "
            "epoch, or refused where an operator depends on how they ended",
        ),
    ),
    ((WHOLE, LOST), "schemas/files.json", always("continues", "each start writes it")),
    ((WHOLE, LOST), "schemas/table.json", always("continues", "each start writes it")),
    (
        (WHOLE, LOST),
        "sinks/files.json",
        always("continues", _OR_REMOVE),
    ),
    (
        (WHOLE, LOST),
        "sinks/table.json",
        always("continues", _OR_REMOVE),
    ),
    ((WHOLE, LOST, SEEDED), "snapshots/<n>-<n>.manifest", always("continues", _ANOTHER)),
    (
        (WHOLE, LOST),
        "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet",
        always("continues", _ANOTHER),
    ),
    (
        (SEEDED,),
        "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet",
        always("continues; stops, continues", _ANOTHER),
    ),
    (
        (WHOLE, LOST, SEEDED),
        "snapshots/floor.json",
        always("continues", "sources keep everything until it is written again"),
    ),
    (
        (SEEDED,),
        "sources.json",
        always("continues", "read when a directory is created; restore it, or remove it if no source is to come back"),
    ),
    ((WHOLE,), "sources/rows/log/<n>.json", always("stops", "restore it: without it, what was read is unknown")),
    (
        (LOST,),
        "sources/rows/log/<n>.json",
        Row("stops", "stops", "stops", "continues; stops", "restore it; the newest one comes from the sinks"),
    ),
    (
        (WHOLE, LOST),
        "sources/rows/log/identity",
        Row("stops", "stops", "stops", "continues", "restore it: it ties the log to the input directory"),
    ),
    (
        (WHOLE,),
        "spark/<n>/.metadata.crc",
        always("continues", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/commits/.<n>.crc",
        always("continues", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/commits/<n>",
        always("continues", _ENTRIES),
    ),
    ((WHOLE,), "spark/<n>/graph.json", Row("stops", "stops", "stops", "continues", _OR_MOVE)),
    (
        (WHOLE,),
        "spark/<n>/journal/<n>-<n>.entry",
        Row(
            "continues; stops, continues",
            "stops, continues",
            "continues; stops, continues",
            "continues; stops, continues",
            _VERSIONS,
        ),
    ),
    (
        (SEEDED,),
        "spark/<n>/journal/<n>-<n>.entry",
        Row(
            "continues; stops, continues",
            "stops, continues",
            "continues; stops, continues",
            "stops, continues",
            _VERSIONS,
        ),
    ),
    ((WHOLE,), "spark/<n>/journal/sums/<n>/<n>-<x>.part", always("continues; stops, continues", _VERSIONS)),
    (
        (WHOLE,),
        "spark/<n>/metadata",
        always("continues", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/offsets/.<n>.crc",
        always("continues", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/offsets/<n>",
        always("continues", _ENTRIES),
    ),
    (
        (WHOLE, SEEDED),
        "spark/<n>/origin.json",
        Row(
            "continues",
            "continues",
            "continues",
            "stops",
            "a new directory starts from a snapshot; where it is missing, restore it, or move the directory away",
        ),
    ),
    ((WHOLE,), "spark/<n>/state.json", Row("stops", "stops", "stops", "continues", _OR_MOVE)),
    ((WHOLE, LOST), "state/report.json", always("continues", "for `holdfast inspect`; the next epoch writes it")),
)

TABLE = {(base, kind): row for bases, kind, row in _ROWS for base in bases}
