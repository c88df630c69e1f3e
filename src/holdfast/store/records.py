"""Records as JSON values: frozen dataclasses, written and checked by pydantic as their annotations say.

A dataclass is the only description of its record: its fields are the keys, one that has a default may be missing, and
what a later version added is left out.  What JSON has no word for says by a mark in its annotation how it is written
(:data:`Base64`).

For records that only the driver reads.  Pydantic is imported by the first of them: that takes a tenth of a second,
which the driver has spent on its settings already, and workers and planning processes must not spend.  So what they
read is taken apart by hand: headers of directories, manifests, masks, floors, the records of buckets.  Nor is it for
what is written in every epoch, nor where a record is little more than something that others describe: an Arrow schema,
the value of a hook, a pipeline's ``spec()``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from holdfast.errors import Corrupt
from holdfast.store import sealed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


class _AsBase64:
    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(lambda data: base64.b64encode(data).decode())
        return core_schema.no_info_after_validator_function(
            base64.b64decode, core_schema.str_schema(), serialization=written
        )


Base64 = Annotated[bytes, _AsBase64]
"""Bytes, in JSON as standard base64."""


def plain(record: Any) -> dict[str, Any]:
    """Return a record as a JSON value.

    Examples
    --------
    >>> from holdfast.status import Wait
    >>> plain(Wait({"origin": "JFK"}, "weather", 7))
    {'key': {'origin': 'JFK'}, 'input': 'weather', 'since_us': 7, 'bound': None, 'waiting_rows': 0, 'is_time': False}
    """
    kind: Any = type(record)
    return cast("dict[str, Any]", _adapter(kind).dump_python(record, mode="json"))


def without_step_time(body: Mapping[str, T]) -> dict[str, T]:
    """Return what is written of an epoch without its batch time, which version 09f82eec kept there.

    Nobody reads it: what it told a replay, ``recent_ends`` tells of epochs since.

    Examples
    --------
    >>> without_step_time({"epoch": 7, "step_time": [7, 1700000000000000]})
    {'epoch': 7}
    """
    return {name: value for name, value in body.items() if name != "step_time"}


def read(kind: type[T], value: Any) -> T:
    """Return the record that a JSON value is.

    Raises
    ------
    ValueError
        If it is none: says where.

    Examples
    --------
    >>> from holdfast.status import Wait
    >>> read(Wait, {"key": {"origin": "JFK"}, "input": "weather", "since_us": 7, "mood": 1})
    Wait(key={'origin': 'JFK'}, input='weather', since_us=7, bound=None, waiting_rows=0, is_time=False)
    >>> read(Wait, {"key": {"origin": "JFK"}, "input": "weather"})
    Traceback (most recent call last):
    ValueError: since_us: field required
    """
    adapter = _adapter(cast("Any", kind))
    from pydantic import ValidationError

    try:
        return cast("T", adapter.validate_python(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def load(kind: type[T], data: bytes | None, *, key: str, says: str, do: str) -> T:
    """Return the record whose bytes :func:`holdfast.store.sealed.dump` gave.

    Parameters
    ----------
    kind : type
        Of the record.
    data : bytes, optional
        The bytes under the key; None if there are none.
    key : str
        Its place in the checkpoint.
    says, do : str
        For the error: what the record says ("it says where ..."), and what to do without it.

    Raises
    ------
    Corrupt
        If it is damaged, or absent.
    """
    try:
        return read(kind, sealed.load(data or b""))
    except ValueError as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.", why=f"{error}; {says}.", do=do, participant=key
        ) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # not above: see there

    return TypeAdapter(kind)
