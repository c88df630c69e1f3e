"""Anchors of headings as git hosts make them: a link to one works there and on the site."""

from __future__ import annotations

import re


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading.

    Parameters
    ----------
    heading : str
        Its text, without markup.
    separator : str
        What a space becomes.

    Examples
    --------
    >>> slug("It says `InDoubt`: what now?")
    'it-says-indoubt-what-now'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)
