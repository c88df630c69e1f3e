"""CSV as columns, by Arrow's reader: without what becomes of a text where Arrow divides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import csv

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
    of a value here; an empty line before it is no record.

    Examples
    --------
    >>> read_csv(b'1,"a\r\nb"\n2,\n', ["id", "text"], {"text": pa.string()}).to_pydict()
    {'text': ['a\r\nb', None]}
    """
    if data.startswith(BYTE_ORDER_MARK):
        data = b"\n" + data
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
