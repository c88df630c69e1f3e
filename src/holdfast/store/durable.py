"""Files that are whole or absent: written aside, synced, then renamed or linked into place.

Invariants: a name appears only when its whole content is on disk; what returned survives a power cut; a
temporary file is locked by its writer for as long as that process lives, so any process that finds one unlocked may
remove it.  Everything created here is accessible to its user only, whatever the umask: it contains rows and state.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from holdfast.errors import REPORT, HoldfastError, InDoubt, InternalError, InvalidPipeline, Unavailable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FINAL = _FORBIDDEN | {errno.ENAMETOOLONG, errno.ENOTDIR}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_USABLE_LATER = _FULL | {errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT}

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600


def create(path: str, data: bytes, *, aside: str) -> bool:
    """Create a file durably; return False, changing nothing, when it exists.

    Parameters
    ----------
    path : str
        The file.  Missing directories above it are created.
    data : bytes
        Its whole content.
    aside : str
        Directory for temporary files, on the same file system (see :func:`prepare`).

    Returns
    -------
    bool
        Whether this call created it.  Of several processes exactly one wins.

    Raises
    ------
    Unavailable
        If the disk is full or does not answer; nothing was changed.
    InvalidPipeline
        If this user may not write there, or the file system is read-only; nothing was changed.
    InDoubt
        If the file is in place and its directory could not be synced.

    Notes
    -----
    ``os.link`` and not ``O_EXCL``: the name must not appear before the content is on disk.
    """
    with explained(f"writing {path}"):
        if os.path.lexists(path):  # another writer won, or ours before it died, whose directory sync may lack
            # Readers of the winner's file act on it: it must be as durable for us as it is for the winner.
            sync_directory(os.path.dirname(path))
            return False
        with _written_aside(data, aside) as (fd, temporary):
            make_directory(os.path.dirname(path))
            try:
                os.link(temporary, path)
                won = True
            except FileExistsError:
                # A network file system may repeat a request whose reply was lost: the second name shows that we won.
                won = os.fstat(fd).st_nlink > 1
            _sync_name(path)
            return won


def replace(path: str, data: bytes, *, aside: str) -> None:
    """Create or replace a file durably; parameters and errors as :func:`create`."""
    with explained(f"writing {path}"), _written_aside(data, aside) as (_, temporary):
        make_directory(os.path.dirname(path))
        os.rename(temporary, path)
        _sync_name(path)


def prepare(directory: str, *, aside: str, published: str = "") -> None:
    """Create a directory and its place for temporary files, prove it writable, remove what dead writers left.

    ``published`` is a directory of the user's data above it, which is made as the umask says.

    Raises
    ------
    InvalidPipeline
        If the directory cannot be created or written, or its file system has no hard links.
    Unavailable
        If the disk is full or does not answer.
    """
    probe = os.path.join(aside, f"{uuid.uuid4().hex}.probe")
    try:
        if published:
            make_directory(published, is_published=True)
        make_directory(directory)
        make_directory(aside)
        with _written_aside(b"", aside, synced=False) as (_, temporary):
            os.link(temporary, probe)
            os.unlink(probe)
        sweep(aside)
    except OSError as error:
        if error.errno in _USABLE_LATER:
            raise _unavailable(error, f"opening {directory}") from error
        raise InvalidPipeline(
            f"Directory {directory} cannot be written.",
            why=f"{_reason(error)}.",
            do=_cure(error, directory),
            participant=directory,
        ) from error


def sweep(aside: str) -> int:
    """Remove temporary files whose writer is dead; return how many.

    A writer holds a lock on its file until it is in place: the kernel drops it with the process.  A writer
    that was overtaken between creating and locking notices that its file has no name and takes another.
    """
    count = 0
    for name in os.listdir(aside):
        path = os.path.join(aside, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # gone meanwhile; another user's
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            count += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS | {errno.EWOULDBLOCK}:
                raise
        finally:
            os.close(fd)
    return count


def make_directory(path: str, *, is_published: bool = False, is_synced: bool = True) -> None:
    """Create a directory and the missing ones above it.

    Parameters
    ----------
    path : str
        The directory; one that is there stays as it is.
    is_published : bool
        Whether others may read it if the umask allows: it holds the user's data.  Else only this user may.
    is_synced : bool
        Whether the names are made durable; else the caller does it.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_directory(parent, is_published=is_published, is_synced=is_synced)
    try:
        os.mkdir(path, 0o777 if is_published else PRIVATE_DIRECTORY)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    if is_synced:
        sync_directory(parent)


def private_opener(path: str, flags: int) -> int:
    """Open a file, for ``open(..., opener=private_opener)``: one that is created is this user's alone."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def tighten(path: str) -> None:
    """Revoke the access that the umask gave others when an older version made a file or directory of ours.

    What is deeper is then out of their reach.  What belongs to another user, is a link, or is where modes mean
    nothing, stays as it is.
    """
    with suppress(OSError):
        found = os.lstat(path)
        if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
            os.chmod(path, stat.S_IMODE(found.st_mode) & PRIVATE_DIRECTORY)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def local_path(location: str) -> str | None:
    """Return the path that a path or a ``file://`` URL names; None for any other address.

    Examples
    --------
    >>> local_path("file:///data/check%20point"), local_path("s3://bucket/key")
    ('/data/check point', None)
    """
    if "://" not in location:
        return location
    url = urlsplit(location)
    return unquote(url.path) if url.scheme == "file" and url.netloc in ("", "localhost") else None


def local_directory(location: str | os.PathLike[str], what: str) -> str:
    """Return the absolute path of a directory that is read here, in this process.

    Parameters
    ----------
    location : str or path
        As the user wrote it.
    what : str
        Who reads it, for the message.

    Raises
    ------
    InvalidPipeline
        If it is in an object store: nothing that Holdfast writes there would be found.
    """
    path = local_path(os.fspath(location))
    if path is None:
        raise InvalidPipeline(
            f"{what} cannot read {os.fspath(location).partition('://')[0]}:// addresses.",
            why="sinks that keep files write to a file system, and what they hold is asked there.",
            do="name the directory as the sink does, or one that is mounted.",
        )
    return os.path.abspath(path)


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn an ``OSError`` of the block into one of ours: the block must have changed nothing that lasts.

    Parameters
    ----------
    doing : str
        What the block does, for the message: "writing <path>".

    Raises
    ------
    InvalidPipeline
        For what does not pass by itself: a person has to grant permission, or to choose another path.
    Unavailable
        For everything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FINAL:
            raise _refusal(error, doing) from error
        raise _unavailable(error, doing) from error


def is_forbidden(error: HoldfastError) -> bool:
    """Return whether an error says that this user may not read or write somewhere: no row is the reason."""
    return isinstance(error, InvalidPipeline) and error.errno in _FORBIDDEN


def is_full(error: HoldfastError) -> bool:
    """Return whether an error says that a disk, or this user's part of it, is full: that passes when there is space."""
    return isinstance(error, Unavailable) and error.errno in _FULL


@contextmanager
def _written_aside(data: bytes, aside: str, *, synced: bool = True) -> Iterator[tuple[int, str]]:
    """Yield descriptor and path of a locked temporary file with this content; its name is gone afterwards."""
    fd, path = _locked_file(aside)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if synced:
            os.fsync(fd)
        yield fd, path
    finally:
        try:
            with suppress(OSError):  # renamed into place; else the next sweep removes it
                os.unlink(path)
        finally:
            os.close(fd)


def _locked_file(aside: str) -> tuple[int, str]:
    for _ in range(100):
        path = os.path.join(aside, uuid.uuid4().hex)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:  # without locks nothing is swept: see sweep()
                os.close(fd)
                raise
        if os.fstat(fd).st_nlink:  # else a sweep came between creating and locking, and took us for dead
            return fd, path
        os.close(fd)
    raise InternalError(f"Temporary files in {aside} were swept 100 times while they were created.", do=REPORT)


def _sync_name(path: str) -> None:
    try:
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise InDoubt(
            f"{path} is written, but may not survive a power cut.",
            why=f"its directory could not be synced: {_reason(error)}.",
            do="check the disk, then start again: what is there is then read.",
            participant=path,
        ) from error


def _unavailable(error: OSError, doing: str) -> HoldfastError:
    if error.errno in _FULL:
        why = f"the disk is full ({_reason(error)})"
        do = "free space there (df -h), then start again: nothing was lost or partially written."
    else:
        why = _reason(error)
        do = "check that the file system answers and can be written, then start again: nothing was lost."
    found = Unavailable(
        f"{doing[:1].upper()}{doing[1:]} failed.", why=f"{why}.", do=do, participant=error.filename or ""
    )
    found.errno = error.errno
    return found


def _refusal(error: OSError, doing: str) -> HoldfastError:
    where = error.filename or "that path"
    if error.errno == errno.EROFS:
        do = "mount the file system writable (dmesg says so if the kernel has changed that, after an error of the disk)"
    elif error.errno == errno.ENAMETOOLONG:
        do = "choose a directory with a shorter path, or shorter names of nodes"
    elif error.errno == errno.ENOTDIR:
        do = f"a part of {where} is a file: move it away"
    else:
        do = f"give user {os.geteuid()} permission for {where} and the directories above it (ls -l, chown, chmod)"
    found = InvalidPipeline(
        f"{doing[:1].upper()}{doing[1:]} failed.",
        why=f"{_reason(error)}.",
        do=f"{do}, then start again: nothing was lost.",
        participant=error.filename or "",
    )
    found.errno = error.errno
    return found


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _cure(error: OSError, directory: str) -> str:
    if error.errno == errno.EROFS:
        return "it is on a read-only file system: choose another directory, or mount it writable."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"a part of {directory} is a file: choose another directory, or move the file away."
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
        return (
            "give this user write permission; if it has it, the file system lacks hard links, without which two "
            "writers cannot be distinguished: choose a local disk or NFS."
        )
    return f"give this user write permission (chmod u+rwx {directory}), or choose another directory."
