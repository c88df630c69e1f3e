"""Encodings of text files, declared or named by a byte order mark: what is read becomes UTF-8 before it is parsed.

A record with bytes that are not of the encoding stays one that is not UTF-8, and so is bad, alone.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import lru_cache

from holdfast.errors import InvalidPipeline
from holdfast.types.csv_text import BYTE_ORDER_MARK

UTF_8 = "utf-8"

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),  # after that of UTF-32, which begins with it
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (BYTE_ORDER_MARK, UTF_8),
)
_OF_EITHER_ORDER = ("utf-16", "utf-32")
MARK_SIZE = 4
"""Bytes of the longest byte order mark."""

_SPOILED = "holdfast.spoiled"


def _spoil(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_SPOILED, _spoil)


def encoding_of(name: str) -> str:
    """Return the name by which Python knows an encoding.

    Raises
    ------
    InvalidPipeline
        If it is none of texts.

    Examples
    --------
    >>> encoding_of("latin-1"), encoding_of("UTF8"), encoding_of("utf-8-sig")
    ('iso8859-1', 'utf-8', 'utf-8')
    """
    try:
        "".encode(name)
        found = codecs.lookup(name)
        codecs.getincrementaldecoder(found.name)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidPipeline(
            f"encoding={name!r} is not an encoding of texts.",
            do='write one that Python knows: "utf-8", "utf-16", "latin-1", "cp1252".',
        ) from error
    return UTF_8 if found.name == "utf-8-sig" else found.name


def obstacle(head: bytes, encoding: str) -> str:
    r"""Return why a file cannot be read in an encoding, by its first bytes; empty if it can.

    Examples
    --------
    >>> obstacle(b"\xff\xfea\0", "utf-8").partition(":")[0]
    'it is utf-16 by its byte order mark (FF FE) and is read as utf-8'
    >>> obstacle(b"\xff\xfea\0", "utf-16")
    ''
    """
    mark, found = next(((mark, name) for mark, name in _MARKS if head.startswith(mark)), (b"", ""))
    if found and encoding not in (found, found[:6]):
        name = found[:6]
        return (
            f"it is {name} by its byte order mark ({mark.hex(' ').upper()}) and is read as {encoding}: "
            f"write encoding={name!r} where the source is built"
        )
    if not found and head and encoding in _OF_EITHER_ORDER:
        return f"it has no byte order mark: write encoding='{encoding}-le' or '{encoding}-be' where the source is built"
    return ""


@lru_cache(maxsize=8)
def is_bytewise(encoding: str) -> bool:
    """Whether a text may be cut at line ends before it is decoded: ASCII is ASCII, and each byte has its meaning."""
    if encoding == UTF_8:
        return True
    every = [codecs.getincrementaldecoder(encoding)("replace").decode(bytes([byte])) for byte in range(256)]
    return all(len(text) == 1 for text in every) and every[:128] == list(map(chr, range(128)))


def as_utf8(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield a text as UTF-8; what is not of its encoding becomes bytes that are not UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(_SPOILED)
    for chunk in chunks:
        if data := decoder.decode(chunk).encode(UTF_8, "surrogatepass"):
            yield data
    if data := decoder.decode(b"", final=True).encode(UTF_8, "surrogatepass"):
        yield data
