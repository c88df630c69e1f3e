"""The site: the repository's pages as HTML, complete, the same as a git host shows them, and nothing from elsewhere."""

from __future__ import annotations

import doctest
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

import holdfast as hf
from holdfast.errors import KINDS
from tests.docs.pages import PAGES, ROOT, anchors, shown
from tests.spec.cures.sites import sites
from tools.site import api, docstrings, error_index, slugs, versions
from tools.site.slugs import slug
from tools.site.tree import linked_files
from tools.vendor import SITE_ASSETS, differing

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_A_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium")


class Loader(yaml.SafeLoader):
    """Reads ``mkdocs.yml``, whose names of Python functions are texts here."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def in_navigation(part: Any) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in in_navigation(each)]


# --- without a build --------------------------------------------------------------------------------------------------


def test_every_page_is_on_the_site() -> None:
    assert {shown(page) for page in {*PAGES} - {*linked_files()}} == set()


def test_every_page_under_docs_is_in_the_navigation_once() -> None:
    pages = Counter(in_navigation(CONFIG["nav"]))
    assert [shown(page) for page in (ROOT / "docs").rglob("*.md") if pages[shown(page)] != 1] == []


def test_a_heading_has_the_anchor_that_a_git_host_gives_it() -> None:
    """As the test of all links reads them: one that works there works on the site."""
    page = ROOT / "docs/operations.md"
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert {slug(heading) for heading in headings} == anchors(page)


@pytest.mark.parametrize("module", [docstrings, error_index, slugs, versions], ids=lambda module: module.__name__)
def test_the_examples_of_the_site_tool_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_what_draws_the_diagrams_is_what_is_pinned() -> None:
    assert (SITE_ASSETS / "mermaid.tiny.js").is_file()
    assert differing() == []


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    shown_names = Counter(name for page in api.PAGES for name, _ in api.names(page))
    assert {name for name, count in shown_names.items() if count > 1} == set()
    functions = {
        f"hf.{name}"
        for name in dir(hf)
        if not name.startswith("_") and not isinstance(getattr(hf, name), (ModuleType, str))
    }
    assert functions - set(shown_names) == set()
    for room in ("read", "write"):
        assert {f"hf.{room}.{name}" for name in getattr(hf, room).__all__} - set(shown_names) == set()


def test_every_kind_of_error_and_every_advice_is_in_the_index() -> None:
    """The table of cures has each place that raises: the index has its message and what it advises."""
    pages = error_index.pages()
    assert set(KINDS) == {name.removeprefix("errors/").removesuffix(".md") for name in pages} - {
        "README",
        "at-run-time",
    }
    by_id = {site.id: site for site in sites()}
    lines = (ROOT / "tests/spec/cures/table.txt").read_text().splitlines()
    assert len(lines) > 1000
    for line in lines:
        site = by_id[line.split(maxsplit=1)[1]]
        page = pages[error_index.place(site.kind)]
        assert f"**{error_index.message(site)}**" in page
        assert [text for text in error_index.advice(site) if f"Do: {text}" not in page] == []


@pytest.mark.parametrize("text", ["a*b*c", "<b>bold</b>", "`x` and _y_ and [z](w)", "1 # 2", "a & b &lt; c"])
def test_a_message_is_shown_as_it_is(text: str) -> None:
    html = MarkdownIt("commonmark").render(error_index.escaped(text))
    assert unescape(re.sub(r"<[^>]*>", "", html)).strip() == text


# --- built ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the built site.  A warning ends the build with an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "tools.site", "--out", str(place)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    return place


def html_of(site: Path, page: str) -> Path:
    path = site / page
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")


@pytest.mark.nightly
def test_a_link_or_an_anchor_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    page = (ROOT / "docs/why.md").read_text() + "\n[a page](nowhere.md), [a heading](state.md#nowhere)\n"
    build = f"from tools.site.__main__ import *; build_site(Path({str(tmp_path)!r}), {{'docs/why.md': {page!r}}})"
    ended = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "contains a link 'nowhere.md', but the target" in ended.stderr
    assert "contains a link 'state.md#nowhere', but the doc 'docs/state.md' does not contain an anchor" in ended.stderr


@pytest.mark.nightly
def test_each_page_says_of_which_version_it_is(site: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for path in (site / "docs").rglob("*.html"):
        assert f"Holdfast {version}. Apache License 2.0." in path.read_text()


@pytest.mark.nightly
def test_the_list_for_language_models_leads_to_every_page_of_the_navigation(site: Path) -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert listed == in_navigation(CONFIG["nav"])
    assert [page for page in listed if not (site / page).is_file()] == []


@pytest.mark.nightly
def test_a_page_of_the_api_shows_signature_and_docstring(site: Path) -> None:
    for name in ("api/operators.html", "api/operators.md"):
        text = (site / name).read_text()
        assert "hf.map_batches" in text
        assert "Runs once per Python worker, before its first batch: the place to load a model." in text
        assert not re.search(r":(class|func|meth):", text) or name.endswith(".md")
    assert {line for line in (site / "api/operators.md").read_text().splitlines() if line.startswith(":::")} == set()


@pytest.mark.nightly
def test_each_page_stands_as_markdown_beside_its_html(site: Path) -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in linked_files() if path.suffix == ".md"]
    assert len(pages) > 100
    for page in pages:
        assert (site / page).read_bytes() == (ROOT / page).read_bytes()
        assert f'type="text/markdown" href="{Path(page).name}"' in html_of(site, page).read_text()


@pytest.mark.nightly
def test_each_page_has_the_lists_tables_and_blocks_that_a_git_host_shows(site: Path) -> None:
    """Python-Markdown takes a list that follows a text without a blank line for text."""
    other = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    different = {}
    for path in linked_files():
        if path.suffix == ".md":
            page = path.relative_to(ROOT).as_posix()
            article = re.search(
                r'<article class="md-content__inner[^>]*>(.*)</article>', html_of(site, page).read_text(), re.DOTALL
            )
            assert article is not None
            assert not re.search(r"<td[^>]*>[^\n]*\\\|", article[1]), f"{page}: a table shows the backslash of a bar"
            ours, theirs = elements(article[1]), elements(other.render(path.read_text()))
            different[page] = {name: (ours[name], theirs[name]) for name in ELEMENTS if ours[name] != theirs[name]}
    assert {page: found for page, found in different.items() if found} == {}


ELEMENTS = (
    "ul",
    "ol",
    "li",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "strong",
    "em",
    "img",
    "code",
    "a",
)


def elements(html: str) -> Counter[str]:
    """Count the elements of a text; what is inside of a block of code, and what the theme adds, is left out."""
    counter = ElementCounter()
    counter.feed(html)
    return counter.found


class ElementCounter(HTMLParser):
    """Counts elements outside of blocks of code."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._blocks = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = dict(attrs).get("class") or ""
        if (tag == "pre" or not self._blocks) and "headerlink" not in classes and "md-content__button" not in classes:
            self.found[tag] += 1
        self._blocks += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self._blocks -= tag == "pre"


@pytest.mark.nightly
def test_no_page_takes_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        taken = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"?(https?:[^\" >]*)", path.read_text())
        taken += re.findall(
            r"<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]* href=\"?(https?:[^\" >]*)", path.read_text()
        )
        assert taken == [], path


@pytest.fixture(scope="module")
def base(site: Path) -> Iterator[str]:
    """Give the address of the built site."""
    with served(site) as address:
        yield address


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a directory; give its address."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser: Any, base: str, page: str, **given: Any) -> Iterator[Any]:
    """Give a tab on a page; an error in the console, and a request to anywhere else, fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **given)
    context.set_default_timeout(60_000)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{base}/{page}", wait_until="networkidle")
    yield tab
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((base, "data:", "blob:"))] == []


@pytest.mark.nightly
@IN_A_BROWSER
def test_search_finds_a_word_and_leads_to_it(browser: Any, base: str) -> None:
    with opened(browser, base, "index.html") as tab:
        tab.click("label.md-search__icon >> nth=0") if not tab.is_visible(".md-search__input") else None
        tab.fill(".md-search__input", "InDoubt")
        tab.wait_for_selector(".md-search-result__item a:has-text('InDoubt')")
        tab.click(".md-search-result__item a >> nth=0")
        tab.wait_for_load_state("networkidle")
        assert "InDoubt" in tab.inner_text("article")


@pytest.mark.nightly
@IN_A_BROWSER
def test_a_reader_chooses_between_the_versions_that_are_there(browser: Any, tmp_path: Path) -> None:
    """The site of this version, put beside one of an older and one of a much older release."""
    for version in ("0.0.10", "0.0.9"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "sitemap.xml").write_text("<urlset/>")
        (tmp_path / version / "index.html").write_text(f'<link rel="icon" href="data:,"><h1>{version}</h1>')
    command = [sys.executable, "-m", "tools.site", "--versions", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    listed = json.loads((tmp_path / "versions.json").read_text())
    present = versions.present()
    assert [each["version"] for each in listed] == [present, "0.0.10", "0.0.9"]
    assert [each["aliases"] for each in listed] == [["latest"], [], []]
    with served(tmp_path) as base, opened(browser, base, "index.html") as tab:
        tab.wait_for_url(f"{base}/{present}/index.html")
        tab.hover(".md-version__current", force=True)  # the list opens above it
        tab.click(".md-version__link:has-text('0.0.9')")
        tab.wait_for_url(f"{base}/0.0.9/**")
        assert tab.inner_text("h1") == "0.0.9"


@pytest.mark.nightly
@IN_A_BROWSER
def test_a_block_of_code_is_copied_as_it_stands_in_the_page(browser: Any, base: str) -> None:
    with opened(browser, base, "docs/concepts.html", permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.click(".md-code__button[data-md-type=copy], button.md-clipboard", force=True)
        copied = tab.wait_for_function("navigator.clipboard.readText()").json_value()
        assert copied.strip() in (ROOT / "docs/concepts.md").read_text()
        assert copied.startswith("import holdfast as hf\n")


@pytest.mark.nightly
@IN_A_BROWSER
@pytest.mark.parametrize("page", [shown(page) for page in PAGES if "```mermaid" in page.read_text()])
def test_diagrams_are_drawn(browser: Any, base: str, page: str) -> None:
    count = (ROOT / page).read_text().count("```mermaid")
    with opened(browser, base, page.replace("README.md", "index.html").replace(".md", ".html")) as tab:
        tab.wait_for_function(f"document.querySelectorAll('div.mermaid').length == {count}")
        heights = tab.evaluate("[...document.querySelectorAll('div.mermaid')].map(each => each.offsetHeight)")
        assert all(height > 50 for height in heights)
        assert tab.query_selector("pre.mermaid") is None


@pytest.mark.nightly
@IN_A_BROWSER
def test_the_page_is_dark_where_the_system_is_and_can_be_switched(browser: Any, base: str) -> None:
    with opened(browser, base, "docs/why.html", color_scheme="dark") as tab:
        assert tab.get_attribute("body", "data-md-color-scheme") == "slate"
        tab.click("label[title=Light] >> visible=true")
        tab.wait_for_function("document.body.dataset.mdColorScheme == 'default'")


@pytest.mark.nightly
@IN_A_BROWSER
def test_a_page_leads_to_its_markdown(browser: Any, base: str) -> None:
    with opened(browser, base, "docs/operators/map.html") as tab:
        address = tab.get_attribute("a.md-content__button", "href")
        answer = tab.request.get(f"{base}/docs/operators/{address}")
        assert answer.text() == (ROOT / "docs/operators/map.md").read_text()
