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

TABLE: dict[tuple[str, str], Row] = {
    (LOST, "fences/<n>.json"): Row(
        "goes on; stops",
        "goes on; stops",
        "goes on; stops",
        "stops",
        "each run has its own; restore that of the last run",
    ),
    (LOST, "generations/<n>.json"): Row("goes on", "goes on", "goes on", "goes on", "each run has its own"),
    (LOST, "graph/<x>.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "a description for people; each start writes it"
    ),
    (LOST, "identity.json"): Row(
        "stops", "stops", "stops", "goes on", "restore it: it ties the checkpoint to its sinks"
    ),
    (LOST, "ledger/<n>-<n>"): Row(
        "stops",
        "stops",
        "stops",
        "goes on",
        "sinks know what they hold; the newest decision has to be restored, where a sink lacks its epoch",
    ),
    (LOST, "progress/<n>-<n>-<n>"): Row(
        "goes on",
        "goes on",
        "goes on",
        "goes on",
        "Spark's offset log has these ends, too; without both they are replayed as one epoch",
    ),
    (LOST, "schemas/files.arrow"): Row("goes on", "goes on", "goes on", "goes on", "each start writes it"),
    (LOST, "schemas/table.arrow"): Row("goes on", "goes on", "goes on", "goes on", "each start writes it"),
    (LOST, "sinks/files.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "restore it; or remove it, if the sink is to begin at the present"
    ),
    (LOST, "sinks/table.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "restore it; or remove it, if the sink is to begin at the present"
    ),
    (LOST, "snapshots/<n>-<n>.manifest"): Row("goes on", "goes on", "goes on", "goes on", "another snapshot serves"),
    (LOST, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet"): Row(
        "goes on", "goes on", "goes on", "goes on", "another snapshot serves"
    ),
    (LOST, "snapshots/floor.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "sources keep everything until it is written again"
    ),
    (LOST, "sources/rows/log/<n>.json"): Row(
        "stops", "stops", "stops", "stops", "restore it: without it nobody knows what was read"
    ),
    (LOST, "sources/rows/log/identity"): Row(
        "stops", "stops", "stops", "goes on", "restore it: it ties the log to the input directory"
    ),
    (LOST, "state/report.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "for `holdfast inspect`; the next epoch writes it"
    ),
    (SEEDED, "snapshots/<n>-<n>.manifest"): Row("goes on", "goes on", "goes on", "goes on", "another snapshot serves"),
    (SEEDED, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet"): Row(
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "another snapshot serves",
    ),
    (SEEDED, "snapshots/floor.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "sources keep everything until it is written again"
    ),
    (SEEDED, "spark/<n>/origin.json"): Row(
        "goes on",
        "goes on",
        "goes on",
        "stops",
        "a new directory begins with a snapshot; where it is missing, restore it, or remove the directory",
    ),
    (WHOLE, "fences/<n>.json"): Row(
        "goes on; stops",
        "goes on; stops",
        "goes on; stops",
        "stops",
        "each run has its own; restore that of the last run",
    ),
    (WHOLE, "generations/<n>.json"): Row("goes on", "goes on", "goes on", "goes on", "each run has its own"),
    (WHOLE, "graph/<x>.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "a description for people; each start writes it"
    ),
    (WHOLE, "identity.json"): Row(
        "stops", "stops", "stops", "goes on", "restore it: it ties the checkpoint to its sinks"
    ),
    (WHOLE, "ledger/<n>-<n>"): Row(
        "goes on; stops",
        "goes on; stops",
        "goes on; stops",
        "goes on",
        "sinks know what they hold; the newest decision has to be restored, where a sink lacks its epoch",
    ),
    (WHOLE, "progress/<n>-<n>-<n>"): Row(
        "goes on",
        "goes on",
        "goes on",
        "goes on",
        "Spark's offset log has these ends, too; without both they are replayed as one epoch",
    ),
    (WHOLE, "schemas/files.arrow"): Row("goes on", "goes on", "goes on", "goes on", "each start writes it"),
    (WHOLE, "schemas/table.arrow"): Row("goes on", "goes on", "goes on", "goes on", "each start writes it"),
    (WHOLE, "sinks/files.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "restore it; or remove it, if the sink is to begin at the present"
    ),
    (WHOLE, "sinks/table.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "restore it; or remove it, if the sink is to begin at the present"
    ),
    (WHOLE, "snapshots/<n>-<n>.manifest"): Row("goes on", "goes on", "goes on", "goes on", "another snapshot serves"),
    (WHOLE, "snapshots/files/sums/<n>/<n>-<x>.windows.<x>.parquet"): Row(
        "goes on", "goes on", "goes on", "goes on", "another snapshot serves"
    ),
    (WHOLE, "snapshots/floor.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "sources keep everything until it is written again"
    ),
    (WHOLE, "sources/rows/log/<n>.json"): Row(
        "stops", "stops", "stops", "stops", "restore it: without it nobody knows what was read"
    ),
    (WHOLE, "sources/rows/log/identity"): Row(
        "stops", "stops", "stops", "goes on", "restore it: it ties the log to the input directory"
    ),
    (WHOLE, "spark/<n>/.metadata.crc"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/commits/.<n>.crc"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/commits/<n>"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/graph.json"): Row("stops", "stops", "stops", "goes on", "restore it"),
    (WHOLE, "spark/<n>/metadata"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/offsets/.<n>.crc"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/offsets/<n>"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot; older entries are not read"
    ),
    (WHOLE, "spark/<n>/origin.json"): Row(
        "goes on",
        "goes on",
        "goes on",
        "stops",
        "a new directory begins with a snapshot; where it is missing, restore it, or remove the directory",
    ),
    (WHOLE, "spark/<n>/state.json"): Row("stops", "stops", "stops", "goes on", "restore it"),
    (WHOLE, "spark/<n>/state/<n>/<n>/.<n>.changelog.crc"): Row(
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/<n>/.<n>.zip.crc"): Row(
        "stops, goes on",
        "goes on; stops, goes on",
        "stops, goes on",
        "goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/<n>/<n>.changelog"): Row(
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "goes on; stops, goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/<n>/<n>.zip"): Row(
        "stops, goes on",
        "stops, goes on",
        "stops, goes on",
        "stops, goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/<n>/SSTs/.<n>-<x>.sst.crc"): Row(
        "stops, goes on",
        "goes on; stops, goes on",
        "stops, goes on",
        "goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/<n>/SSTs/<n>-<x>.sst"): Row(
        "stops, goes on",
        "stops, goes on",
        "stops, goes on",
        "stops, goes on",
        "a new directory begins with a snapshot; versions that no epoch needs any more are not read",
    ),
    (WHOLE, "spark/<n>/state/<n>/_metadata/v2/.<n>.crc"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot"
    ),
    (WHOLE, "spark/<n>/state/<n>/_metadata/v2/<n>"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot"
    ),
    (WHOLE, "spark/<n>/state/<n>/_stateSchema/default/.<n>_<x>.crc"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot"
    ),
    (WHOLE, "spark/<n>/state/<n>/_stateSchema/default/<n>_<x>"): Row(
        "goes on", "goes on", "goes on", "goes on", "a new directory begins with a snapshot"
    ),
    (WHOLE, "state/report.json"): Row(
        "goes on", "goes on", "goes on", "goes on", "for `holdfast inspect`; the next epoch writes it"
    ),
}
