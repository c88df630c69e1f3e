"""What the pages name exists: links, options, variables, crash points, targets of make, and every call of ``hf``."""

import ast
import inspect
import re
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import typer.main

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import known_variables
from holdfast.faults import POINTS
from tests.docs.pages import EXAMPLES, PAGES, ROOT, anchors, blocks, links, shown

COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
OPTIONS = {
    name: {option for parameter in command.params for option in parameter.opts} for name, command in COMMANDS.items()
}
LOADS_SPARK = {"Run"}
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=shown)


def target_of(page, link):
    """Return the file that a link leads to; a folder stands for its README."""
    path = (page.parent / link.partition("#")[0]).resolve() if not link.startswith("#") else page
    return path / "README.md" if path.is_dir() else path


@EVERY_PAGE
def test_every_link_leads_somewhere(page):
    for link in links(page):
        target = target_of(page, link)
        assert target.exists(), f"{shown(page)} links {link}"
        fragment = link.partition("#")[2]
        assert not fragment or fragment in anchors(target), f"{shown(page)} links {link}, which has no such heading"


def test_every_page_is_reached_from_the_index():
    reached, waiting = set(), [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [target_of(page, link) for link in links(page)]
    assert [shown(page) for page in PAGES if page not in reached] == []


def test_every_sink_source_and_operator_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text()
    pages = [page for room in ("operators", "sources", "sinks") for page in (ROOT / "docs" / room).glob("*.md")]
    assert len(pages) > 15
    for page in pages:
        assert page.name == "README.md" or f"({page.parent.name}/{page.name})" in index


@EVERY_PAGE
def test_every_option_of_a_command_line_exists(page):
    for command, rest in re.findall(r"holdfast (run|inspect|resolve|explain)\b([^\n`]*)", page.read_text()):
        unknown = [option for option in re.findall(r"--[a-z][a-z-]*", rest) if option not in OPTIONS[command]]
        assert unknown == [], f"holdfast {command}{rest}"


@EVERY_PAGE
def test_every_variable_is_read_by_somebody(page):
    named = set(re.findall(r"HOLDFAST_[A-Z_]*[A-Z]", page.read_text()))
    unknown = named - known_variables_and_their_stems()
    assert [name for name in unknown if f'"{name}"' not in all_code()] == []


@cache
def all_code():
    """Return the text of everything that may read a variable."""
    folders = [ROOT / folder for folder in ("src", "demo", "bench", "tools", "tests/sim", "tests/crash")]
    return "".join(file.read_text() for folder in folders for file in folder.rglob("*.py"))


def known_variables_and_their_stems():
    """Return the settings, and what ``HOLDFAST_RETRY_*`` stands for."""
    words = [name.split("_") for name in known_variables()]
    return {"_".join(parts[:count]) for parts in words for count in range(2, len(parts) + 1)}


@EVERY_PAGE
def test_every_crash_point_exists(page):
    named = re.findall(r"HOLDFAST_FAULT=([a-z-]+)", page.read_text())
    assert [point for point in named if point not in POINTS] == []


def test_the_page_on_testing_lists_every_crash_point_in_the_codes_own_words():
    text = (ROOT / "docs/testing-your-pipeline.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text, re.MULTILINE)
    assert dict(rows) == POINTS


@EVERY_PAGE
def test_every_target_of_make_exists(page):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^\$ |^|`|&& )make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets


def test_every_example_is_listed_and_every_design_record_too():
    listed = (ROOT / "examples/README.md").read_text()
    assert [example.name for example in EXAMPLES if f"]({example.name})" not in listed] == []
    records = list((ROOT / "design").glob("0*.md"))
    listed = (ROOT / "design/README.md").read_text()
    assert [record.name for record in records if f"]({record.name})" not in listed] == []


# --- code -----------------------------------------------------------------------------------------------------------

CODE = [*((str(block), block.text) for page in PAGES for block in blocks(page, "python"))]
CODE += [(shown(example), example.read_text()) for example in EXAMPLES]


def dotted(node):
    """Return the names of ``a.b.c`` from left to right, or nothing."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return [*dotted(node.value), node.attr]
    return []


def bind(call, function):
    """Raise ``TypeError`` unless the call fits the function's signature."""
    signature = inspect.signature(function)
    positions, names = [None] * len(call.args), [keyword.arg for keyword in call.keywords]
    is_open = None in names or any(isinstance(argument, ast.Starred) for argument in call.args)
    is_open = is_open or any(isinstance(argument, ast.Constant) and argument.value is ... for argument in call.args)
    (signature.bind_partial if is_open else signature.bind)(*positions, **dict.fromkeys(name for name in names if name))


@pytest.mark.parametrize(("where", "text"), CODE, ids=[where for where, _ in CODE])
def test_code_on_the_pages_calls_what_exists_with_arguments_that_it_takes(where, text):
    for node in ast.walk(ast.parse(text)):
        names = dotted(node)
        if isinstance(node, ast.Attribute) and names[:1] == ["hf"] and names[1] not in LOADS_SPARK:
            reduce(getattr, names[1:], hf)
        if isinstance(node, ast.Call) and dotted(node.func)[:1] == ["hf"] and dotted(node.func)[1] not in LOADS_SPARK:
            bind(node, reduce(getattr, dotted(node.func)[1:], hf))


@pytest.mark.parametrize("example", EXAMPLES, ids=shown)
def test_an_example_says_what_it_shows_in_its_first_line(example):
    first = ast.get_docstring(ast.parse(example.read_text())).splitlines()[0]
    assert first.endswith(".")
    assert Path(example).read_text().endswith('if __name__ == "__main__":\n    main()\n')
