"""HTML as a value.  Here, and nowhere else, a text becomes HTML: masked, then escaped.

Whatever is no :class:`Html` is a text: of users, of systems, of files.  An address is made of its parts, each quoted,
so a name never leads anywhere but below the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from urllib.parse import quote, urlencode

from holdfast.masking import masked

_VOID = frozenset({"br", "input", "link", "meta"})

PAGE_ROWS = 100
"""Rows of a table that are shown at once."""


class Html(str):
    """A text that is HTML."""

    __slots__ = ()


Child = Html | str | None
Attribute = str | int | bool | None


def text(value: str) -> Html:
    """Return a text as HTML, without secrets.

    Examples
    --------
    >>> text("<b> & password=hunter2")
    '&lt;b&gt; &amp; password=***'
    """
    if isinstance(value, Html):
        return value
    return Html(value) if value.isalnum() else _safe(value)  # letters and digits alone are no secret and no HTML


@lru_cache(maxsize=1 << 14)
def _safe(value: str) -> Html:
    return Html(escape(masked(value)))


def join(children: Iterable[Child], between: str = "") -> Html:
    """Return children one after the other; None is nothing."""
    return Html(text(between).join(text(child) for child in children if child is not None))


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """Return an element.

    Parameters
    ----------
    tag : str
        Its name, a word of this program.
    *children : Html or str, optional
        What is in it; a text is escaped.
    **attributes : str, int or bool, optional
        Its attributes, escaped as well.  ``class_`` is ``class``, other underscores are hyphens; True is an attribute
        without a value; None and False are none.

    Examples
    --------
    >>> el("td", "<script>", class_="number", title='"', hidden=True, colspan=None)
    '<td class="number" title="&quot;" hidden>&lt;script&gt;</td>'
    >>> el("br")
    '<br>'
    """
    given = []
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            given.append(f" {key}")
        elif value is not None and value is not False:
            given.append(f' {key}="{text(str(value))}"')
    head = f"<{tag}{''.join(given)}>"
    return Html(head if tag in _VOID else f"{head}{join(children)}</{tag}>")


def address(*parts: str, base: str = "", **query: str | int | None) -> str:
    """Return an address on this page, of the parts of its path, and what is asked.

    Examples
    --------
    >>> address("sources", "a/../<b>", page=2, shard=None)
    '/sources/a%2F..%2F%3Cb%3E?page=2'
    >>> address(), address("..", base="/at/x")
    ('/', '/at/x/%2E%2E')
    """
    path = "/".join(_quote(masked(part)) for part in parts)
    asked = urlencode({name: masked(str(value)) for name, value in query.items() if value is not None})
    return f"{base}/{path}" + (f"?{asked}" if asked else "")


def _quote(part: str) -> str:
    quoted = quote(part, safe="")
    return quoted.replace(".", "%2E") if set(part) <= {"."} else quoted  # no browser takes it for a way up


def link(label: Child, href: str, **attributes: Attribute) -> Html:
    """Return a link to an address of this page (:func:`address`)."""
    return el("a", label, href=href, **attributes)


def lines(several: Iterable[str], **attributes: Attribute) -> Html:
    """Return lines as they stand, blanks too."""
    return el("pre", "\n".join(several), **attributes)


def facts(pairs: Mapping[str, Child]) -> Html:
    """Return names and what they are; what is None is left out."""
    shown = [el("div", el("dt", name), el("dd", value)) for name, value in pairs.items() if value is not None]
    return el("dl", *shown, class_="facts")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Child]],
    *,
    numbers: Iterable[str] = (),
    empty: str = "nothing",
) -> Html:
    """Return a table; a sentence where it has no rows.

    Parameters
    ----------
    columns : sequence of str
        Its head.
    rows : sequence of sequence of Html or str
        As many cells in each as there are columns.
    numbers : iterable of str
        Columns that are aligned at the right.
    empty : str
        The sentence.
    """
    if not rows:
        return el("p", empty, class_="empty")
    right = frozenset(numbers)
    sides = ["number" if column in right else None for column in columns]
    head = [el("th", column, class_=side, scope="col") for column, side in zip(columns, sides, strict=True)]
    body = [el("tr", *(el("td", cell, class_=side) for cell, side in zip(row, sides, strict=True))) for row in rows]
    made = el("table", el("thead", el("tr", *head)), el("tbody", *body))
    return el("div", made, class_="scroll", tabindex=0)


def part(count: int, page: int) -> tuple[slice, int, int]:
    """Return which rows a page shows, its number, and how many pages there are.

    Examples
    --------
    >>> part(250, 3), part(250, 9), part(0, 1)
    ((slice(200, 300, None), 3, 3), (slice(200, 300, None), 3, 3), (slice(0, 100, None), 1, 1))
    """
    last = max(1, -(-count // PAGE_ROWS))
    shown = min(max(page, 1), last)
    return slice((shown - 1) * PAGE_ROWS, shown * PAGE_ROWS), shown, last


def pages(page: int, last: int, parts: Sequence[str], base: str, **query: str | int | None) -> Html:
    """Return links to the pages of a table; nothing where there is one."""
    if last == 1:
        return Html("")

    def to(label: str, number: int, rel: str) -> Html:
        if not 1 <= number <= last or number == page:
            return el("span", label, class_="off")
        return link(label, address(*parts, base=base, **{**query, "page": number}), rel=rel)

    return el(
        "nav",
        to("first", 1, "first"),
        to("earlier", page - 1, "prev"),
        el("span", f"page {page:,} of {last:,}"),
        to("later", page + 1, "next"),
        to("last", last, "last"),
        class_="pages",
        aria_label="Pages",
    )
