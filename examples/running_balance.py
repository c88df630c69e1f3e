"""Each booking with the balance after it, and one row for each account: ``accumulate`` and ``reduce``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "running_balance"

bookings = hf.read.rows(
    [
        [{"account": "ann", "cents": 500}, {"account": "bob", "cents": 70}, {"account": "ann", "cents": -120}],
        [{"account": "ann", "cents": 20}],
    ],
    schema="account STRING, cents BIGINT",
    name="bookings",
)
statement = bookings | hf.accumulate(by="account", balance=hf.sum("cents"), number=hf.count(), name="statement")
accounts = bookings | hf.reduce(by="account", balance=hf.sum("cents"), lowest=hf.min("cents"), name="accounts")

pipeline = hf.Pipeline(
    "balance",
    statement | hf.write.sqlite(WORK / "running_balance.db", table="statement", name="statement_table"),
    accounts
    | hf.write.sqlite(
        WORK / "running_balance.db", table="accounts", mode="upsert", key=["account"], name="accounts_table"
    ),
)


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "running_balance.db")) as connection:
        for row in connection.execute("SELECT account, number, cents, balance FROM statement ORDER BY 1, 2"):
            print("booking:", row)
        for row in connection.execute("SELECT account, balance, lowest FROM accounts ORDER BY 1"):
            print("account:", row)


if __name__ == "__main__":
    main()
