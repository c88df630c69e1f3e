"""The index of errors: each place of the source that raises one, by its kind, with its advice."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping

from holdfast.cli.failures import exit_code
from holdfast.errors import KINDS
from tests.spec.cures.sites import Site, sites

ANY = "any"
"""The kind of a place that chooses one at run time."""

TOP = """\
# Index of errors

What each place of the source that raises an error says, and what it advises, made from the source itself: search this
site for words of a message. Dots stand for what is filled in. [Errors](../docs/errors.md) explains the kinds;
[operations](../docs/operations.md) has a section for each.

| kind | means | exit code | messages |
|---|---|---|---|
"""


def pages() -> dict[str, str]:
    """Return the pages of the index: path on the site -> Markdown."""
    by_kind = {kind: [site for site in sites() if site.kind == kind] for kind in (*KINDS, ANY)}
    made = {place(kind): _page(kind, found) for kind, found in by_kind.items()}
    return {"errors/README.md": TOP + "".join(_rows(by_kind)), **made}


def place(kind: str) -> str:
    """Return the path of a kind's page."""
    return f"errors/{'at-run-time' if kind == ANY else kind}.md"


def message(site: Site) -> str:
    """Return the first sentence of a place's errors as Markdown."""
    return escaped(site.what) if site.what else "The message is that of the cause."


def advice(site: Site) -> list[str]:
    """Return what a place can advise, as Markdown."""
    return [escaped(text) for text in site.texts]


def escaped(text: str) -> str:
    r"""Return a text so that Markdown shows it as it is, with dots for what stands in braces.

    Examples
    --------
    >>> escaped("write {name}=<a> for a*b")
    'write ...=&lt;a&gt; for a\\*b'
    """
    dotted = re.sub(r"\{[^{}]*\}", "...", " ".join(text.split()))
    return re.sub(r"([\\`*_\[\]#])", r"\\\1", dotted.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _rows(by_kind: Mapping[str, list[Site]]) -> Iterator[str]:
    for kind, found in by_kind.items():
        meaning, code = ("The kind is that of the cause.", "")
        if kind != ANY:
            meaning, code = _meaning(kind), str(exit_code(KINDS[kind]("")))
        name = "chosen at run time" if kind == ANY else f"`{kind}`"
        yield f"| [{name}]({place(kind).removeprefix('errors/')}) | {meaning} | {code} | {len(found)} |\n"


def _meaning(kind: str) -> str:
    return " ".join(inspect.cleandoc(KINDS[kind].__doc__ or "").split()).replace("``", "`")


def _page(kind: str, found: Iterable[Site]) -> str:
    title, meaning = ("Errors of a kind that is chosen at run time", "") if kind == ANY else (kind, _meaning(kind))
    rooms: dict[str, dict[str, None]] = {}
    for site in found:
        lines = [f"- **{message(site)}**", *(f"Do: {text}" for text in advice(site))]
        rooms.setdefault(_room(site), {})["  \n    ".join(lines)] = None
    sections = [f"## {room}\n\n" + "\n".join(entries) for room, entries in sorted(rooms.items())]
    return "\n\n".join(filter(None, [f"# {title}", meaning, *sections])) + "\n"


def _room(site: Site) -> str:
    """Return where in the source a place is: the package; of connectors the system."""
    parts = site.module.removesuffix(".py").split("/")
    return "/".join(parts[: 2 if parts[0] == "connectors" else 1])
