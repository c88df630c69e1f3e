"""Rows that a program pushes: durable when ``push`` returns, whether the pipeline runs at that moment or not."""

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "callback_feed"

feed = hf.read.CallbackFeed(WORK / "feed", schema="user STRING, page STRING, at TIMESTAMP")
clicks = hf.read.callback(feed, timestamp="at", name="clicks")
pipeline = hf.Pipeline("clicks", clicks | hf.write.sqlite(WORK / "clicks.db", table="clicks", name="clicks_table"))


def push(user: str, *pages: str) -> int:
    """Push one row for each page, as a web handler would; return how many."""
    feed.push([{"user": user, "page": page, "at": datetime.now(UTC)} for page in pages])
    return len(pages)


def main() -> None:
    """Push before the run, during it and after it; run once more; count."""
    pushed = push("ann", "/", "/prices")  # nothing is running: the rows wait on disk

    run = pipeline.start(checkpoint=str(WORK / "checkpoint"), trigger=hf.every("100 ms"))
    pushed += push("bob", "/", "/docs", "/login")
    while run.is_active and run.status().rows_total < pushed:
        time.sleep(0.1)
    run.stop()  # after the current epoch
    run.wait()  # raises the error of a run that failed

    pushed += push("eve", "/")  # nothing is running again
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())

    with closing(sqlite3.connect(WORK / "clicks.db")) as database:
        visible = database.execute("SELECT user, count(*) FROM clicks GROUP BY user ORDER BY user").fetchall()
    print(f"pushed {pushed} rows in this run of the example; the table holds {visible}")


if __name__ == "__main__":
    main()
