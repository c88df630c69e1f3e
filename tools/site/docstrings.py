"""What docstrings write for Sphinx, as Markdown: roles, and blocks after two colons."""

from __future__ import annotations

import re
from typing import Any

import griffe


class AsMarkdown(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a thing."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring without the markup that Markdown does not know.

    Examples
    --------
    >>> as_markdown("Raises :class:`InDoubt`, as in::")
    'Raises `InDoubt`, as in:'
    """
    without_roles = re.sub(r":(?:py:)?(?:class|func|meth|mod|data|attr|exc|obj|ref):`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"::$", ":", re.sub(r"^ *::\n", "", without_roles, flags=re.MULTILINE), flags=re.MULTILINE)
