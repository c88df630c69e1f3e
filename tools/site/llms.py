"""``llms.txt``: the pages as a list for language models, which read Markdown better than HTML (llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def llms_txt(title: str, summary: str, nav: list[Any], directory: Path) -> str:
    """Return the list.

    Parameters
    ----------
    title, summary : str
        Of the site.
    nav : list
        The navigation as ``mkdocs.yml`` has it: paths, and titles of paths or of lists.
    directory : Path
        Where the pages are.
    """
    sections = [f"# {title}\n\n> {summary}"]
    for part in nav:
        ((heading, inner),) = part.items()
        lines = [f"- [{_title(directory / page)}]({page}){_about(directory / page)}" for page in _pages(inner)]
        sections.append(f"## {heading}\n\n" + "\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _pages(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from _pages(each)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")


def _about(page: Path) -> str:
    """Return the first sentence of a page, if it begins with a text."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    if len(paragraphs) < 2 or not re.match(r"(?!```)[\w*`\[]", paragraphs[1]):
        return ""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[1].split()).replace("**", ""))
    return ": " + re.split(r"(?<=[.:?]) ", text)[0].rstrip(".:")
