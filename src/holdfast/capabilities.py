"""What a sink, a source or an operator can do besides what all of its kind can: a frozen set for each class.

Each such ability is a Protocol of its own, declared :func:`optional` beside the one that all of a kind have
(:mod:`holdfast.ports`), and asked in one way: ``offers(sink, Rewindable)``.  Before the first answer the class is
checked against all optional Protocols of its kind: having one in part, or a name that is nearly one of theirs, is an
error.  Otherwise a misspelled method would switch a guarantee off, and nobody would see it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import InvalidPipeline

if TYPE_CHECKING:
    from typing_extensions import TypeIs

P = TypeVar("P")

NEARLY = 0.85
"""From this share of equal letters on (difflib's ratio), one name is taken for a misspelling of another."""

_KINDS: dict[type, tuple[type, ...]] = {}
"""Optional Protocol -> those of the kinds that may have it."""

_KNOWN: dict[type, tuple[int, frozenset[type]]] = {}
"""Class -> how many optional Protocols were imported when it was checked, and those that it has."""

_MISSING = object()


def optional(*kinds: type) -> Callable[[type[P]], type[P]]:
    """Declare a Protocol as one that a class of these kinds may have: a decorator."""

    def register(port: type[P]) -> type[P]:
        _KINDS[port] = kinds
        return port

    return register


def offers(thing: object, port: type[P]) -> TypeIs[P]:
    """Return whether something has an optional Protocol; raise as :func:`capabilities`."""
    return port in capabilities(thing)


def capabilities(thing: object) -> frozenset[type]:
    """Return the optional Protocols that the class of something has.

    Raises
    ------
    InvalidPipeline
        If it has one of its kind in part, or a name that is nearly one of theirs.
    """
    checked, found = _KNOWN.get(type(thing), (0, frozenset()))
    if checked != len(_KINDS):
        known = dict(_KINDS)  # another thread may import more of them
        found = frozenset(port for port in known if _has(thing, port))
        for kind in {kind for kinds in known.values() for kind in kinds}:
            if _has(thing, kind):
                _check(thing, kind, [port for port, kinds in known.items() if kind in kinds])
        _KNOWN[type(thing)] = len(known), found
    return found


def _check(thing: object, kind: type, ports: Sequence[type]) -> None:
    asked = members(kind).union(*map(members, ports))
    unasked = [name for name in dir(type(thing)) if not name.startswith("_") and name not in asked]
    for port in ports:
        added = members(port) - members(kind)
        lacking = [name for name in sorted(added) if not _has_name(thing, name)]
        nearly = [(name, near[0]) for name in lacking if (near := get_close_matches(name, unasked, 1, NEARLY))]
        if nearly:
            why = f"{nearly[0][1]!r} is nearly {nearly[0][0]!r}, by which it would be a {port.__name__}."
        elif lacking and any(callable(getattr(port, name, None)) for name in added.difference(lacking)):
            why = f"to be a {port.__name__} it lacks {', '.join(map(repr, lacking))}."
        else:
            continue
        raise InvalidPipeline(
            f"{type(thing).__name__} offers a part of what a {kind.__name__} may offer, or misspells it.",
            why=why,
            do=f"name its methods as {port.__module__}.{port.__name__} does, and others otherwise.",
        )


@cache
def members(port: type) -> frozenset[str]:
    """Return the names that a Protocol consists of."""
    names = (vars(base).keys() | vars(base).get("__annotations__", {}).keys() for base in port.__mro__)
    return frozenset(name for each in names for name in each if not name.startswith("_"))


def _has(thing: object, port: type) -> bool:
    return all(_has_name(thing, name) for name in members(port)) and not any(
        getattr(type(thing), name, _MISSING) is None and callable(getattr(port, name, None)) for name in members(port)
    )


def _has_name(thing: object, name: str) -> bool:
    return inspect.getattr_static(thing, name, _MISSING) is not _MISSING
