"""Where a row goes, in a sink whose rows say so: checked before the epoch is decided, and refused here.

A decision cannot be taken back.  A destination that the target does not take would keep the epoch out of it for ever,
and one that is not the sink's would change what belongs to somebody else: so every sink asks for the destinations of
its rows when it stages or admits them, and goes to no other than those that it declares (design/0002, "Where a row
goes").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow

_SHOWN = 60


def check_destinations(
    node: str, what: str, named: pa.Array, refusal: Callable[[Any], str | None], do: str
) -> None:  # fmt: skip
    """Raise :class:`BadRow` if a row names a destination that it cannot go to.

    Parameters
    ----------
    node : str
        Whose rows: the sink, and the column that names the destination.
    what : str
        What a destination is: "topic", "stream".
    named : pyarrow.Array
        Of each row the destination.
    refusal : callable
        Destination -> why no row may go there; None where rows may.  Asked once for each.
    do : str
        What to do about it.
    """
    try:
        names = pc.unique(named).to_pylist()
    except UnicodeDecodeError as error:
        raise refused_destination(node, what, error.object, "it is no text: not UTF-8", do) from error
    for name in names:
        if (why := refusal(name)) is not None:
            raise refused_destination(node, what, name, why, do)


def refused_destination(node: str, what: str, name: object, why: str, do: str) -> BadRow:
    """Return the error of a row that names a destination to which it cannot go."""
    is_long = isinstance(name, (str, bytes)) and len(name) > _SHOWN
    shown = f"{name[:_SHOWN]!r}..." if is_long else repr(name)  # type: ignore[index]
    return BadRow(f"{node}: a row cannot go to the {what} {shown}.", why=f"{why}.", do=do)
