"""A small pipeline that a replica runs while it waits: the JVM and this process load what a run needs of them.

A session alone leaves about 1.8 s to the first run of a JVM: classes of streaming queries and of data sources, Python
workers, modules of this process.  The rehearsal reads generated rows and writes them to a file of its own; it is of the
kind of the pipeline, and touches neither its checkpoint nor its sources nor its sinks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.plan.cutting import has_state
from holdfast.spark.launch import stop_directory

log = logging.getLogger("holdfast.replica")

_EPOCHS = 3
_PATIENCE_S = 60.0


def rehearse(pipeline: hf.Pipeline, options: Mapping[str, Any]) -> None:
    """Run a few epochs of a pipeline of the same kind, in the session that a run will have; failing, say so.

    Parameters
    ----------
    pipeline : Pipeline
        What is to be run.
    options : mapping of str to Any
        The arguments of its start.
    """
    if pipeline.hooks.on_setup is not None:
        return  # it may set what Spark reads, and is called when the run begins
    given = {name: options[name] for name in ("settings", "master") if options.get(name) is not None}
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        with stop_directory.temporary() as place:
            run = _of_kind(pipeline, place).start(checkpoint=f"{place}/checkpoint", trigger=hf.every("10 ms"), **given)
            end = time.monotonic() + _PATIENCE_S
            while run.is_active and run.status().epoch < _EPOCHS and time.monotonic() < end:
                time.sleep(0.01)
            run.stop()
            run.wait()
    except Exception as error:  # whatever it is, the run meets it too, and says so
        log.warning("the rehearsal failed; a takeover takes some seconds more: %s", str(error).splitlines()[:1])
    finally:
        logging.disable(before)


def _of_kind(pipeline: hf.Pipeline, place: Path) -> hf.Pipeline:
    rows = hf.read.rate(rows_per_second=1000, start="2020-01-01", max_rows_per_epoch=10, name="rows")
    kinds = {node.kind for node in pipeline.nodes}
    if "map" in kinds:
        rows = rows | hf.map(lambda frame: frame, name="same")
    if has_state(pipeline):
        rows = rows | hf.distinct("value", "1 s", name="once")
    return hf.Pipeline("rehearsal", rows | hf.write.sqlite(place / "rows.db", table="rows", name="table"))
