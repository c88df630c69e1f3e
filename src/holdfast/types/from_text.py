"""Texts as values of a declared type: which are surely none, and the values of the others.

Arrow converts a column as a whole or not at all: it names one value that does not fit, and stops there.  Here all
of them are found at once (:func:`unfit`).  What is found is never a value that somebody wrote there; the few kinds of
others that are not found are left to Arrow itself.

Arrow's cast alone takes more than that for values: hexadecimal digits, infinity for what is beyond a type, a year 0,
and of a decimal with many digits any number.  So nothing outside this module casts a text that others have written.

CSV as columns, by Arrow's reader: without what becomes of a text where Arrow divides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from holdfast.types.conversion import check_range

Mask = npt.NDArray[np.bool_]

_DAY = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d+)?)?)?(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?"
_TIMESTAMP = rf"^{_DAY}([ T]{_TIME})?$"
_DATE = rf"^{_DAY}$"
_NOT_FOURTH = r"([02468][1235679]|[13579][01345789])"
_NO_SUCH_DAY = rf"^(0000|\d{{4}}-(02-3|0[469]-31|11-31)|(\d\d{_NOT_FOURTH}|{_NOT_FOURTH}00)-02-29)"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SCALABLE = r"^[^.eE]*(\.[^eE]{0,38})?([eE][+-]?0*([0-2]?\d|3[0-8]))?$"
"""What Arrow scales by a power of ten that it knows: where digits and exponent lead past these, it makes any number."""
_NO_NUMBER = r"^[+-]?(?i:nan(\(\w*\))?|inf(inity)?)$"
_ODD_NAN = r"^([+-](?i:nan)|(?i:nan)\()"
_BOOL = "^(true|True|TRUE|1|false|False|FALSE|0)$"
_FIRST = 10
_SPACES = " \t"
_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_UTC = pa.timestamp("us", tz="UTC")
_DIGITS = 38  # that 128 bits hold, whatever they are
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789.+-")] = True
_SHOWN = 80


class Unfit(pa.ArrowInvalid):  # type: ignore[misc]
    """Some value of a column does not fit its declared type."""


def from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as values of a type.

    A time without a zone is UTC, and a TIMESTAMP_NTZ has none; digits after the microseconds are cut off.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a text is none: shows it.

    Examples
    --------
    >>> from_text(pa.array(["007", None, "-1"]), pa.int8()).to_pylist()
    [7, None, -1]
    >>> from_text(pa.array(["0x10"]), pa.int64())
    Traceback (most recent call last):
    holdfast.types.from_text.Unfit: invalid value '0x10'
    """
    kinds = pa.types
    if not kinds.is_string(texts.type):
        texts = texts.cast(pa.string())
    if kinds.is_timestamp(kind):
        if kind.tz is None and _find(texts, _ZONE).any():
            raise Unfit("a text has a time zone, and its column none")
        values = timestamps_from_text(texts, kind)
        check_range(values)
        return values
    _check(texts, kind)
    if kinds.is_floating(kind) and _find(texts, _ODD_NAN).any():
        raise Unfit("invalid value: NaN has neither a sign nor a payload")
    if kinds.is_integer(kind) or kinds.is_decimal(kind):
        return numbers_from_text(texts, kind).cast(kind)
    return texts.cast(kind)


def timestamps_from_text(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return texts as timestamps of type ``wanted`` (microseconds, with or without UTC).

    Raises
    ------
    Unfit
        If some text is not a time.
    """
    candidate = text
    for convert in (_zoned, _zoneless, _mix, _cut_off, _zoned, _zoneless, _mix):
        if convert is _mix and unfit(text, wanted).any():
            break  # the ways that are left cost more than the look
        if convert is _cut_off:
            candidate = _cut_off(text)
            continue
        try:
            return convert(candidate).cast(wanted)
        except pa.ArrowInvalid as error:
            reason = str(error)
    raise Unfit(reason.partition(". If")[0])


def _zoned(text: pa.Array) -> pa.Array:
    return text.cast(_UTC)


def _zoneless(text: pa.Array) -> pa.Array:
    return text.cast(pa.timestamp("us")).cast(_UTC)


def _cut_off(text: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(text, _BEYOND_MICROSECONDS, r"\1")


def _mix(text: pa.Array) -> pa.Array:
    has_zone = pc.match_substring_regex(text, _ZONE)
    nothing = pa.scalar(None, pa.string())
    zoned = _zoned(pc.if_else(has_zone, text, nothing))
    return pc.coalesce(zoned, _zoneless(pc.if_else(has_zone, nothing, text)))


def numbers_from_text(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return texts as integers or decimals; these of more bits where those of the wanted type may overflow.

    Arrow takes hexadecimal digits for integers.  A decimal it scales by a table of powers of ten, and reads past its
    end where many digits or an exponent lead there: what comes out is any number.  So what is more than plain digits is
    looked at first.
    """
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    if longest > _DIGITS or not _PLAIN[np.frombuffer(text.buffers()[2] or b"", np.uint8)].all():
        text = trimmed(text, wanted)
        _check(text, wanted)
    return text.cast(pa.decimal256(wanted.precision, wanted.scale) if may_overflow(wanted) else wanted)


def may_overflow(data_type: pa.DataType) -> bool:
    """Return whether Arrow may read another number into a decimal type than the one that is written.

    It takes as many digits as the type has, then appends those of the scale, modulo 2**128.
    """
    return bool(pa.types.is_decimal128(data_type)) and data_type.precision + data_type.scale > _DIGITS


def _check(texts: pa.Array, kind: pa.DataType) -> None:
    is_unfit = unfit(texts, kind)
    if is_unfit.any():
        text = texts[int(is_unfit.argmax())].as_py()
        raise Unfit(f"invalid value '{text if len(text) <= _SHOWN else f'{text[: _SHOWN - 3]}...'}'")


def unfit(texts: pa.Array, kind: pa.DataType) -> Mask:
    """Return which texts are surely no value of a type; nulls are not.

    Parameters
    ----------
    texts : pyarrow.Array
        Texts, without the spaces that do not count (:func:`trimmed`).
    kind : pyarrow.DataType
        What they are declared to be.

    Examples
    --------
    >>> unfit(pa.array(["2024-02-29", "2023-02-29", "noon", None]), pa.date32()).tolist()
    [False, True, True, False]
    >>> unfit(pa.array(["127", "128", "0x7F", "1.0"]), pa.int8()).tolist()
    [False, True, True, True]
    """
    kinds = pa.types
    if kinds.is_integer(kind):
        return _is_no_integer(texts, kind)
    if kinds.is_floating(kind):
        return _is_no_float(texts, kind)
    if kinds.is_boolean(kind):
        return ~_matches(texts, _BOOL)
    if kinds.is_decimal(kind):
        fits = _matches(texts, _NUMBER) & _matches(texts, _SCALABLE)
        return ~(fits & _matches(texts, _decimal(kind.precision, kind.scale)))
    if kinds.is_date(kind):
        return ~_matches(texts, _DATE) | _find(texts, _NO_SUCH_DAY)
    if kinds.is_timestamp(kind):
        return ~_matches(texts, _TIMESTAMP) | _find(texts, _NO_SUCH_DAY)
    return np.zeros(len(texts), np.bool_)


def trimmed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts of CSV fields without the spaces that Arrow skips in fields of a type."""
    kinds = pa.types
    trims = (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_date)
    return pc.ascii_trim(texts, _SPACES) if any(test(kind) for test in trims) else texts


def all_fit(texts: pa.Array, kind: pa.DataType) -> bool:
    """Whether texts are surely all values of a type, which takes less time; False says nothing."""
    kinds = pa.types
    if kinds.is_timestamp(kind):
        wanted = [pa.timestamp("us", "UTC"), pa.timestamp("us")]
    elif kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_date(kind):
        wanted = [kind]
    else:
        return bool(kinds.is_string(kind))
    for one in wanted:
        try:
            texts[:_FIRST].cast(one)  # where all are wrong, Arrow says so of each of them
            values = texts.cast(one)
        except pa.ArrowInvalid:
            continue
        # What Arrow takes nevertheless: hexadecimal digits, a year 0, and for infinity what is beyond a type.
        if kinds.is_floating(kind):
            return not _as_mask(pc.is_inf(values), null=False).any()
        return not _find(texts, "[xX]" if kinds.is_integer(kind) else "^0000").any()
    return False


@lru_cache(maxsize=64)
def _decimal(precision: int, scale: int) -> str:
    """Return what a decimal may look like: with an exponent anything, else no digit too many that counts."""
    return rf"^[+-]?(.*[eE].*|0*\d{{0,{precision - scale}}}(\.\d{{0,{scale}}}0*)?)$"


def _is_no_integer(texts: pa.Array, kind: pa.DataType) -> Mask:
    is_decimal = _matches(texts, r"^-?\d{1,37}$", null=False)
    # 38 digits and more with as many zeros before them are left to Arrow.
    mask = ~(is_decimal | _matches(texts, r"^-?0\d*$"))
    if is_decimal.any():
        numbers = pc.if_else(pa.array(is_decimal), texts, pa.scalar(None, pa.string())).cast(pa.decimal128(38, 0))
        low, high = (pa.scalar(limit, pa.decimal128(38, 0)) for limit in limits(kind))
        fits = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
        mask |= ~_as_mask(fits, null=True)
    return mask


def _is_no_float(texts: pa.Array, kind: pa.DataType) -> Mask:
    is_number = _matches(texts, _NUMBER, null=False)
    mask = ~(is_number | _matches(texts, _NO_NUMBER))
    if is_number.any():
        numbers = pc.if_else(pa.array(is_number), texts, pa.scalar(None, pa.string())).cast(kind)
        mask |= _as_mask(pc.is_inf(numbers), null=False)
    return mask


def limits(kind: pa.DataType) -> tuple[int, int]:
    """Return the lowest and the highest value of a type of integers."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _matches(texts: pa.Array, pattern: str, *, null: bool = True) -> Mask:
    return _as_mask(pc.match_substring_regex(texts, pattern), null=null)


def _find(texts: pa.Array, pattern: str) -> Mask:
    return _as_mask(pc.match_substring_regex(texts, pattern), null=False)


def _as_mask(found: pa.Array, *, null: bool) -> Mask:
    mask: Mask = pc.fill_null(found, null).to_numpy(zero_copy_only=False)
    return mask


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_csv(
    data: bytes, columns: Sequence[str], types: Mapping[str, pa.DataType], *, separator: str = ",", **conversion: Any
) -> pa.Table:
    r"""Return whole records as columns.  An empty field is null, a quoted empty one an empty text.

    Parameters
    ----------
    data : bytes
        Records, not empty.
    columns : sequence of str
        Columns of the records, in their order.
    types : mapping of str to pyarrow.DataType
        The columns wanted, and what they are read as.
    separator : str
        One ASCII character.
    **conversion
        Further ``pyarrow.csv.ConvertOptions``.

    Raises
    ------
    pyarrow.ArrowInvalid
        If some record cannot be read.

    Notes
    -----
    The text is one block of Arrow's: where it divides one itself, it drops the LF at the begin of a block if the block
    before ends in CR, also within quotes (apache/arrow#51368).  It skips a byte order mark at the begin, which is one
    of a value here; an empty line before it is no record.  An empty field at the end of the text is for it the empty
    text, and not null, if the field before is in quotes; with a line end behind it is null.

    Examples
    --------
    >>> read_csv(b'1,"a\r\nb"\n2,\n', ["id", "text"], {"text": pa.string()}).to_pydict()
    {'text': ['a\r\nb', None]}
    >>> read_csv(b'1,"a",', ["id", "text", "more"], {"more": pa.string()}).to_pydict()
    {'more': [None]}
    """
    if data.startswith(BYTE_ORDER_MARK):
        data = b"\n" + data
    if data.endswith(separator.encode()):
        data += b"\n"
    return csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(columns)),
        parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **conversion,
        ),
    )
