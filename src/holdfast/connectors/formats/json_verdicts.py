"""Which JSON lines are surely bad, and why: each read on its own, its values compared with the declared types.

Python's scanner accepts everything that Arrow's reader accepts, except for a few spellings of NaN and infinity; lines
that hold those are left to Arrow.  The other way round some is left over until Arrow has named it: numbers beyond a
DOUBLE, and exponents of a DECIMAL.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from json.scanner import make_scanner
from typing import Any, cast

import pyarrow as pa
from pydantic_core import from_json

from holdfast.connectors.formats import convert
from holdfast.connectors.formats.blocks import SHOWN, Unreadable, cut_short, not_encoded
from holdfast.types.conversion import END_SECOND, FIRST_SECOND
from holdfast.types.from_text import limits, unfit

INCOMPLETE = "the object is not complete on its line, or something follows it"
SEVERAL = "a line must hold exactly one object"

TOO_LARGE = "Number too big"
"""How Arrow begins to say that a number is beyond a DOUBLE."""

_SURROGATE = "The surrogate pair in string is invalid"
_WORDS = {
    "Expecting value": "Invalid value",
    "Expecting ',' delimiter": "Missing a comma or a closing bracket",
    "Expecting ':' delimiter": "Missing a colon after a name of object member",
    "Expecting property name enclosed in double quotes": "Missing a name for object member",
    "Illegal trailing comma before end of object": "Missing a name for object member",
    "Illegal trailing comma before end of array": "Invalid value",
    "Unterminated string starting at": "Missing a closing quotation mark in string",
    "Invalid control character at": "Invalid encoding in string",
    "Invalid \\escape": "Invalid escape character in string",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string",
}


class _Number(str):
    """A number as it is written, where that counts: not a whole one."""

    __slots__ = ()


class _Twice:
    """Replaces the values of a member that an object names twice."""

    __slots__ = ()


_TWICE = _Twice()
_DIGITS = frozenset("0123456789")
_FLOAT_END = (2 - 2**-24) * 2.0**127
"""From here on a number is nearer to what follows the largest FLOAT."""
_NOTHING = type(None)
_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    _Number: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_DECODER = json.JSONDecoder(parse_float=_Number, parse_constant=_Number)


def _noting_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a repeated name, which Python's scanner does not report, is not a value of any type."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.update((name, _TWICE) for name, count in counts.items() if count > 1)
    return found


_NOTING_DECODER = json.JSONDecoder(object_pairs_hook=_noting_twice, parse_float=_Number, parse_constant=_Number)


def judge(
    contents: Sequence[bytes], schema: pa.Schema, error: Unreadable | None = None, *, encoding: str = "UTF-8"
) -> dict[int, str]:
    """Return why lines are surely bad, by index; see :class:`~holdfast.connectors.formats.blocks.Parser`."""
    said = "" if error is None else str(error)
    notes_twice = "specified twice" in said
    reasons: dict[int, str] = {}
    lines: Sequence[int] = range(len(contents))
    is_exact = TOO_LARGE in said or _is_exact(schema)
    if notes_twice or is_exact or (objects := _read_at_once(contents)) is None:
        lines, objects = _read_each(contents, reasons, not_encoded(encoding), notes_twice=notes_twice)
    columns = dict(zip(schema.names, _columns(objects, schema.names), strict=True))
    for field, values in zip(schema, columns.values(), strict=True):
        for at, problem in _of_column(field, values, columns.get(str(convert.unless_of(field)))):
            reasons.setdefault(lines[at], problem)
    if "surrogate" in said:
        for at, value in zip(lines, objects, strict=True):
            if at not in reasons and _has_half_surrogate(value):
                reasons[at] = _SURROGATE
    return reasons


def _columns(objects: list[dict[str, Any]], names: list[str]) -> list[Sequence[Any]]:
    """Return the values of each column; None where an object has no such member."""
    orders = set(map(tuple, objects))
    if len(orders) == 1:  # nearly always: one program wrote them
        (members,) = orders
        values = dict(zip(members, zip(*map(dict.values, objects), strict=True), strict=True))
        nothing = (None,) * len(objects)
        return [values.get(name, nothing) for name in names]
    return [[one.get(name) for one in objects] for name in names]


def _is_exact(schema: pa.Schema) -> bool:
    """Whether numbers must be kept as they are written: digits after the point count in a DECIMAL."""
    return any("decimal" in str(field.type) for field in schema)


def _read_at_once(contents: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Return what lines hold; None when one of them cannot be read.  Twice as fast as one by one.

    Python's garbage collector rests meanwhile: it would look through thousands of objects of which none is garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [from_json(content) for content in contents]
    except ValueError:
        return None
    finally:
        if was_enabled:
            gc.enable()


def _read_each(
    contents: Sequence[bytes], reasons: dict[int, str], not_text: str, *, notes_twice: bool
) -> tuple[list[int], list[dict[str, Any]]]:
    """Return which lines can be read and what they hold; say why the others cannot."""
    decoder: Any = _NOTING_DECODER if notes_twice else _DECODER
    scan = cast("Callable[[str, int], tuple[Any, int]]", make_scanner(decoder))
    lines: list[int] = []
    objects: list[dict[str, Any]] = []
    for at, content in enumerate(contents):
        try:
            text = content.decode()
            value, end = scan(text, 0)
        except UnicodeDecodeError:
            reasons[at] = not_text
        except (StopIteration, json.JSONDecodeError) as wrong:
            if not _is_of_arrow(content):
                message = getattr(wrong, "msg", "Expecting value")
                reasons[at] = _WORDS.get(message, message)
        except (RecursionError, ValueError):
            pass  # nested too deeply, or a number of too many digits: for Python, not for Arrow
        else:
            if end == len(text):
                lines.append(at)
                objects.append(value)
            elif not _is_of_arrow(content):
                reasons[at] = SEVERAL if text[end:].lstrip().startswith("{") else INCOMPLETE
    return lines, objects


def _is_of_arrow(content: bytes) -> bool:
    """Whether Arrow might take what Python refuses: ``Inf`` and ``-NaN``."""
    return b"Inf" in content or b"NaN" in content


def _of_column(field: pa.Field, values: Sequence[Any], excuses: Sequence[Any] | None) -> Iterable[tuple[int, str]]:
    """Yield the places of values that do not fit a column, and why; a row with a true excuse need not have one."""
    begin = f"column {field.name!r} is declared {field.type} and holds "
    shown_texts: dict[tuple[type, Any], str] = {}  # a drifted column holds few values, repeatedly
    for at, why in _misfits(field.type, values):
        value = values[at]
        if value is _TWICE:
            yield at, f"column {field.name!r} is specified twice"
            continue
        if type(value) in (dict, list):
            yield at, f"{begin}{shown(value)} ({why})"
            continue
        key = (type(value), value)
        if (text := shown_texts.get(key)) is None:
            text = shown_texts[key] = f"{begin}{shown(value)} ({why})"
        yield at, text
    if not field.nullable or excuses is not None:
        for at, value in enumerate(values):
            if value is None and not (excuses is not None and excuses[at] is True):
                yield at, f"{field.name!r} is declared NOT NULL and is null or missing"


def _misfits(data_type: pa.DataType, values: Sequence[Any]) -> Iterable[tuple[int, str]]:
    """Yield the places of values that are surely none of a type, and why."""
    expected = _expected(data_type)
    found = set(map(type, values))
    found.discard(_NOTHING)
    if odd := found - expected.taken:
        whys = {kind: _unlike(kind, expected) for kind in odd}
        for at, value in enumerate(values):
            if (kind := type(value)) in whys:
                yield at, whys[kind] or _unparsed(value, expected.data_type)
    if found - odd:
        yield from expected.misfits(values)


@dataclass(frozen=True)
class _Expected:
    """What a column of one type may hold.

    Parameters
    ----------
    data_type : pyarrow.DataType
        The declared type.
    word : str
        What belongs there, in Arrow's words.
    taken : frozenset of type
        Kinds of values that may be right.
    misfits : callable
        Finds values of these kinds that are not: (place, why).
    """

    data_type: pa.DataType
    word: str
    taken: frozenset[type]
    misfits: Callable[[Sequence[Any]], Iterable[tuple[int, str]]]


@lru_cache(maxsize=256)
def _expected(data_type: pa.DataType) -> _Expected:
    kinds = pa.types
    if kinds.is_boolean(data_type):
        return _Expected(data_type, "boolean", frozenset([bool]), _none)
    if kinds.is_integer(data_type):
        low, high = limits(data_type)

        def beyond(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
            for at, value in enumerate(values):
                if type(value) is int and not low <= value <= high:
                    yield at, _unparsed(value, data_type)

        return _Expected(data_type, "number", frozenset([int]), beyond)
    if kinds.is_floating(data_type):
        return _Expected(data_type, "number", frozenset([int, float, _Number]), _floats(data_type))
    if kinds.is_decimal(data_type):
        return _Expected(data_type, "number_or_string", frozenset([int, _Number, str]), _texts(data_type))
    if kinds.is_date(data_type):
        return _Expected(data_type, "string", frozenset([str]), _texts(data_type))
    if kinds.is_timestamp(data_type):
        return _Expected(data_type, "string", frozenset([str, int, float, _Number]), _times(data_type))
    if kinds.is_struct(data_type):
        return _Expected(data_type, "object", frozenset([dict]), _nest(data_type))
    if kinds.is_list(data_type):
        return _Expected(data_type, "array", frozenset([list]), _nest(data_type))
    return _Expected(data_type, "string", frozenset([str]), _none)


def _none(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
    return ()


def _floats(data_type: pa.DataType) -> Callable[[Sequence[Any]], Iterable[tuple[int, str]]]:
    """Find numbers that are beyond a type; of a line that was read without its numbers' texts not what is infinite."""
    end = _FLOAT_END if pa.types.is_float32(data_type) else sys.float_info.max

    def beyond(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
        for at, value in enumerate(values):
            if type(value) in (int, float) or (type(value) is _Number and value[-1] in _DIGITS):
                size = abs(_as_float(value))
                if size > end and not (type(value) is float and math.isinf(size)):
                    yield at, _unparsed(value, data_type)

    return beyond


def _unlike(kind: type, expected: _Expected) -> str:
    """Say what is where something else belongs; empty where a number does not fit by its value."""
    if kind is _Twice:
        return "a member is specified twice"
    if kind in (float, _Number) and expected.word == "number":
        return ""
    return f"a {_KINDS[kind]} where a {expected.word} belongs"


def _unparsed(value: Any, data_type: pa.DataType) -> str:
    return f"Failed to convert JSON to {data_type}, couldn't parse:{shown(value)}"


def _texts(data_type: pa.DataType) -> Callable[[Sequence[Any]], Iterable[tuple[int, str]]]:
    shown_type = str(data_type)

    def misfits(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
        texts = [str(value) if type(value) in (str, _Number, int) else None for value in values]
        for at in unfit(_as_array(texts), data_type).nonzero()[0].tolist():
            yield at, _unparsed_text(texts[at] or "", shown_type)

    return misfits


def _times(data_type: pa.DataType) -> Callable[[Sequence[Any]], Iterable[tuple[int, str]]]:
    shown_type = str(pa.timestamp("us"))

    def misfits(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
        texts = [value if type(value) is str else None for value in values]
        for at in unfit(_as_array(texts), data_type).nonzero()[0].tolist():
            yield at, _unparsed_text(texts[at] or "", shown_type)
        for at, value in enumerate(values) if set(map(type, values)) - {str, _NOTHING} else ():
            if type(value) in (int, float, _Number) and not FIRST_SECOND <= _as_float(value) < END_SECOND:
                yield at, convert.BEYOND

    return misfits


def _unparsed_text(text: str, shown_type: str) -> str:
    """Say that a text cannot be read; what is shown of it is ASCII, for it may hold half surrogates."""
    held = cut_short(encode_basestring_ascii(text[: SHOWN + 1])[1:-1], SHOWN)
    return f"Failed to parse string: '{held}' as a scalar of type {shown_type}"


def _as_float(value: float | _Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _nest(data_type: pa.DataType) -> Callable[[Sequence[Any]], Iterable[tuple[int, str]]]:
    def misfits_of_members(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
        for member in data_type:
            yield from _misfits(member.type, [v.get(member.name) if type(v) is dict else None for v in values])

    def misfits_of_elements(values: Sequence[Any]) -> Iterable[tuple[int, str]]:
        elements = [(at, one) for at, value in enumerate(values) if type(value) is list for one in value]
        for place, why in _misfits(data_type.value_type, [one for _, one in elements]):
            yield elements[place][0], why

    return misfits_of_members if pa.types.is_struct(data_type) else misfits_of_elements


def kinds_of_times(contents: Sequence[bytes], fields: Sequence[pa.Field]) -> list[tuple[bool, ...]]:
    """Return of each line which columns hold times as numbers; nothing if a line cannot be read."""
    try:
        objects = map(from_json, contents)
        return [tuple(_has_number(one.get(field.name), field.type) for field in fields) for one in objects]
    except ValueError:
        return []


def _has_number(value: Any, data_type: pa.DataType) -> bool:
    if type(value) is dict and pa.types.is_struct(data_type):
        return any(_has_number(value.get(member.name), member.type) for member in data_type)
    if type(value) is list and pa.types.is_list(data_type):
        return any(_has_number(one, data_type.value_type) for one in value)
    return type(value) in (int, float) and pa.types.is_timestamp(data_type)


def _as_array(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half surrogates, which Arrow refuses: a question mark is as wrong
        return pa.array([None if t is None else t.encode("utf-8", "replace").decode() for t in texts], pa.string())


def _has_half_surrogate(value: dict[str, Any]) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def shown(value: Any) -> str:
    """Return a value as JSON, cut short."""
    if type(value) is str:
        text = encode_basestring_ascii(value)
    elif type(value) is _Number:
        text = _number(value)
    elif type(value) is int:
        text = str(value)
    elif type(value) in (dict, list):
        text = json.dumps(_plain(value))
    else:
        text = json.dumps(value)
    return cut_short(text, SHOWN)


def _number(value: _Number) -> str:
    """Return a number as it is shown, however it was read: most lines are read without its text."""
    number = float(value)
    return json.dumps(number) if math.isfinite(number) else str(value)


def too_large(content: bytes) -> str:
    """Say which member of a line, a column or not, holds a number that is beyond a DOUBLE; empty where none does."""
    try:
        found = _path_to_too_large(loads(content))
    except (ValueError, RecursionError):
        return ""
    return "" if found is None else f"member {found[0]!r} holds {shown(found[1])} ({TOO_LARGE} to be stored in double)"


def _path_to_too_large(value: Any) -> tuple[str, _Number] | None:
    if type(value) is _Number and value[-1] in _DIGITS and math.isinf(float(value)):
        return "", value
    members = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for name, member in members:
        if (found := _path_to_too_large(member)) is not None:
            return f"{name}.{found[0]}".rstrip("."), found[1]
    return None


def _plain(value: Any) -> Any:
    if value is _TWICE:
        return "..."
    if type(value) is _Number:
        return float(value)
    if type(value) is dict:
        return {name: _plain(member) for name, member in value.items()}
    return [_plain(one) for one in value] if type(value) is list else value


def loads(content: bytes) -> Mapping[str, Any]:
    """Return a line as :func:`shown` likes it."""
    found: Mapping[str, Any] = _DECODER.decode(content.decode())
    return found
