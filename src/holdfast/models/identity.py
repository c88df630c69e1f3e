"""Which code a model is of: a text that changes when its functions do, or what they refer to in their own module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from holdfast.graph.naming import callable_text

_PLAIN = (str, bytes, int, float, bool, type(None))


def code_digest(*functions: Any) -> str:
    """Return a digest of the code of functions, classes, or objects that are called.

    Of a class, its methods and plain attributes count; of an object, its own plain attributes, too.  What a function
    refers to counts where its own module defines it, and plain values there (a threshold).

    Examples
    --------
    >>> code_digest(lambda rows: rows) == code_digest(lambda rows: rows)
    True
    >>> code_digest(lambda rows: rows) == code_digest(lambda rows: rows[::-1])
    False
    """
    seen: set[int] = set()
    texts = [text for function in functions for text in ("", *_texts(function, seen))]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    if _is_plain(value):
        yield repr(value)
        return
    value = getattr(value, "__func__", value)  # a method
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, partial):
        yield callable_text(value)
        yield from _texts(value.func, seen)
    elif isinstance(value, FunctionType):
        yield callable_text(value)
        yield from _of_function(value, seen)
    elif isinstance(value, type):
        yield value.__qualname__
        for each in value.__mro__:
            if each.__module__ == value.__module__:
                yield from _of_members(each, seen)
    elif callable(value):
        yield from _texts(type(value), seen)
        yield from _of_members(value, seen)


def _of_members(of: Any, seen: set[int]) -> Iterator[str]:
    for name, member in sorted(getattr(of, "__dict__", {}).items()):
        member = member.fget if isinstance(member, property) else member
        is_made_by_python = name.startswith("__") and not isinstance(getattr(member, "__func__", member), FunctionType)
        is_code = isinstance(member, FunctionType | staticmethod | classmethod)
        if not is_made_by_python and (is_code or _is_plain(member)):
            yield f"{name}:"
            yield from _texts(member, seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    names = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed_over = {name: cell.cell_contents for name, cell in cells if _is_assigned(cell)}
    defaults = {name: value for name, value in (function.__kwdefaults__ or {}).items() if _is_plain(value)}
    if defaults:
        yield repr(sorted(defaults.items()))
    for name, value in sorted({**names, **closed_over}.items()):
        is_own = isinstance(value, FunctionType | type) and value.__module__ == function.__module__
        if is_own or _is_plain(value):
            yield f"{name}:"
            yield from _texts(value, seen)


def _is_assigned(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
