"""How many calls does a pipeline make that is killed, and how fast does it ask?  A service of 50 ms, on this machine.

Three sides, one after the other, each with a service that counts: a plain asyncio loop (``gather`` with a semaphore of
the same size) that writes nothing; Holdfast from files into SQLite; and Holdfast with three SIGKILLs of all of its
processes, after a quarter, a half and three quarters of the rows.

``calls_over`` is how many calls the killed pipeline made more than there are rows: at most ``concurrency`` for each
kill.  ``rows_per_s`` is Holdfast's rate as a part of the loop's, between the first and the last call that the service
saw: the start of a JVM is not part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

import holdfast as hf
from bench.sides import WORK, print_result, run_side, start_side

DELAY_S = 0.05


class CountedService:
    """Answers each number with twice that, after :data:`DELAY_S`, and counts."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.first_s = self.last_s = 0.0
        self.port = 0
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        self._is_ready.wait()

    def stop(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000))
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        self._loop.run_forever()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            number = int(await reader.readline())
            self.first_s = self.first_s or time.monotonic()
            self.asked[number] += 1
            await asyncio.sleep(DELAY_S)
            writer.write(b"%d\n" % (2 * number))
            await writer.drain()
            self.last_s = time.monotonic()
        except (ConnectionError, ValueError):
            pass  # whoever asked was killed
        finally:
            writer.close()


async def twice(port: int, number: int) -> int:
    """Ask for twice a number."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"%d\n" % number)
        return int(await reader.readline())
    finally:
        writer.close()


def side_loop(port: int, rows: int, concurrency: int) -> dict[str, Any]:
    """Ask in a loop."""

    async def ask_all() -> int:
        slots = asyncio.Semaphore(concurrency)

        async def ask(number: int) -> int:
            async with slots:
                return await twice(port, number)

        return sum(await asyncio.gather(*map(ask, range(rows))))

    return {"sum": asyncio.run(ask_all())}


def side_holdfast(port: int, concurrency: int, work: str) -> dict[str, Any]:
    """Run the pipeline to its end."""

    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        return {"twice": await twice(port, row["n"])}

    numbers = hf.read.files(f"{work}/in", format="json", schema="n BIGINT", name="numbers") | hf.row_id()
    called = numbers | hf.call(
        ask,
        "twice BIGINT",
        key="row_id",
        answers=f"{work}/answers.sqlite",
        max_concurrency=concurrency,
        name="called",
    )
    pipeline = hf.Pipeline("calls", called | hf.write.sqlite(f"{work}/out.db", table="rows", name="table"))
    pipeline.run(checkpoint=f"{work}/checkpoint", trigger=hf.available_now())
    return {"is_done": 1}


def prepared(work: Path, rows: int) -> Path:
    """Return an empty directory with the input."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "in").mkdir(parents=True)
    (work / "in" / "numbers.json").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(rows)))
    return work


def check(work: Path, rows: int) -> None:
    """Exit if the sink does not hold each row once, with its answer."""
    with closing(sqlite3.connect(work / "out.db")) as database:
        found = database.execute("SELECT n, twice FROM rows ORDER BY n").fetchall()
    if found != [(number, 2 * number) for number in range(rows)]:
        sys.exit(f"the sink holds {len(found)} rows, and not each of {rows} once with its answer")


def rate_of(run: Callable[[CountedService], Any], rows: int) -> float:
    """Return rows a second between the first call and the last answer."""
    service = CountedService()
    run(service)
    service.stop()
    if service.asked != dict.fromkeys(range(rows), 1):
        sys.exit(f"{sum(service.asked.values())} calls for {rows} rows, and nobody was killed")
    return rows / (service.last_s - service.first_s)


def killed(work: Path, rows: int, concurrency: int, kills: int) -> int:
    """Kill a pipeline again and again, and run it to its end; return how many calls were made more than needed."""
    service, arguments = CountedService(), {"concurrency": concurrency, "work": str(work)}
    for kill in range(1, kills + 1):
        with start_side("bench.call", "holdfast", {"port": service.port, **arguments}) as process:
            while len(service.asked) < rows * kill // (kills + 1):
                if process.poll() is not None:
                    sys.exit(f"it ended before it was killed:\n{process.communicate()[0][-4000:]}")
                time.sleep(0.002)
            every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in every:
                each.kill()
        psutil.wait_procs(every)
    run_side("bench.call", "holdfast", {"port": service.port, **arguments})
    service.stop()
    check(work, rows)
    return sum(service.asked.values()) - rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--kills", type=int, default=3)
    asked = parser.parse_args()
    of = {"concurrency": asked.concurrency}
    loop = rate_of(
        lambda service: run_side("bench.call", "loop", {"port": service.port, "rows": asked.rows, **of}), asked.rows
    )
    work = prepared(WORK / "call", asked.rows)
    ours = rate_of(
        lambda service: run_side("bench.call", "holdfast", {"port": service.port, "work": str(work), **of}), asked.rows
    )
    check(work, asked.rows)
    over = killed(prepared(WORK / "call", asked.rows), asked.rows, asked.concurrency, asked.kills)
    if over > asked.kills * asked.concurrency:
        sys.exit(f"{over} calls were made twice: more than {asked.kills} times {asked.concurrency}")
    print_result(
        {
            "calls_over": over,
            "rows_per_s": round(ours / loop, 3),
            "loop_rows_per_s": round(loop),
            "holdfast_rows_per_s": round(ours),
            "calls_over_max": asked.kills * asked.concurrency,
        }
    )


if __name__ == "__main__":
    main()
