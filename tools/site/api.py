"""The reference of the API: which page has which public names, from the stubs that list them.

MkDocs renders a page from docstrings, which are read and not run (mkdocstrings, griffe).  The Markdown beside it has
the same signatures and docstrings as they stand in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tools.site.tree import ROOT

SOURCE = ROOT / "src"
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Page:
    """A page of the reference.

    Parameters
    ----------
    name : str
        Of the page, below ``api/``.
    title : str
        What its names are.
    stub : str
        File below ``src/holdfast`` that lists public names.
    prefix : str
        What users write before a name.
    packages : tuple of str
        Where the names that belong here are defined; by default all names of the stub.
    """

    name: str
    title: str
    stub: str
    prefix: str = "hf"
    packages: tuple[str, ...] = ("holdfast",)


PAGES = (
    Page("read", "Sources", "read.pyi", "hf.read"),
    Page("write", "Sinks", "write.pyi", "hf.write"),
    Page("errors", "Errors", "__init__.pyi", "hf", ("holdfast.errors",)),
    Page(
        "aggregates",
        "Aggregates and windows",
        "__init__.pyi",
        "hf",
        ("holdfast.operators.aggregate.aggregates", "holdfast.operators.aggregate.window"),
    ),
    Page("state", "State", "__init__.pyi", "hf", ("holdfast.state", "holdfast.operators.stateful.key_state")),
    Page(
        "operators",
        "Operators",
        "__init__.pyi",
        "hf",
        ("holdfast.operators", "holdfast.connectors.reading", "holdfast.models"),
    ),
    Page("pipelines", "Pipelines and runs", "__init__.pyi"),
    Page("flow", "Flowgraphs", "flow/__init__.pyi", "hf.flow"),
    Page("calculators", "Calculators", "flow/calculators/__init__.pyi", "hf.flow.calculators"),
    Page("video", "Video", "video/__init__.pyi", "hf.video"),
    Page("files", "Files that a sink wrote", "files.pyi", "hf.files"),
    Page("segments", "Segments", "segments.pyi", "hf.segments"),
    Page("lookup_table", "Tables for look-ups", "lookup_table.pyi", "hf.lookup_table"),
    Page("control", "Commands of control rows", "connectors/control/__init__.pyi", "hf.control"),
    Page("policy", "Policies of sync", "operators/sync/policy.py", "hf.policy"),
    Page("testing", "For tests", "testing/__init__.py", "hf.testing"),
)
"""A name is on the first page that takes it."""


def pages() -> dict[str, str]:
    """Return the pages that mkdocstrings fills: path on the site -> Markdown."""
    made = {f"api/{page.name}.md": _page(page) for page in PAGES}
    rows = "".join(
        f"| [{page.title}]({page.name}.md) | {', '.join(f'`{name}`' for name, _ in names(page))} |\n" for page in PAGES
    )
    return {
        "api/README.md": f"# API reference\n\nMade from the docstrings.\n\n| page | names |\n|---|---|\n{rows}",
        **made,
    }


def as_markdown(page: Page) -> str:
    """Return a page with the signatures and docstrings themselves."""
    parts = [f"# {page.title}"]
    for name, target in names(page):
        node = _definition(target)
        parts += [f"## {name}", f"```python\n{_signature(node)}\n```", ast.get_docstring(node) or ""]
        for method in _methods(node):
            parts += [
                f"### {name}.{method.name}",
                f"```python\n{_signature(method)}\n```",
                ast.get_docstring(method) or "",
            ]
    return "\n\n".join(filter(None, parts)) + "\n"


def names(page: Page) -> list[tuple[str, str]]:
    """Return the names of a page as users write them, and where each is defined."""
    return [
        (f"{page.prefix}.{name}", target)
        for name, target in public_names(page.stub)
        if next(each for each in PAGES if each.stub == page.stub and _takes(each, target)) is page
    ]


@cache
def public_names(stub: str) -> list[tuple[str, str]]:
    """Return the functions and classes of a stub, and where each is defined; modules have stubs of their own."""
    path = SOURCE / "holdfast" / stub
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        (alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast")
        for alias in node.names
    ]
    found += [(node.name, f"{module}.{node.name}") for node in tree.body if isinstance(node, DEFINITIONS)]
    listed = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_list(node)]
    public = listed[0] if listed else [name for name, _ in found if not name.startswith("_")]
    return [(name, target) for name, target in found if name in public and _is_documented(target)]


def _is_list(node: ast.Assign) -> bool:
    return (
        isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__" and isinstance(node.value, ast.List)
    )


def _takes(page: Page, target: str) -> bool:
    return any(target.startswith(f"{package}.") for package in page.packages)


def _page(page: Page) -> str:
    blocks = [
        f"::: {target}\n    options:\n      heading: {name}\n      toc_label: {name}" for name, target in names(page)
    ]
    return "\n\n".join([f"# {page.title}", *blocks]) + "\n"


def _is_documented(target: str) -> bool:
    try:
        return ast.get_docstring(_definition(target)) is not None
    except LookupError:
        return False


@cache
def _definition(target: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    module, _, name = target.rpartition(".")
    place = SOURCE.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if path.is_file():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, DEFINITIONS) and node.name == name:
                return node
    raise LookupError(target)


def _methods(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
            yield each


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}"
