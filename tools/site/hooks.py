"""What the build of the site does besides MkDocs: addresses, vendored files, and each page as Markdown."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.site.tree import ROOT

ASSETS = {
    "assets/mermaid.tiny.js": ROOT / "tools/site/assets/mermaid.tiny.js",
    "assets/mermaid.LICENSE": ROOT / "tools/site/assets/mermaid.LICENSE",
    "assets/icon.svg": ROOT / "src/holdfast/page/assets/icon.svg",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the address from ``pyproject.toml``: it stands there alone."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.site_url = urls["Homepage"] + "/"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the theme asks for."""
    for name, path in ASSETS.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Put each page as Markdown beside its HTML."""
    for page in Path(config.docs_dir).rglob("*.md"):
        shutil.copyfile(page, Path(config.site_dir) / page.relative_to(config.docs_dir))
