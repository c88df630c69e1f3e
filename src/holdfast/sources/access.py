"""Bytes of logged files: local ones and those that fsspec reaches, checked against what was logged."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.sources.discovery import file_system
from holdfast.sources.file_identity import FileIdentity, of_facts, of_status

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
    identity : FileIdentity, optional
        What the file is held against; None: its size alone.
    has_links : bool
        Whether the file may be a symbolic link.
    """

    path: str
    file_size: int
    start: int
    end: int
    identity: FileIdentity | None = None
    has_links: bool = True

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
            If the file is gone, or is another one than when it was logged.
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
    """Open a logged file, after it was held against what was logged; errors of the file system become ours."""
    try:
        with _open(part) as file:
            yield file
    except FileNotFoundError as error:
        is_link = not part.has_links and os.path.islink(part.path)
        raise _changed(part, "a symbolic link stands in its place" if is_link else "it is gone") from error
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
    """Whether the file is there, and is the one that was found.

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
        with open(part.path, "rb", buffering=0, opener=None if part.has_links else _without_link) as raw:
            status = os.fstat(raw.fileno())
            _check(part, status.st_size, of_status(status))
            yield _Whole(raw)
        return
    system, path = file_system(part.path)
    system.invalidate_cache(path)
    facts = system.info(path)
    _check(part, int(facts["size"]), of_facts(facts))
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


def _without_link(path: str, flags: int) -> int:
    # Between the look and now somebody may have put a link in the place of a file that he may not read himself.
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise


def _check(part: Part, size: int, now: FileIdentity) -> None:
    if size != part.file_size:
        raise _changed(part, f"it has {size} bytes now")
    if part.identity is not None and not part.identity.is_of(now):
        raise _changed(part, f"it is another one of {size} bytes now ({now})")


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
    was = f"{part.file_size} bytes" + (f" ({part.identity})" if part.identity else "")
    return Corrupt(
        f"{part.shown} is not the file that was logged: {what}.",
        why=f"it had {was} when it was taken; its rows may have to be read again.",
        do=f"restore the file as it was{_proof(part)}.  Files must arrive complete (write under another name, then "
        "rename), must not be changed, and must stay until every sink holds their rows.",
        participant=part.shown,
    )


def _proof(part: Part) -> str:
    """Return how the user says that a file of this size holds the same rows."""
    if part.identity is None:
        return ""
    command = ""
    if part.identity.changed_ns is not None and "://" not in part.path:
        seconds, rest = divmod(part.identity.changed_ns, 10**9)
        command = f"touch -d @{seconds}.{rest:09d} {shlex.quote(part.shown)}, or "
    return f'; if it has the same rows, and only its time or version is another one: {command}write compare="size"'
