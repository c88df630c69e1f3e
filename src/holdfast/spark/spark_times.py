"""What Spark's query spends around an epoch: asking the sources, planning, its logs; of the epochs that were looked at.

Spark tells only of its last trigger, and the question costs a call into the JVM.  So it is asked when somebody asks for
a status, and not in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.plan.epoch_times import Period

SAMPLES = 32
"""Of so many epochs the mean counts, the newest."""

_STAGES = {"look": ("latestOffset",), "log": ("walCommit", "commitOffsets")}


class SparkTimes:
    """Takes samples.  Any thread may; one at a time.

    Examples
    --------
    >>> times = SparkTimes()
    >>> spent = {"triggerExecution": 90, "addBatch": 50, "latestOffset": 20, "walCommit": 4, "commitOffsets": 6}
    >>> times.note({"batchId": 7, "durationMs": spent}, [Period(7, 0, 1.0, evaluate_s=0.04)])
    >>> {stage: round(seconds, 3) for stage, seconds in times.seconds().items()}
    {'look': 0.02, 'log': 0.01, 'plan': 0.02}
    """

    def __init__(self) -> None:
        self._samples: dict[int, dict[str, float]] = {}

    def note(self, progress: Mapping[str, Any], periods: Sequence[Period]) -> None:
        """Take in what Spark reported of its last trigger, if that was one of these epochs."""
        spent: Mapping[str, float] = progress.get("durationMs") or {}
        batch_id = progress.get("batchId", -1)
        of = next((period for period in reversed(periods) if period.batch_id == batch_id), None)
        if of is None or "addBatch" not in spent:
            return
        stages = {stage: sum(spent.get(each, 0) for each in names) / 1e3 for stage, names in _STAGES.items()}
        rest = spent.get("triggerExecution", 0) / 1e3 - of.call_s - sum(stages.values())
        samples = {**self._samples, batch_id: {**stages, "plan": max(0.0, rest)}}
        self._samples = dict(sorted(samples.items())[-SAMPLES:])

    def seconds(self) -> dict[str, float]:
        """Return how many seconds an epoch takes: ``look``, ``plan``, ``log``; nothing before the first sample."""
        samples = [*self._samples.values()]
        return {stage: sum(each[stage] for each in samples) / len(samples) for stage in samples[0]} if samples else {}
