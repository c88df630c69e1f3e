"""The pages of the site, as a directory that MkDocs reads: those of the repository, and those made from the code.

A page keeps its place: ``docs/operators/map.md`` of the repository is ``docs/operators/map.md`` here, and
``docs/operators/map.html`` on the site.  So no link is rewritten, and the Markdown beside the HTML is the page itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("README.md", "docs/index.md")
"""Where the pages are found from: all that they link, directly or not."""

_FENCE = re.compile(r"^ *```\w*\n.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def lay_out(pages: Mapping[str, str], directory: Path) -> None:
    """Put all that MkDocs reads into an empty directory.

    Parameters
    ----------
    pages : mapping of str to str
        Those that are made: path -> Markdown.
    directory : Path
        Where everything goes.
    """
    for path in linked_files():
        place = directory / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    for name, text in pages.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")


def linked_files() -> list[Path]:
    """Return the pages of the repository and the files that they link, sorted."""
    found: set[Path] = set()
    waiting = [ROOT / name for name in FIRST]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():  # MkDocs names a link that leads nowhere
            continue
        found.add(path)
        if path.suffix == ".md":
            waiting += _links(path)
    return sorted(found)


def _links(page: Path) -> Iterator[Path]:
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in _LINK.findall(text):
        target = link.partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            yield (page.parent / target).resolve()
