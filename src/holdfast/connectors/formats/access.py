"""Bytes of logged files: local ones and those that fsspec reaches, checked against what was logged.

Encodings of text files, declared or named by a byte order mark: what is read becomes UTF-8 before it is parsed.

A record with bytes that are not of the encoding stays one that is not UTF-8, and so is bad, alone.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from holdfast.connectors.formats.identity import FileIdentity, of_facts, of_status
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.store.sealed import is_of_data
from holdfast.types.from_text import BYTE_ORDER_MARK

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_READ = 1 << 20
_HELD = 1 << 25
_COUNTED: dict[FilePart, tuple[int, int]] = {}
"""The last file of which lines were counted in this process: up to which offset, and how many."""


class Undecodable(ValueError):
    """A file cannot be decompressed; the message says why."""

    def of(self, part: FilePart) -> Corrupt:
        """Return the error that users see."""
        return Corrupt(
            f"{part.shown} cannot be decompressed: {self}.",
            why=f"its name says {compression(part.path)}, but its content is something else.",
            do='leave the file as it is (one that was taken must not change) and write on_bad_row="reject" where the '
            "source is built: it goes on without the file, whose rows can come in again in a new one.",
            participant=part.shown,
        )


class FilePart(NamedTuple):
    """Part of a logged file that is read as a whole; sent to executors.

    Parameters
    ----------
    path : str
        Absolute path or URL.
    file_size : int
        Size in bytes when the file was logged.
    start, end : int
        Bytes or rows, see :class:`~holdfast.connectors.files.source.log.Block`; ``end`` -1 is the file's end.
    identity : FileIdentity, optional
        What the file is compared with; None: only its size.
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
        """The path as a text that can be written anywhere."""
        return shown(self.path)

    @property
    def is_local(self) -> bool:
        """Whether it is of this machine's file system, and fsspec is not asked."""
        return "://" not in self.path

    @property
    def is_compressed(self) -> bool:
        """Whether the file's name says that it is compressed as a whole."""
        return compression(self.path) is not None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start == 0 and self.end in (-1, self.file_size)

    @property
    def size(self) -> int:
        """Bytes of the part, compressed where the file is."""
        return (self.file_size if self.end < 0 else self.end) - self.start

    def content(self) -> bytes:
        """Return the part's bytes, of a file that is not compressed.

        Raises
        ------
        Corrupt
            If the file is gone, or is another one than when it was logged.
        Unavailable
            If it cannot be read now.
        """
        return b"".join(self.stream(self.size))

    def stream(self, size: int) -> Iterator[bytes]:
        """Yield the part's bytes, decompressed, ``size`` at a time.

        Raises
        ------
        Corrupt, Unavailable
            As :meth:`content`.
        Undecodable
            If the file cannot be decompressed.
        """
        with opened(self) as file:
            if (codec := compression(self.path)) is not None:
                yield from _decompress(file, codec, size)
                return
            file.seek(self.start)
            left = self.size
            while left > 0 and (data := file.read(min(size, left))):
                left -= len(data)
                yield data
        if left:
            raise _changed(self, f"only {self.start + self.size - left} of {self.file_size} bytes can be read")

    def verified(self, size: int) -> Iterator[bytes]:
        """Yield the bytes of :meth:`stream`, none of them before all could be decompressed.

        Notes
        -----
        A file that holds more than 32 MB is decompressed twice; what it holds is never held.
        """
        if not self.is_compressed:
            yield from self.stream(size)
            return
        held: list[bytes] = []
        total = 0
        for data in self.stream(size):
            total += len(data)
            held = [*held, data] if total <= _HELD else []
        yield from held if total <= _HELD else self.stream(size)

    def line_of(self, offset: int, line: int | None) -> int:
        """Return the line, from 1, of an offset in the file; ``line`` is that in the part, where it was counted."""
        return self.lines_before(offset) + 1 if line is None else self.lines_before(self.start) + line

    def lines_before(self, offset: int) -> int:
        """Return the number of newlines before an offset of a file that is not compressed.

        Notes
        -----
        Only asked for where a row is bad.  Blocks are read in order, so counting continues where it last stopped.
        """
        file_itself = self._replace(start=0, end=0)
        if not offset:
            return 0
        at, count = _COUNTED.get(file_itself, (0, 0))
        if at > offset:
            at, count = 0, 0
        with opened(self) as file:
            file.seek(at)
            while at < offset and (piece := file.read(min(_READ, offset - at))):
                count += piece.count(b"\n")
                at += len(piece)
        _COUNTED.clear()
        _COUNTED[file_itself] = at, count
        return count

    def head(self, size: int) -> bytes:
        """Return the first bytes of the file."""
        with opened(self) as file:
            return file.read(size)


def compression(path: str) -> str | None:
    """Return the codec that a file's name shows, or None."""
    return _COMPRESSIONS.get(os.path.splitext(path)[1])


@contextmanager
def opened(part: FilePart) -> Iterator[BinaryIO]:
    """Open a logged file, after comparing it with what was logged.

    Errors of the file system become ours where they are raised: one that comes from a reader is the content's.
    """
    with ExitStack() as stack:
        with _explain(part):
            file = stack.enter_context(_open(part))
        yield cast(BinaryIO, (_LocalFile if part.is_local else _LoggedFile)(part, file))


@contextmanager
def _explain(part: FilePart) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        is_link = not part.has_links and os.path.islink(part.path)
        raise _changed(part, "a symbolic link stands in its place" if is_link else "it is gone") from error
    except HoldfastError:
        raise
    except Exception as error:  # an fsspec file system raises what its library raises
        raise unavailable(part, error) from error


def is_as_found(part: FilePart) -> bool:
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


def unavailable(part: FilePart, error: Exception) -> Unavailable:
    """Return the error that users see where a file may be read another time."""
    do = "check that it is reachable and readable for the user that the executors run as, then start again."
    if isinstance(error, MemoryError):
        do = "give the executors, and the driver, more memory, then start again."
    return Unavailable(f"{part.shown} cannot be read: {error}.", do=do, participant=part.shown)


@contextmanager
def _open(part: FilePart) -> Iterator[Any]:
    if part.is_local:
        with open(part.path, "rb", buffering=0, opener=None if part.has_links else _without_link) as raw:
            status = os.fstat(raw.fileno())
            check(part, status.st_size, of_status(status))
            yield raw
        return
    system, path = file_system(part.path)
    system.invalidate_cache(path)
    facts = system.info(path)
    check(part, int(facts["size"]), of_facts(facts))
    with system.open(path, "rb") as file:
        yield file


class _LoggedFile:
    """A file whose errors name it, and whose ``read`` returns all that was asked for: a raw one may return less."""

    def __init__(self, part: FilePart, raw: Any) -> None:
        self._part = part
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _explain(self._part):
            return int(self._raw.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        with _explain(self._part):
            if size < 0:
                return bytes(self._raw.read())
            data = self._raw.read(size)
            while len(data) < size and (more := self._raw.read(size - len(data))):
                data += more
            return bytes(data)


class _LocalFile(_LoggedFile):
    """A local file, which Arrow reads into memory of its own: objects of Python's are new to the process each time."""

    def read_buffer(self, size: int) -> pa.Buffer:
        with _explain(self._part):
            buffer = pa.allocate_buffer(size, resizable=True)
            count = 0
            with memoryview(buffer) as view:
                while count < size and (more := self._raw.readinto(view[count:])):
                    count += more
            buffer.resize(count)
            return buffer


def _without_link(path: str, flags: int) -> int:
    # Since the check a user may have replaced the file by a link to one that he may not read himself.
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise


def check(part: FilePart, size: int, now: FileIdentity) -> None:
    """Hold what is there now against what was logged.

    Raises
    ------
    Corrupt
        If it is another file.
    """
    if size != part.file_size:
        raise _changed(part, f"it has {size} bytes now")
    if part.identity is not None and not part.identity.is_of(now):
        raise _changed(part, f"it is a different file of {size} bytes now ({now})")


def _decompress(file: Any, codec: str, size: int) -> Iterator[bytes]:
    try:
        yield from _of_bz2(file, size) if codec == "bz2" else _by_arrow(file, codec, size)
    except (OSError, pa.ArrowException) as error:
        if is_of_data(error):
            raise Undecodable(str(error).strip().rstrip(".")) from error
        raise


def _by_arrow(file: Any, codec: str, size: int) -> Iterator[bytes]:
    with pa.PythonFile(file, mode="r") as compressed, pa.CompressedInputStream(compressed, codec) as stream:
        while data := stream.read(size):
            yield bytes(data)


def _of_bz2(file: Any, size: int) -> Iterator[bytes]:
    """Yield what the members of a file hold; Arrow's stream fails where one between two others is empty."""
    member = bz2.BZ2Decompressor()
    while True:
        packed = b""
        if member.eof:
            if not (packed := member.unused_data or file.read(_READ)):
                return
            member = bz2.BZ2Decompressor()
        elif member.needs_input and not (packed := file.read(_READ)):
            raise OSError("Truncated compressed stream")
        if data := member.decompress(packed, size):
            yield data


def _changed(part: FilePart, what: str) -> Corrupt:
    was = f"{part.file_size} bytes" + (f" ({part.identity})" if part.identity else "")
    return Corrupt(
        f"{part.shown} is not the file that was logged: {what}.",
        why=f"it had {was} when it was taken; its rows may have to be read again, and new rows in it would never be "
        "read: put them into a new file.",
        do=f"restore the file as it was{_proof(part)}.  Files must arrive complete (write under another name, then "
        "rename), must not be changed, and must stay until every sink holds their rows.",
        participant=part.shown,
    )


def _proof(part: FilePart) -> str:
    """Return how the user says that a file of this size holds the same rows."""
    if part.identity is None:
        return ""
    command = ""
    if part.identity.changed_ns is not None and "://" not in part.path:
        seconds, rest = divmod(part.identity.changed_ns, 10**9)
        command = f"touch -d @{seconds}.{rest:09d} {shlex.quote(part.shown)}, or "
    return f'; if it has the same rows, and only its time or version differs: {command}write compare="size"'


def shown(path: str) -> str:
    r"""Return a path as text that can be written anywhere: bytes of a name that are not UTF-8 are written as ``\xff``.

    Python keeps such bytes as half surrogates, which neither a table nor a message can hold.
    """
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Scheme -> the extra that brings its file system."""


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    import fsspec  # not needed, and slow to import, where everything is local

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        scheme = url.partition("://")[0]
        raise InvalidPipeline(
            f"{scheme}://... cannot be read: {error}.",
            why="fsspec has no file system for that scheme, or the package that holds it is not installed.",
            do=f"pip install 'holdfast[{EXTRAS[scheme]}]'." if scheme in EXTRAS else "install what fsspec names.",
        ) from error
    return system, path


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
