"""Numbers, times and ages as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.display.lines import utc
from holdfast.page.html import Child, Html, el

UNKNOWN = "-"


def count(number: int | float | None) -> str:
    """Return a whole number.

    Examples
    --------
    >>> count(12345), count(None), count(0.4)
    ('12,345', '-', '0')
    """
    return UNKNOWN if number is None else f"{number:,.0f}"


def rate(rows_per_s: float | None) -> str:
    """Return rows a second.

    Examples
    --------
    >>> rate(1234.5), rate(0.25), rate(0), rate(None)
    ('1,234/s', '0.25/s', '0/s', '-')
    """
    if rows_per_s is None:
        return UNKNOWN
    return f"{rows_per_s:,.0f}/s" if rows_per_s >= 10 or rows_per_s == 0 else f"{rows_per_s:.2g}/s"


def span(seconds: float | None) -> str:
    """Return a duration, in the two largest units.

    Examples
    --------
    >>> span(0.0123), span(4.2), span(75), span(7_300), span(200_000), span(None)
    ('12 ms', '4.2 s', '1 min 15 s', '2 h 1 min', '2 d 7 h', '-')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {s} s"


def when(at_us: int, now_us: int = 0) -> Html:
    """Return a time in UTC, and with ``now_us`` how long ago that is."""
    if not at_us:
        return Html(UNKNOWN)
    shown = utc(at_us)
    if not now_us:
        return el("time", shown, datetime=shown)
    return el("time", f"{span(max(0.0, (now_us - at_us) / 1e6))} ago", datetime=shown, title=shown)


def percent(share: float | None) -> str:
    """Return a share of 1."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def mark(level: str, label: str) -> Html:
    """Return a word in the colour of a level: ``good``, ``minor`` or ``bad``."""
    return el("span", label, class_=f"mark {level}")


def items(several: Sequence[Child], empty: str) -> Html:
    """Return a list; a sentence where it is empty."""
    if not several:
        return el("p", empty, class_="empty")
    return el("ul", *(el("li", each) for each in several))
