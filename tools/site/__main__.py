"""Builds the site: lays its pages out, lets MkDocs render them, and puts each page as Markdown beside its HTML."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from tools.site import api, error_index
from tools.site.tree import ROOT, lay_out


def build_site(out: Path, pages: Mapping[str, str]) -> None:
    """Build the site from the repository's pages.

    Parameters
    ----------
    out : Path
        Where it goes.
    pages : mapping of str to str
        Further pages: path -> Markdown.

    Raises
    ------
    SystemExit
        If MkDocs warns of anything.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with tempfile.TemporaryDirectory() as tree:
        lay_out(pages, Path(tree))
        build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=tree, site_dir=str(out.resolve()), strict=True))


def main() -> None:
    """Build the site with all that is made from the code."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the site goes")
    build_site(parser.parse_args().out, {**error_index.pages(), **api.pages()})


if __name__ == "__main__":
    main()
