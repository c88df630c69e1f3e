"""The tree: small packages, small modules, and one owner for each name."""

import ast
from collections import defaultdict

from holdfast import flow
from tests.arch.trees import MODULES, ROOT, nodes_of

PACKAGE_MODULES_MAX = 25
MODULE_LINES_MAX = 700
"""Where one looks twice: smaller bounds cut ideas in two."""


def shown(path):
    return str(path.relative_to(ROOT))


def test_a_package_is_a_room_and_not_a_hall():
    rooms = defaultdict(list)
    for path in MODULES:
        if path.name != "__init__.py":
            rooms[path.parent].append(path.stem)
    assert {shown(room): len(names) for room, names in rooms.items() if len(names) > PACKAGE_MODULES_MAX} == {}


def test_a_module_holds_one_idea():
    lengths = {shown(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_no_two_classes_share_a_name():
    """A reader who meets a name knows which one it is.  Private ones belong to their module.

    ``hf.flow`` is a library of its own, whose names are those of its field: a ``Graph`` is read as ``flow.Graph``.  A
    calculator's options are read behind it.
    """
    owners = defaultdict(list)
    of_flow = {*dir(flow), *dir(flow.calculators), "Options"}
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if "flow" in path.relative_to(ROOT).parts[:1] and node.name in of_flow:
                    continue
                owners[node.name].append(shown(path))
    assert {name: of for name, of in owners.items() if len(of) > 1} == {}
