"""What is not public of PySpark is used in three modules, and where the head of the first says that it cannot be."""

import ast
import tomllib
from functools import cache
from pathlib import Path

from holdfast.spark.private import SEEN_IN
from holdfast.spark.spark_versions import VERSIONS, bounds, supported_versions
from tests.arch.trees import MODULES, ROOT, nodes_of, tree_of

PRIVATE = ROOT / "spark/private.py"
CATALYST = ROOT / "spark/plans/catalyst.py"
LOG4J = ROOT / "spark/launch/log4j.py"
OTHERS = [path for path in MODULES if path not in (PRIVATE, CATALYST, LOG4J)]

PUBLIC = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.types",
    "py4j.protocol",
}
"""Modules whose names users import, by the documentation of PySpark and Py4J."""

ELSEWHERE = {
    "spark/launch/fork_server.py": {"pyspark.worker"},
    "spark/launch/forked_python.py": {
        "pyspark.daemon",
        "pyspark.sql.streaming.python_streaming_source_runner",
        "pyspark.sql.streaming.transform_with_state_driver_worker",
    },
    "spark/launch/worker_daemon.py": {"pyspark.daemon"},
    "spark/plans/udf_types.py": {"pyspark.sql.udf"},
}
"""Modules of PySpark's that other modules name: processes that must not import what ``private.py`` does."""


def shown(path):
    return str(path.relative_to(ROOT))


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def uses(nodes):
    """Yield the private attributes that are asked of anything but ``self`` and ``cls``, by name and by text."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield name.value


def own(nodes):
    """Yield the private names that a module of ours defines."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def imported(nodes):
    """Yield module and names of each import from PySpark or Py4J, and each text that names a module of theirs."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("pyspark", "py4j"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner in {"pyspark.cloudpickle", "pyspark.daemon", "pyspark.java_gateway", "pyspark.worker"}
                yield (inner, "") if is_module else (node.module, alias.name)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] in ("pyspark", "py4j"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            word = node.value
            if word.startswith("pyspark.") and all(part.isidentifier() for part in word.split(".")):
                yield word, ""


@cache
def ours():
    """Return the names that modules of ours define."""
    return {name for path in OTHERS for name in own(nodes_of(path))}


@cache
def pysparks():
    """Return the names of PySpark's that the modules for them use."""
    return set(uses(nodes_of(PRIVATE))) | set(uses(nodes_of(CATALYST)))


STANDARD = {"_exit", "_getframe", "_replace", "_asdict"}
"""Documented, though they begin with an underscore: of ``os``, ``sys`` and named tuples."""

KAFKAS = {
    "connectors/kafka/sink/transactions.py": {"_find_coordinator_id", "_manager"},
}
"""What design/0036, "Requests", says of kafka-python."""


def test_the_table_of_versions_says_what_is_asked_of_pip():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    assert f"pyspark{bounds()}" in project["project"]["dependencies"]


def test_versions_of_spark_are_in_order_and_what_was_seen_last_is_the_newest():
    assert list(VERSIONS) == sorted(VERSIONS, key=lambda minor: [int(part) for part in minor.split(".")])
    assert supported_versions()[-1] == SEEN_IN
    assert all(version.first.startswith(minor) for minor, version in VERSIONS.items() if version.first)
    assert [minor for minor in VERSIONS if minor in supported_versions()] == list(VERSIONS)[
        -len(supported_versions()) :
    ], "no gap"


def test_there_is_something_to_look_for():
    assert {"_jdf", "_jvm", "_jsq", "_gateway", "_active_spark_context"} <= pysparks()
    assert {"_lock", "_origin"} >= pysparks() & ours(), "names of PySpark's and of ours could not be told apart"


def test_no_other_module_uses_what_pyspark_keeps_for_itself():
    used = {shown(path): set(uses(nodes_of(path))) for path in OTHERS}
    assert {name: of & pysparks() for name, of in used.items() if of & pysparks()} == {}
    unknown = {name: of - ours() - STANDARD - KAFKAS.get(name, set()) for name, of in used.items()}
    assert {name: of for name, of in unknown.items() if of} == {}, "neither ours nor documented"


def test_no_other_module_imports_what_pyspark_keeps_for_itself():
    found = {shown(path): set(imported(nodes_of(path))) for path in OTHERS}
    assert {name for name, of in found.items() if any(is_private(imported_name) for _, imported_name in of)} == set()
    modules = {name: {module for module, _ in of} - PUBLIC for name, of in found.items()}
    assert {name: of for name, of in modules.items() if of} == ELSEWHERE


def test_no_other_module_names_a_class_of_the_jvm():
    found = {
        shown(path)
        for path in OTHERS
        for node in nodes_of(path)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and "org.apache." in node.value)
        or (isinstance(node, ast.Attribute) and node.attr == "apache")
    }
    # What becomes the JVM, before there is one; and a plugin of Maven, which is no class of Spark's.
    assert found == {"spark/launch/jvm_options.py", "testing/servers/kafka.py"}


def test_what_stands_elsewhere_is_listed_in_the_head():
    head = ast.get_docstring(tree_of(PRIVATE))
    for name in ELSEWHERE:
        assert Path(name).stem in head, name
    for name in ("spark_log", "sitecustomize", "log4j2.properties", "plans.catalyst", "launch.log4j"):
        assert name in head, name


def test_no_other_module_takes_a_cut_answer_for_a_whole_one():
    """``collect`` of an RDD and of a frame ends without an error where the JVM died: ``answers_of`` and ``rows_of``."""
    found = {
        shown(path)
        for path in OTHERS
        if shown(path).startswith("spark/")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "collect" and ast.unparse(node.value) != "gc"
    }
    assert found == {"spark/launch/warm_workers.py"}, "what these answer is nothing"
