"""What the build of the site does besides MkDocs: addresses, vendored files, and each page as Markdown."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import api
from tools.site.llms import llms_txt
from tools.site.tree import ROOT

ASSETS = {
    "assets/site.css": ROOT / "tools/site/assets/site.css",
    "assets/mermaid.tiny.js": ROOT / "tools/site/assets/mermaid.tiny.js",
    "assets/mermaid.LICENSE": ROOT / "tools/site/assets/mermaid.LICENSE",
    "assets/icon.svg": ROOT / "src/holdfast/page/assets/icon.svg",
}

_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take address and version from ``pyproject.toml``: they stand there alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_url = project["urls"]["Homepage"] + "/"
    config.copyright = f"Holdfast {project['version']}. Apache License 2.0."
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the theme asks for."""
    for name, path in ASSETS.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write a bar in code in a table as MkDocs wants it; a git host wants a backslash before it."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Put each page as Markdown beside its HTML, and a list of them all."""
    pages, site = Path(config.docs_dir), Path(config.site_dir)
    for page in pages.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(pages))
    for each in api.PAGES:
        (site / f"api/{each.name}.md").write_text(api.as_markdown(each), encoding="utf-8")
    (site / "llms.txt").write_text(
        llms_txt(config.site_name, config.site_description or "", config.nav or [], site), encoding="utf-8"
    )
