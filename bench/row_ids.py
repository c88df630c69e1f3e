"""How many row ids does one core make in a second?  Of positions, of a number, and of a text and a number.

CPU time of batches of 65 536 rows, without reading or writing anything.  ``ids_per_s`` is the slowest of the first two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bench.sides import print_result
from holdfast.types.row_ids import ids_of_columns, ids_of_numbers, key_of

ROWS = 65_536
BATCHES = 16
REPEATS = 5


def rate(make: Callable[[int], pa.Array]) -> float:
    """Return ids a second: the best of some repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.process_time()
        for batch in range(BATCHES):
            make(batch)
        best = min(best, time.process_time() - begin)
    return ROWS * BATCHES / best


def main() -> None:
    """Measure and print."""
    key = key_of("position", "flights", "2024/flights.json@0")
    numbers = [np.arange(batch * ROWS, (batch + 1) * ROWS, dtype=np.uint64) for batch in range(BATCHES)]
    whole = [pa.array(each.astype(np.int64)) for each in numbers]
    times = [each.cast(pa.timestamp("us", "UTC")) for each in whole]
    texts = [pa.array([f"flight {number % 5000}" for number in each.tolist()]) for each in numbers]
    rates = {
        "of_positions": rate(lambda batch: ids_of_numbers(key, numbers[batch], times[batch])),
        "of_a_number": rate(lambda batch: ids_of_columns(key, [whole[batch]], times[batch])),
        "of_a_text_and_a_number": rate(lambda batch: ids_of_columns(key, [texts[batch], whole[batch]], times[batch])),
    }
    slowest = min(rates["of_positions"], rates["of_a_number"])
    print_result({"ids_per_s": round(slowest), **{name: round(value) for name, value in rates.items()}})


if __name__ == "__main__":
    main()
