"""Arrow batches through a model that each Python worker loads once: ``map_batches`` with ``setup``."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "batch_inference"

Model = Callable[[np.ndarray], np.ndarray]


def load_model() -> Model:
    """Read the weights: once per Python worker, not once per batch or epoch."""
    weights = np.linspace(-1.0, 1.0, 3)

    def score(features: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-(features @ weights)))

    return score


def classify(batch: pa.RecordBatch, model: Model) -> pa.RecordBatch:
    """Score all rows of a batch at once.  Each row's result depends on that row alone, wherever batches are cut."""
    features = np.stack([batch[column].to_numpy() for column in ("a", "b", "c")], axis=1)
    scores = model(features)
    return pa.record_batch({"frame": batch["frame"], "score": scores, "is_hit": scores > 0.5})


frames = hf.read.files(
    str(WORK / "in"), format="parquet", schema="frame BIGINT, a DOUBLE, b DOUBLE, c DOUBLE", name="frames"
)
scored = frames | hf.map_batches(
    classify, "frame BIGINT, score DOUBLE, is_hit BOOLEAN", setup=load_model, name="scored"
)
pipeline = hf.Pipeline("inference", scored | hf.write.files(WORK / "scores", name="scores"))


def main() -> None:
    """Write features, score them, and count."""
    (WORK / "in").mkdir(parents=True, exist_ok=True)
    if not (WORK / "in" / "frames.parquet").exists():
        values = np.random.default_rng(seed=1).normal(size=(3, 10_000))
        table = pa.table({"frame": np.arange(10_000), "a": values[0], "b": values[1], "c": values[2]})
        pyarrow.parquet.write_table(table, WORK / "in" / "frames.tmp")
        (WORK / "in" / "frames.tmp").rename(WORK / "in" / "frames.parquet")

    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())

    scores = pyarrow.dataset.dataset(WORK / "scores").to_table()
    print(f"{len(scores)} frames, {len(scores['frame'].unique())} different, {sum(scores['is_hit'].to_pylist())} hits")


if __name__ == "__main__":
    main()
