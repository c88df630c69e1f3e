r"""Reasons of rejected rows, as they are counted: without values, so that they are few and can be added up.

The reason in a row says everything; where the value begins, it ends here.  What names a number (of fields) loses it.
Each is two substitutions in a syntax that Arrow and Spark share, as either may count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

SUBSTITUTIONS = ((r"(?s)(?: and holds | \(|:).*", ""), (r"\b[0-9][0-9,.]*\b", "N"))
"""Pattern and what replaces it, one after the other."""

KINDS_MAX = 20
"""So many reasons of a source are counted each by itself."""

OTHERS = "other reasons"
"""What the rows of all further reasons are counted under."""


def counted(reasons: pa.Array) -> dict[str, int]:
    """Return how many rows there are for each reason; nulls are none.

    Examples
    --------
    >>> counted(pa.array(["it has 3 fields where 2 are expected", "'v' is declared int64 and holds [7]", None]))
    {'it has N fields where N are expected': 1, "'v' is declared int64": 1}
    """
    kinds = reasons.drop_null()
    for pattern, instead in SUBSTITUTIONS:
        kinds = pc.replace_substring_regex(kinds, pattern, instead)
    found = kinds.value_counts()
    return limited(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


def limited(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the sums of counts by reason, of the first reasons; the others together.

    Examples
    --------
    >>> limited([("a", 1), ("b", 2), ("a", 3)])
    {'a': 4, 'b': 2}
    >>> limited((str(number), 1) for number in range(22))[OTHERS]
    2
    """
    found: dict[str, int] = {}
    for reason, count in counts:
        name = reason if reason in found or len(found) < KINDS_MAX else OTHERS
        found[name] = found.get(name, 0) + count
    return found


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two counts by reason."""
    return limited([*one.items(), *other.items()])
