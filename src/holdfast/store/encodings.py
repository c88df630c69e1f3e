"""Names of files that are not ASCII: they mean the same to this process, to the JVM and on the disk only in UTF-8.

Python takes its encoding of names from the locale when it starts, and so does Java (``sun.jnu.encoding``, which no
option sets).  A process in the C locale speaks UTF-8 all the same, its JVM would not: so a JVM is started in a locale
that does.  What cannot be set from here is said before anything is written.
"""

from __future__ import annotations

import codecs
import locale
import sys

from holdfast.errors import InvalidPipeline

UTF_8_LOCALE = "C.UTF-8"
"""The locale of no country: the same as C, but for its encoding."""

_DO = (
    f"start the process with LC_ALL={UTF_8_LOCALE} (ENV in a container's image, Environment= in a unit file), and "
    "without PYTHONUTF8=0; or choose a path of ASCII characters."
)


def check_path(what: str, path: str) -> None:
    """Raise :class:`InvalidPipeline` if this process cannot name a file as others do.

    Parameters
    ----------
    what : str
        Whose path it is, for the message.
    path : str
        As the user wrote it.
    """
    here = sys.getfilesystemencoding()
    if path.isascii() or _is_utf_8(here):
        return
    raise InvalidPipeline(
        f"{what} has the path {path!a}, which this process cannot use.",
        why=f"it is not ASCII, and this process has names of files in {here}, not in UTF-8.",
        do=_DO,
    )


def check_jvm(what: str, path: str, encoding: str) -> None:
    """Raise :class:`InvalidPipeline` if a JVM that was not started here cannot name a file.

    Parameters
    ----------
    what, path : str
        As in :func:`check_path`.
    encoding : str
        Of names of files in the JVM: its property ``sun.jnu.encoding``.
    """
    if path.isascii() or _is_utf_8(encoding):
        return
    raise InvalidPipeline(
        f"{what} has the path {path!a}, which the JVM of this process cannot use.",
        why=f"it is not ASCII, and the JVM has names of files in {encoding}, by the locale in which it was started.",
        do=_DO,
    )


def variables_of_jvm() -> dict[str, str]:
    """Return the variables with which a JVM names files as this process does; none where it does so anyway."""
    speaks_alike = _is_utf_8(locale.getencoding()) or not _is_utf_8(sys.getfilesystemencoding())
    return {} if speaks_alike else {"LC_ALL": UTF_8_LOCALE}


def _is_utf_8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"
