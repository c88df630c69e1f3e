"""How long a look ahead takes: ``holdfast plan`` and ``holdfast check`` on the pipeline of a shop.

The pipeline reads orders, payments and customers, casts and computes, sums the revenue of each hour, keeps the raw
orders as files and what could not be read in a table of its own.  It has run once, and then a sum was added: ``plan``
has a change to show.  Each command is a process of its own, as on a command line; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.sides import WORK, median, print_result

SHOP = """
import holdfast as hf

orders = hf.read.files(
    {work!r} + "/orders", schema="order_id BIGINT, customer STRING, amount STRING, at TIMESTAMP", timestamp="at",
    on_bad_row="reject", name="orders",
)
payments = hf.read.files(
    {work!r} + "/payments", schema="order_id BIGINT, paid STRING, at TIMESTAMP", timestamp="at", name="payments"
)
customers = hf.read.files(
    {work!r} + "/customers", schema="customer STRING, city STRING, at TIMESTAMP", timestamp="at", name="customers"
)
priced = orders | hf.select("order_id", "customer", "at", amount="cast(amount as decimal(12,2))", name="priced")
paid = payments | hf.select("order_id", "at", paid="round(cast(paid as double), 2)", name="paid_as_number")
placed = customers | hf.select("customer", "at", city="upper(trim(city))", name="placed")
revenue = priced | hf.aggregate(
    by="customer", window=hf.tumbling("1 h"), disorder="10 min", orders=hf.count(), amount=hf.sum("amount"), {more}
    name="revenue",
)
last_paid = paid | hf.distinct("order_id", "30 d", name="once")
database = {work!r} + "/shop.db"
pipeline = hf.Pipeline(
    "shop",
    revenue | hf.write.sqlite(database, table="revenue", name="revenue_table"),
    last_paid | hf.write.sqlite(database, table="payments", name="payments_table"),
    placed | hf.write.sqlite(database, table="customers", name="customers_table"),
    orders | hf.write.files({work!r} + "/raw", name="raw"),
    orders.rejects | hf.write.sqlite(database, table="bad", name="bad_rows"),
)
"""

ROWS = {
    "orders": {"order_id": 1, "customer": "ada", "amount": "19.99", "at": "2026-01-05T10:00:00Z"},
    "payments": {"order_id": 1, "paid": "19.99", "at": "2026-01-05T10:05:00Z"},
    "customers": {"customer": "ada", "city": " Ulm ", "at": "2026-01-05T09:00:00Z"},
}


def prepared(work: Path) -> Path:
    """Write a little input, and run the pipeline once to its end; return the program with the change."""
    for name, row in ROWS.items():
        (work / name).mkdir(parents=True, exist_ok=True)
        (work / name / "1.json").write_text(json.dumps(row) + "\n")
    program = work / "shop.py"
    program.write_text(SHOP.format(work=str(work), more=""))
    ran = _command("run", str(program), "--checkpoint", str(work / "ckpt"), "--available-now", "--master", "local[2]")
    if ran.returncode != 0:
        raise SystemExit(f"the shop did not run:\n{ran.stderr}")
    program.write_text(SHOP.format(work=str(work), more='largest=hf.max("amount"),'))
    return program


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ.copy())


def seconds(expected: frozenset[int], *words: str) -> float:
    """Return how long a command takes; end where it says something that it should not."""
    begun = time.perf_counter()
    ended = _command(*words)
    took = time.perf_counter() - begun
    if ended.returncode not in expected:
        raise SystemExit(f"{words[0]} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
    return took


def main() -> None:
    """Measure, and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    work = WORK / "plan"
    program = prepared(work) if not (work / "ckpt").exists() else work / "shop.py"
    with_checkpoint = (str(program), "--checkpoint", str(work / "ckpt"))
    plans, checks = [], []
    for _ in range(rounds):
        plans.append(seconds(frozenset({10}), "plan", *with_checkpoint))
        checks.append(seconds(frozenset({0}), "check", *with_checkpoint))
    result: dict[str, Any] = {"plan_s": round(median(plans), 2), "check_s": round(median(checks), 2)}
    print_result(result)


if __name__ == "__main__":
    main()
