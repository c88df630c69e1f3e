"""Reasons for which rows leave an operator beside its rows, or not at all, as they are counted.

The reason in a row says everything (the timestamp, the bound); these are few, so that they can be added up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from holdfast.state.timeline import CLOSED

BELOW = "below the bound"
ENDED = "the input has ended"
REPEATED = "a repeated timestamp"
ALONE = "no row of another input"
FORGOTTEN = "its key was forgotten"
DUPLICATE = "a duplicate"

_MARK = ": "


def counted(what: str, of: Mapping[str, int]) -> dict[str, int]:
    """Return counts of a step: how many there are, and how many for each reason that there is.

    Examples
    --------
    >>> counted("late", {BELOW: 2, ENDED: 0})
    {'late': 2, 'late: below the bound': 2}
    """
    return {what: sum(of.values())} | {f"{what}{_MARK}{reason}": count for reason, count in of.items() if count}


def late_counts(bounds: npt.NDArray[np.int64]) -> dict[str, int]:
    """Return the counts of late rows, given the bound that each of them is below."""
    ended = int((bounds == CLOSED).sum())
    return counted("late", {BELOW: len(bounds) - ended, ENDED: ended})


def parted(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return counts without those by reason, and these: what -> reason -> count.

    Examples
    --------
    >>> parted({"late": 2, "late: below the bound": 2, "sets": 5})
    ({'late': 2, 'sets': 5}, {'late': {'below the bound': 2}})
    """
    whole, by_reason = dict[str, int](), dict[str, dict[str, int]]()
    for name, count in counts.items():
        what, mark, reason = name.partition(_MARK)
        if mark:
            by_reason.setdefault(what, {})[reason] = count
        else:
            whole[what] = count
    return whole, by_reason
