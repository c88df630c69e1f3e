"""A function of your own for each key, with a state that survives crashes: ``apply``."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "state_per_key"

readings = hf.read.rows(
    [
        [{"sensor": "boiler", "celsius": value} for value in (60.0, 61.0)] + [{"sensor": "roof", "celsius": 12.0}],
        [{"sensor": "boiler", "celsius": value} for value in (75.0, 76.0, 77.0)],
        [{"sensor": "boiler", "celsius": 62.0}],
    ],
    schema="sensor STRING, celsius DOUBLE",
    name="readings",
)


def alarm(sensor: str, rows: list[dict[str, Any]], state: hf.KeyState) -> Iterator[dict[str, Any]]:
    """Say when a sensor becomes hot and when it has cooled down: once each, however rows are cut into epochs."""
    is_hot = state.get("is_hot", False)
    for row in rows:
        if row["celsius"] > (65 if is_hot else 70):
            if not is_hot:
                yield {"sensor": sensor, "what": "hot", "celsius": row["celsius"]}
            is_hot = True
        elif is_hot:
            yield {"sensor": sensor, "what": "cooled down", "celsius": row["celsius"]}
            is_hot = False
    state.set(is_hot=is_hot)


alarms = readings | hf.apply(
    alarm, by="sensor", state="is_hot BOOLEAN", schema="sensor STRING, what STRING, celsius DOUBLE", name="alarms"
)

table = hf.write.sqlite(WORK / "state_per_key.db", table="alarms", name="alarms_table")
pipeline = hf.Pipeline("alarms", alarms | table)


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "state_per_key.db")) as connection:
        for row in connection.execute("SELECT sensor, what, celsius FROM alarms ORDER BY rowid"):
            print(row)


if __name__ == "__main__":
    main()
