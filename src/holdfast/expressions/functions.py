"""Functions of one value and literals in a columnar expression: texts, and times as texts, as Spark computes them.

A text is compared byte by byte (Spark's UTF8_BINARY) and counted in code points.  What would need another choice of
Unicode's tables is not here: ``lower`` and ``upper`` are known only where they are compared with a literal of ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import regex
from holdfast.expressions.kernels import TIMESTAMP, Constant, Expression, Fault

_STRING, _BOOL, _INT = pa.string(), pa.bool_(), pa.int32()


@dataclass(frozen=True)
class SplitText:
    """A text cut at a separator: what parts of it are taken from; null where the text is."""

    of: Expression
    separator: str
    limit: int
    """How many cuts there are at most; -1: as many as there are separators."""

    @property
    def type(self) -> pa.DataType:
        """A list of texts."""
        return pa.list_(_STRING)

    @property
    def nullable(self) -> bool:
        """Whether the text is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """False: of what can raise, no function is taken."""
        return False

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the lists of parts."""
        most = None if self.limit < 0 else self.limit
        return pc.split_pattern(self.of.compute(batch), self.separator, max_splits=most)


@dataclass(frozen=True)
class FunctionCall:
    """A function of one value and literals; null where the value is."""

    function: str
    """Its key in the table of this module."""
    of: Expression
    literals: tuple[Any, ...] = ()

    @property
    def type(self) -> pa.DataType:
        """What the function gives."""
        return _FUNCTIONS[self.function].gives

    @property
    def nullable(self) -> bool:
        """Whether the value is; what comes out of an array is always declared so."""
        return self.of.nullable or self.function in {"item of split", "split_part"}

    @property
    def can_raise(self) -> bool:
        """True of the item of an array, which may have fewer."""
        return self.function == "item of split"

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the function's values."""
        return _FUNCTIONS[self.function].compute(self.of.compute(batch), *self.literals)


class _Function(NamedTuple):
    takes: pa.DataType
    gives: pa.DataType
    compute: Callable[..., Any]


def _substring(texts: Any, place: int, count: int = 2**31 - 1) -> Any:
    if count <= 0:
        return pc.utf8_slice_codeunits(texts, 0, 0)
    if place >= 0:
        start = max(place - 1, 0)
        return pc.utf8_slice_codeunits(texts, start, start + count)
    return pc.utf8_slice_codeunits(texts, place, place + count if place + count < 0 else None)


def _place(texts: Any, part: str) -> Any:
    before = _item(pc.split_pattern(texts, part, max_splits=1), 0)
    place = pc.add(pc.utf8_length(before), pa.scalar(1, _INT))
    return pc.if_else(pc.match_substring(texts, part), place, pa.scalar(0, _INT))


def _item(lists: Any, index: int) -> Any:
    """Return an item of each list, from its end where negative; null where there is none."""
    begins, ends = lists.offsets[:-1], lists.offsets[1:]
    places = pc.add(begins if index >= 0 else ends, pa.scalar(index, _INT))
    is_there = pc.and_(pc.less(places, ends), pc.greater_equal(places, begins))
    return lists.values.take(pc.if_else(is_there, places, pa.scalar(None, _INT)))


def _split_part(parts: Any, number: int) -> Any:
    return _or_empty(_item(parts, number if number < 0 else number - 1), parts)


def _or_empty(found: Any, of: Any) -> Any:
    return pc.if_else(pc.is_valid(of), pc.fill_null(found, ""), pa.scalar(None, _STRING))


def _item_of_split(parts: Any, index: int) -> Any:
    found = _item(parts, index)
    if found.null_count > parts.null_count:
        raise Fault("INVALID_ARRAY_INDEX")
    return found


def _regexp_extract(texts: Any, pattern: str) -> Any:
    return _or_empty(pc.struct_field(pc.extract_regex(texts, pattern), regex.GROUP), texts)


_LOWER_TO_ASCII = {"\u212a": "k"}
_UPPER_TO_ASCII = dict(
    zip(
        "\u00df\u0131\u017f\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06",
        ["SS", "I", "S", "FF", "FI", "FL", "FFI", "FFL", "ST", "ST"],
        strict=True,
    )
)
"""What becomes ASCII alone; Unicode promises that of a letter this changes no more."""


def _case_mapping(to_ascii: dict[str, str], kernel: Callable[..., Any]) -> Callable[[Any], Any]:
    def compute(texts: Any) -> Any:
        if not pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
            for letter, ascii_text in to_ascii.items():
                texts = pc.replace_substring(texts, letter, ascii_text)
        return kernel(texts)

    return compute


_TWO_DIGITS = pa.array([f"{number:02}" for number in range(60)])
_THREE_DIGITS = pa.array([f"{number:03}" for number in range(1000)])
_FOUR_DIGITS = pa.array([f"{number:04}" for number in range(10000)])


def _year(times: Any) -> Any:
    years = pc.year(times)
    least, most = pc.min_max(years).as_py().values()
    if least is None or (least >= 0 and most <= 9999):
        return _FOUR_DIGITS.take(years)
    digits = pc.utf8_lpad(pc.cast(pc.abs(years), _STRING), 4, "0")
    sign = pc.if_else(pc.less(years, 0), "-", pc.if_else(pc.greater(years, 9999), "+", ""))
    return pc.binary_join_element_wise(sign, digits, "")


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "yyyy": _year,
    "MM": lambda times: _TWO_DIGITS.take(pc.month(times)),
    "dd": lambda times: _TWO_DIGITS.take(pc.day(times)),
    "HH": lambda times: _TWO_DIGITS.take(pc.hour(times)),
    "mm": lambda times: _TWO_DIGITS.take(pc.minute(times)),
    "ss": lambda times: _TWO_DIGITS.take(pc.second(times)),
    "SSS": lambda times: _THREE_DIGITS.take(pc.millisecond(times)),
}
"""Fields of digits in a format of ``date_format``."""
_FORMAT = re.compile(r"([A-Za-z])\1*|[-/:., _]+")


_UNITS = {"yyyy": "day", "MM": "day", "dd": "day", "HH": "hour", "mm": "minute", "ss": "second", "SSS": "millisecond"}
"""How finely a field looks at a time."""
_FLOORS_SINCE = -(2**62)
"""Microseconds; the floor of the least times of all is less than a number of 64 bits can be."""


def _date_format(times: Any, *parts: str) -> Any:
    """Return times as texts; those that differ in no field are written once."""
    units = {_UNITS[part] for part in parts if part in _UNITS}
    unit = next((unit for unit in reversed(_UNITS.values()) if unit in units), "day")
    least = pc.min(times.cast(pa.int64())).as_py()
    if least is None or least < _FLOORS_SINCE:
        return _texts_of(times, parts)
    floors = pc.floor_temporal(times.cast(pa.timestamp("us")), unit=unit).dictionary_encode()
    if len(floors.dictionary) > len(times) // 2:
        return _texts_of(times, parts)
    return _texts_of(floors.dictionary.cast(TIMESTAMP), parts).take(floors.indices)


def _texts_of(times: Any, parts: Sequence[str]) -> Any:
    texts = [_FIELDS[part](times) if part in _FIELDS else pa.scalar(part) for part in parts]
    return pc.binary_join_element_wise(*texts, "")


_FUNCTIONS = {
    "substring": _Function(_STRING, _STRING, _substring),
    "instr": _Function(_STRING, _INT, _place),
    "trim": _Function(_STRING, _STRING, lambda texts: pc.utf8_trim(texts, characters=" ")),
    "ltrim": _Function(_STRING, _STRING, lambda texts: pc.utf8_ltrim(texts, characters=" ")),
    "rtrim": _Function(_STRING, _STRING, lambda texts: pc.utf8_rtrim(texts, characters=" ")),
    "replace": _Function(_STRING, _STRING, pc.replace_substring),
    "split_part": _Function(_STRING, _STRING, _split_part),  # of its parts, here and in the next one
    "item of split": _Function(_STRING, _STRING, _item_of_split),
    "regexp_extract": _Function(_STRING, _STRING, _regexp_extract),
    "rlike": _Function(_STRING, _BOOL, pc.match_substring_regex),
    "like": _Function(_STRING, _BOOL, pc.match_like),
    "startswith": _Function(_STRING, _BOOL, pc.starts_with),
    "endswith": _Function(_STRING, _BOOL, pc.ends_with),
    "contains": _Function(_STRING, _BOOL, pc.match_substring),
    "lower": _Function(_STRING, _STRING, _case_mapping(_LOWER_TO_ASCII, pc.ascii_lower)),
    "upper": _Function(_STRING, _STRING, _case_mapping(_UPPER_TO_ASCII, pc.ascii_upper)),
    "date_format": _Function(TIMESTAMP, _STRING, _date_format),
}

COMPARED_ONLY = frozenset({"lower", "upper"})
"""What is exact only where it is compared with a text of ASCII."""

NAMES = frozenset(_FUNCTIONS) - {"item of split", "rlike", "like"} | {"substr", "locate"}
"""Functions by the names that an expression calls them by."""

_NO_PATTERN = re.compile(r"[A-Za-z0-9 !\"#%&',/:;<=>@_`~-]+")
"""What a regular expression of Java takes for itself."""


def call_by_name(name: str, operands: Sequence[Expression]) -> FunctionCall | None:
    """Return the call of a function by its name in SQL; None when it is not surely as Spark's."""
    if name == "locate":
        operands = operands[::-1] if len(operands) == 2 else ()
    if not operands or isinstance(operands[0], Constant):
        return None
    literals = tuple(one.value for one in operands[1:] if isinstance(one, Constant) and one.type in (_STRING, _INT))
    if len(literals) < len(operands) - 1:
        return None
    return call_of({"substr": "substring", "locate": "instr"}.get(name, name), operands[0], literals)


def call_of(function: str, of: Expression, literals: tuple[Any, ...]) -> FunctionCall | None:
    """Return the call of a function of the table; None when it is not surely as Spark's."""
    if of.type != _FUNCTIONS[function].takes or of.can_raise:
        return None
    match function, literals:
        case "substring", (int(),) | (int(), int()):
            pass
        case (("trim" | "ltrim" | "rtrim" | "lower" | "upper"), ()):
            pass
        case ("instr", (str() as part,)) | ("replace", (str() as part, str())) if part:
            pass
        case (("startswith" | "endswith" | "contains" | "like"), (str(),)):
            pass
        case "split_part", (str() as separator, int() as number) if separator and number:
            return FunctionCall(function, SplitText(of, separator, max(number, -1)), (number,))
        case "item of split", (str() as separator, int() as index) if _NO_PATTERN.fullmatch(separator):
            return FunctionCall(function, SplitText(of, separator, index + 1), (index,))
        case "regexp_extract", (str() as pattern, *rest):
            group = rest[0] if rest else 1
            text = regex.for_re2(pattern, group) if len(rest) < 2 and isinstance(group, int) and group >= 0 else None
            return None if text is None else FunctionCall(function, of, (text,))
        case "rlike", (str() as pattern,):
            text = regex.for_re2(pattern, None)
            return None if text is None else FunctionCall(function, of, (text,))
        case "date_format", (str() as pattern,):
            parts = tuple(one.group() for one in _FORMAT.finditer(pattern))
            if (
                not parts
                or "".join(parts) != pattern
                or any(part[0].isalpha() and part not in _FIELDS for part in parts)
            ):
                return None
            return FunctionCall(function, of, parts)
        case _:
            return None
    return FunctionCall(function, of, literals)
