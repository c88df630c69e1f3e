"""The escape hatch: a function writes each epoch where Holdfast has no sink; a repeated epoch must do no harm."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "foreach_batch"


def save(rows: "DataFrame", epoch: int) -> None:
    """Overwrite a place named by the epoch: the same epoch, handed over again, replaces itself."""
    rows.coalesce(1).write.mode("overwrite").csv(str(WORK / "out" / f"epoch={epoch:06d}"), header=True)


numbers = hf.read.rows(
    [[{"n": 1}, {"n": 2}], [{"n": 3}], [{"n": 4}, {"n": 5}, {"n": 6}]],  # three epochs
    schema="n INT",
    name="numbers",
)
squares = numbers | hf.select("n", square="n * n", name="squares")
pipeline = hf.Pipeline("squares", squares | hf.write.foreach_batch(save, name="squares_csv"))


def main() -> None:
    """Run it, and show what the function wrote."""
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    print(f"guarantee: {pipeline.sinks[0].guarantee.value}")
    for directory in sorted((WORK / "out").glob("epoch=*")):
        lines = [line for file in directory.glob("*.csv") for line in file.read_text().splitlines()[1:]]
        print(directory.name, lines)


if __name__ == "__main__":
    main()
