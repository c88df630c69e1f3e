"""What a start makes of each kind of damaged file: the one table that tests hold to and the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass

DAMAGES = ("truncated", "emptied", "flipped", "removed")

CONTINUES = "goes on"
RESTORES = "stops, goes on"
STOPS = "stops"
OUTCOMES = {CONTINUES, RESTORES, STOPS}

WHOLE, LOST, SEEDED = "whole", "lost", "seeded"
BASES = (WHOLE, LOST, SEEDED)
"""Checkpoints: what a killed run has left; the same without Spark's directory; and what the next run makes of that.

In the last one Spark's directory has begun with a snapshot, and still needs it for a bucket that was not called since.
"""

Cell = tuple[str, str, str]
"""Base, kind of file, damage."""


@dataclass(frozen=True)
class Row:
    """What comes of the damages of one kind of file.

    Parameters
    ----------
    truncated, emptied, flipped, removed : str
        Outcomes; several, where files of the kind differ, with a semicolon between them.
    means : str
        How it is healed, or what to do.
    """

    truncated: str
    emptied: str
    flipped: str
    removed: str
    means: str

    def words(self, how: str) -> set[str]:
        """Return what may come of a damage."""
        return {word for word in getattr(self, how).split("; ") if word}


def always(word: str, means: str) -> Row:
    """Return a row of which every damage has one outcome."""
    return Row(word, word, word, word, means)


def table_of(base: str) -> str:
    """Return the table of a base as the page shows it."""
    lines = [f"| file | {' | '.join(DAMAGES)} | by which means; or the cure |", f"|---|{'---|' * (len(DAMAGES) + 1)}"]
    for (of, kind), row in sorted(TABLE.items()):
        if of == base:
            lines.append(f"| `{kind}` | {' | '.join(getattr(row, how) for how in DAMAGES)} | {row.means} |")
    return "\n".join(lines)


HANDFUL: tuple[Cell, ...] = (
    (WHOLE, "ledger/<n>-<n>", "flipped"),
    (WHOLE, "spark/<n>/offsets/<n>", "removed"),
    (WHOLE, "spark/<n>/state/<n>/<n>/<n>.zip", "flipped"),
    (LOST, "snapshots/<n>-<n>.manifest", "flipped"),
    (LOST, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet", "truncated"),
    (SEEDED, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet", "removed"),
)
"""What is tried with every ``make test``: of the newest file of the kind."""

_VERSIONS = "a new directory begins with a snapshot; versions that no epoch needs any more are not read"
_ENTRIES = "a new directory begins with a snapshot; older entries are not read"
_ANOTHER = "another snapshot serves"
_OR_REMOVE = "restore it; or remove it, if the sink is to begin at the present"
_OR_MOVE = "restore it; or move Spark's directory away: a new one begins with a snapshot"
_LEDGER = "sinks know what they hold; the newest decision has to be restored, where a sink lacks its epoch"

_ROWS: tuple[tuple[tuple[str, ...], str, Row], ...] = (
    (
        (WHOLE, LOST),
        "fences/<n>.json",
        always("goes on; stops", "each run has its own; restore that of the last run"),
    ),
    ((WHOLE, LOST), "generations/<n>.json", always("goes on", "each run has its own")),
    ((WHOLE, LOST), "graph/<x>.json", always("goes on", "a description for people; each start writes it")),
    (
        (WHOLE, LOST),
        "identity.json",
        Row("stops", "stops", "stops", "goes on", "restore it: it ties the checkpoint to its sinks"),
    ),
    (
        (WHOLE, LOST),
        "ledger/<n>-<n>",
        Row("goes on; stops", "goes on; stops", "goes on; stops", "goes on", _LEDGER),
    ),
    (
        (WHOLE, LOST),
        "progress/<n>-<n>-<n>",
        always("goes on", "Spark's offset log has these ends, too; without both they are replayed as one epoch"),
    ),
    ((WHOLE, LOST), "schemas/files.json", always("goes on", "each start writes it")),
    ((WHOLE, LOST), "schemas/table.json", always("goes on", "each start writes it")),
    (
        (WHOLE, LOST),
        "sinks/files.json",
        always("goes on", _OR_REMOVE),
    ),
    (
        (WHOLE, LOST),
        "sinks/table.json",
        always("goes on", _OR_REMOVE),
    ),
    ((WHOLE, LOST, SEEDED), "snapshots/<n>-<n>.manifest", always("goes on", _ANOTHER)),
    (
        (WHOLE, LOST),
        "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet",
        always("goes on", _ANOTHER),
    ),
    (
        (SEEDED,),
        "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet",
        always("goes on; stops, goes on", _ANOTHER),
    ),
    (
        (WHOLE, LOST, SEEDED),
        "snapshots/floor.json",
        always("goes on", "sources keep everything until it is written again"),
    ),
    (
        (SEEDED,),
        "sources.json",
        always("goes on", "read where a directory is begun; restore it, or remove it if no source is to come back"),
    ),
    ((WHOLE, LOST), "sources/rows/log/<n>.json", always("stops", "restore it: without it nobody knows what was read")),
    (
        (WHOLE, LOST),
        "sources/rows/log/identity",
        Row("stops", "stops", "stops", "goes on", "restore it: it ties the log to the input directory"),
    ),
    (
        (WHOLE,),
        "spark/<n>/.metadata.crc",
        always("goes on", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/commits/.<n>.crc",
        always("goes on", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/commits/<n>",
        always("goes on", _ENTRIES),
    ),
    ((WHOLE,), "spark/<n>/graph.json", Row("stops", "stops", "stops", "goes on", _OR_MOVE)),
    (
        (WHOLE,),
        "spark/<n>/metadata",
        always("goes on", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/offsets/.<n>.crc",
        always("goes on", _ENTRIES),
    ),
    (
        (WHOLE,),
        "spark/<n>/offsets/<n>",
        always("goes on", _ENTRIES),
    ),
    (
        (WHOLE, SEEDED),
        "spark/<n>/origin.json",
        Row(
            "goes on",
            "goes on",
            "goes on",
            "stops",
            "a new directory begins with a snapshot; where it is missing, restore it, or move the directory away",
        ),
    ),
    ((WHOLE,), "spark/<n>/state.json", Row("stops", "stops", "stops", "goes on", _OR_MOVE)),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/.<n>.changelog.crc",
        Row("goes on; stops, goes on", "goes on", "goes on; stops, goes on", "goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/.<n>.zip.crc",
        Row("stops, goes on", "goes on", "stops, goes on", "goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/<n>.changelog",
        always("goes on; stops, goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/<n>.zip",
        always("stops, goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/SSTs/.<n>-<x>.sst.crc",
        Row("stops, goes on", "goes on", "stops, goes on", "goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/<n>/SSTs/<n>-<x>.sst",
        always("stops, goes on", _VERSIONS),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/_metadata/v2/.<n>.crc",
        always("goes on", "a new directory begins with a snapshot"),
    ),
    ((WHOLE,), "spark/<n>/state/<n>/_metadata/v2/<n>", always("goes on", "a new directory begins with a snapshot")),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/_stateSchema/default/.<n>_<x>.crc",
        always("goes on", "a new directory begins with a snapshot"),
    ),
    (
        (WHOLE,),
        "spark/<n>/state/<n>/_stateSchema/default/<n>_<x>",
        always("goes on", "a new directory begins with a snapshot"),
    ),
    ((WHOLE, LOST), "state/report.json", always("goes on", "for `holdfast inspect`; the next epoch writes it")),
)

TABLE = {(base, kind): row for bases, kind, row in _ROWS for base in bases}
