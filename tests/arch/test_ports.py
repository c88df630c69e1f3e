"""What may be asked of an operator, a step, a sink or a source is declared in ``ports/``, and asked by its type."""

import ast

from tests.arch.trees import MODULES, ROOT, nodes_of

OF_OTHERS = {
    "cli/failures.py: exit_code",  # errors of the command line's own library
    "cli/failures.py: format_message",
    "display/cell.py: kernel",  # the shell of IPython
    "graph/nodes.py: attach",  # whatever a user wrote behind |
    "plan/batches.py: co_filename",
    "connectors/postgres/checks.py: flatten",  # an array of nested values
    "connectors/sqlite/session.py: sqlite_errorcode",
    "connectors/formats/json_verdicts.py: msg",
    "spark/private.py: _origin",  # errors of Py4J and PySpark
    "spark/private.py: java_exception",
    "types/schema.py: jsonValue",  # a schema of PySpark's, where PySpark may not be there
}
"""What is asked by name all the same: of what users, Python, Arrow and databases give."""

ASKING = ("getattr", "hasattr")


def asked_by_name():
    """Yield each place where an attribute is looked for by a name that is written there; dunders are Python's own."""
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
                name = node.args[1]
                if isinstance(name, ast.Constant) and not str(name.value).startswith("__"):
                    yield f"{path.relative_to(ROOT)}: {name.value!s}"


def test_what_is_optional_is_asked_by_its_protocol():
    assert set(asked_by_name()) == OF_OTHERS
