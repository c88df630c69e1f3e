"""Bytes of logged files: local ones and those that fsspec reaches, checked against what was logged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.sources.discovery import file_system

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_COUNTED = 1 << 20


class Part(NamedTuple):
    """Part of a logged file that is read as a whole; travels to executors.

    Parameters
    ----------
    path : str
        Absolute path or URL.
    file_size : int
        Size in bytes when the file was logged.
    start, end : int
        Bytes or rows, see :class:`~holdfast.sources.file_log.Block`; ``end`` -1 is the file's end.
    """

    path: str
    file_size: int
    start: int
    end: int

    @property
    def shown(self) -> str:
        r"""The path as a text that can be written anywhere: bytes of a name that are not UTF-8 stand as ``\xff``.

        Python keeps such bytes as half surrogates, which neither a table nor a message can hold.
        """
        return self.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    def content(self) -> bytes:
        """Return the part's bytes, decompressed.

        Raises
        ------
        Corrupt
            If the file is gone or has another size than when it was logged.
        Unavailable
            If it cannot be read now.
        """
        with opened(self) as file:
            if (codec := compression(self.path)) is not None:
                return _decompressed(self, file, codec)
            file.seek(self.start)
            wanted = (self.file_size if self.end < 0 else self.end) - self.start
            data = file.read(wanted)
        if len(data) != wanted:
            raise _changed(self, f"only {self.start + len(data)} of {self.file_size} bytes can be read")
        return data

    def lines_before(self, offset: int) -> int:
        """Return the number of newlines before an offset: only asked for where a row is bad."""
        if compression(self.path) is not None:
            return self.content().count(b"\n", 0, offset)
        count = 0
        with opened(self) as file:
            while offset > 0 and (piece := file.read(min(_COUNTED, offset))):
                count += piece.count(b"\n")
                offset -= len(piece)
        return count

    def head(self, size: int) -> bytes:
        """Return the first bytes of the file."""
        with opened(self) as file:
            return file.read(size)


def compression(path: str) -> str | None:
    """Return the codec that a file's name shows, or None."""
    return _COMPRESSIONS.get(os.path.splitext(path)[1])


@contextmanager
def opened(part: Part) -> Iterator[BinaryIO]:
    """Open a logged file, after its size was compared; errors of the file system become ours."""
    try:
        with _open(part) as file:
            yield file
    except FileNotFoundError as error:
        raise _changed(part, "it is gone") from error
    except HoldfastError:
        raise
    except (pa.ArrowException, ValueError):
        raise
    except Exception as error:  # an fsspec file system raises what its library raises
        if isinstance(error, OSError) and error.errno is None:
            raise  # Arrow's word for bytes that do not follow their format
        raise Unavailable(
            f"{part.shown} cannot be read: {error}.",
            do="check that it is reachable and readable for the user that the executors run as, then start again.",
            participant=part.shown,
        ) from error


def is_as_found(part: Part) -> bool:
    """Whether the file is there and has the size that it had when it was found.

    Raises
    ------
    Unavailable
        If it cannot be opened now.
    """
    try:
        with opened(part):
            return True
    except Corrupt:
        return False


@contextmanager
def _open(part: Part) -> Iterator[Any]:
    if "://" not in part.path:
        with open(part.path, "rb", buffering=0) as raw:
            _check_size(part, os.fstat(raw.fileno()).st_size)
            yield _Whole(raw)
        return
    system, path = file_system(part.path)
    system.invalidate_cache(path)
    _check_size(part, int(system.size(path)))
    with system.open(path, "rb") as file:
        yield file


class _Whole:
    """An unbuffered file whose ``read`` returns all that was asked for: a raw one may return less, at 2 GB it does."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return bytes(self._raw.readall())
        data = self._raw.read(size)
        while len(data) < size and (more := self._raw.read(size - len(data))):
            data += more
        return bytes(data)


def _check_size(part: Part, size: int) -> None:
    if size != part.file_size:
        raise _changed(part, f"it has {size} bytes now")


def _decompressed(part: Part, file: Any, codec: str) -> bytes:
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec) as stream:
            return bytes(stream.read())
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(
            f"{part.shown} cannot be decompressed: {error}.",
            why=f"its name says {codec}, and its bytes do not follow.",
            do="restore the file, or give it a name without that ending.",
            participant=part.shown,
        ) from error


def _changed(part: Part, what: str) -> Corrupt:
    return Corrupt(
        f"{part.shown} is not the file that was logged: {what}.",
        why=f"it had {part.file_size} bytes when it was taken; its rows may have to be read again.",
        do="restore the file as it was.  Files must arrive complete (write under another name, then rename), "
        "must not be changed, and must stay until every sink holds their rows.",
        participant=part.shown,
    )
