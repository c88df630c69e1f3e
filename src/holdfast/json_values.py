"""Values made of dataclasses, as JSON values: what ``--json``, metrics and the page are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast


class Picture:
    """A dataclass that is shown: base of the values of a status."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with those of what is in them."""
        return cast("dict[str, Any]", as_json(self))


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_json(value: Any) -> Any:
    """Return a value made of dataclasses as a JSON value; members of an ``Enum`` by name, in small letters.

    A field whose metadata say ``is_shown: False`` is left out.
    """
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if f.metadata.get("is_shown", True)}
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(inner) for inner in value]
    return value
