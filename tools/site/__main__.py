"""Builds the site: lays its pages out, lets MkDocs render them, and puts each page as Markdown beside its HTML."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from tools.site import api, error_index, versions
from tools.site.tree import ROOT, lay_out


def build_site(out: Path, pages: Mapping[str, str], extra: Mapping[str, object] | None = None) -> None:
    """Build the site from the repository's pages.

    Parameters
    ----------
    out : Path
        Where it goes.
    pages : mapping of str to str
        Further pages: path -> Markdown.
    extra : mapping of str to object, optional
        What the theme is told besides.

    Raises
    ------
    SystemExit
        If MkDocs warns of anything.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with tempfile.TemporaryDirectory() as tree:
        lay_out(pages, Path(tree))
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=tree, site_dir=str(out.resolve()), strict=True)
        config["extra"].update(extra or {})
        build(config)


def main() -> None:
    """Build the site with all that is made from the code."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the site goes")
    parser.add_argument(
        "--versions", type=Path, help="where sites of several releases are: this one is put beside them"
    )
    options = parser.parse_args()
    pages = {**error_index.pages(), **api.pages()}
    if options.versions is None:
        build_site(options.out, pages)
    else:
        build_site(options.versions / versions.present(), pages, {"version": {"provider": "mike", "alias": True}})
        versions.write_list(options.versions)


if __name__ == "__main__":
    main()
