"""One pass over the input, four sinks: the last word on each ride, two kinds of files, and what could not be read."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow.dataset

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "several_sinks"

INPUT = {
    "1.json": [
        '{"ride": 1, "city": "Bonn", "km": 3.5, "at": "2026-03-01T08:00:00Z"}',
        '{"ride": 2, "city": "Ulm",  "km": 0.1, "at": "2026-03-01T08:01:00Z"}',
        '{"ride": 3, "city": "Bonn", "km": "fa',  # cut off: not readable
        '{"ride": 4, "city": "Ulm",  "km": 41,  "at": "2026-03-01T08:02:00Z"}',
    ],
    "2.json": [
        '{"ride": 4, "city": "Ulm",  "km": 42,  "at": "2026-03-01T08:09:00Z"}',  # corrects the one above
        '{"ride": 5, "city": "Bonn", "km": 9.9, "at": "2026-03-01T08:10:00Z"}',
    ],
}

rides = hf.read.files(
    str(WORK / "in"),
    schema="ride BIGINT NOT NULL, city STRING, km DOUBLE, at TIMESTAMP",
    timestamp="at",
    on_bad_row="reject",  # instead of stopping at the third line
    max_files_per_epoch=1,
    name="rides",
)
parts = rides | hf.split(short="km < 0.5", otherwise="real", name="length")
billed = parts.real | hf.select("ride", "city", "km", price="round(2 + km * 1.5, 2)", name="billed")

pipeline = hf.Pipeline(
    "rides",
    billed | hf.write.sqlite(WORK / "rides.db", table="rides", mode="upsert", key=["ride"], name="rides_table"),
    billed | hf.write.files(WORK / "by_city", partition_by="city", name="by_city"),  # every version of a ride
    parts.short | hf.write.files(WORK / "short", format="json", name="short_files"),
    rides.rejects | hf.write.files(WORK / "rejects", format="json", name="rejects_files"),
)


def main() -> None:
    """Run to the end of the input, and show what each sink holds."""
    (WORK / "in").mkdir(parents=True, exist_ok=True)
    for name, lines in INPUT.items():
        if not (WORK / "in" / name).exists():
            (WORK / "in" / name).write_text("\n".join(lines) + "\n")

    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())

    with closing(sqlite3.connect(WORK / "rides.db")) as database:
        print("rides_table:", database.execute("SELECT ride, km, price FROM rides ORDER BY ride").fetchall())
    by_city = pyarrow.dataset.dataset(WORK / "by_city", partitioning="hive").to_table()
    print("by_city:", sorted(zip(by_city["city"].to_pylist(), by_city["ride"].to_pylist(), strict=True)))
    for name in ("short", "rejects"):
        for file in sorted((WORK / name).glob("*.json")):
            print(f"{name}:", file.read_text().strip())


if __name__ == "__main__":
    main()
