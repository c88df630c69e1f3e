"""Builds the site: lays its pages out, lets MkDocs render them, and puts each page as Markdown beside its HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from mkdocs.__main__ import cli

from tools.site import api, error_index
from tools.site.tree import ROOT, lay_out


def main() -> None:
    """Build it; a warning of MkDocs is an error."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the site goes")
    out = parser.parse_args().out
    lay_out({**error_index.pages(), **api.pages()})
    cli(["build", "--quiet", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(out.resolve())])


if __name__ == "__main__":
    main()
