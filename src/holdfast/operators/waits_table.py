"""The table of waits of operators whose inputs wait for each other: which key, for which input, since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.state.timeline import UNBOUNDED, Ints


@dataclass(frozen=True)
class Waits:
    """Pairs of a key and an input that it waits for; the arrays are of one length.

    Parameters
    ----------
    key, place : array of int64
        Row of the key in the table of keys, and place of the input.
    since_us : array of int64
        Batch time of the epoch since which it waits, microseconds.
    waiting_rows : array of int64
        How many rows wait.
    """

    key: Ints
    place: Ints
    since_us: Ints
    waiting_rows: Ints

    def table(self, keys: pa.Table, inputs: Sequence[str], bounds: Ints) -> pa.Table:
        """Return them, the longest wait first, then by key and in the order of the inputs.

        Parameters
        ----------
        keys : pa.Table
            Key columns alone, ascending.
        inputs : sequence of str
            Names of the inputs.
        bounds : array of int64, keys x inputs
            Ticks; ``UNBOUNDED`` where an input has said nothing.

        Returns
        -------
        pa.Table
            The key columns; ``input``; ``since_us``; ``bound``, ticks (null: nothing was ever said);
            ``waiting_rows``.
        """
        longest_first = np.lexsort((self.place, self.key, self.since_us))
        key, place = self.key[longest_first], self.place[longest_first]
        bound = bounds[key, place]
        return pa.table(
            {
                **{name: keys.column(name).take(pa.array(key)) for name in keys.column_names},
                "input": pa.array(np.array(inputs, object)[place], pa.string()),
                "since_us": pa.array(self.since_us[longest_first]),
                "bound": pa.array(bound, pa.int64(), mask=bound == UNBOUNDED),
                "waiting_rows": pa.array(self.waiting_rows[longest_first]),
            }
        )
