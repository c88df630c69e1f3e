"""What a node says about the graph that ran before: its former name, and how its state is migrated.

It is read when a changed graph is compared with the one before, and has no part in any fingerprint: once the change has
happened it has no effect, and may stay or be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.naming import Origin

Migration = Callable[[Any], Any]
"""A state table in its old form -> in its new form; Arrow in, Arrow or a frame of another library out."""

_RIGHT = 'migrate=lambda table: table.append_column("n", ...), or migrate={"running": function}'


@dataclass(frozen=True)
class Evolution:
    """What a stateful operator says of itself in the graph before.

    Parameters
    ----------
    renamed_from : str
        Its name there; empty: the same.
    migrate : callable or mapping of str to callable, optional
        How its state tables are converted where they have another form: one function for the one table that
        differs, or table -> function.
    parts : str
        The argument that says what its parts are, where these have state by names of their own: part -> ``is``, and
        more.
    renamed_parts : mapping of str to str
        Part -> its name there.
    """

    renamed_from: str = ""
    migrate: Migration | Mapping[str, Migration] | None = None
    parts: str = ""
    renamed_parts: Mapping[str, str] = field(default_factory=dict)


NOTHING = Evolution()


def past_of(
    renamed_from: str | None, migrate: Migration | Mapping[str, Migration] | None, *, kind: str, built_at: Origin
) -> Evolution:
    """Return what a user said of an operator's past, checked.

    Raises
    ------
    InvalidPipeline
        If the name is not allowed, or ``migrate`` can be called for no table.
    """
    naming.checked_name(renamed_from, of=kind, built_at=built_at)
    each = [migrate] if migrate is not None and not isinstance(migrate, Mapping) else [*(migrate or {}).values()]
    if (isinstance(migrate, Mapping) and not migrate) or not all(callable(one) for one in each):
        raise InvalidPipeline(
            f"migrate={migrate!r} is not a migration.",
            why="it is a function from a state table to a state table, or a mapping of table names to such functions.",
            do=f"write for instance {_RIGHT}",
        )
    return Evolution(renamed_from or "", migrate)
