"""The import ladder, and what importing Holdfast must not bring along."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(program):
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_imports_point_down_the_ladder_only():
    """The contracts in ``pyproject.toml``, which ``make lint`` asks too.

    In a process of its own: import-linter disables every logger there is.
    """
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "src"}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_a_graph_is_built_checked_and_drawn_without_pyspark_and_drivers():
    program = """
import sys
import holdfast as hf
flights = hf.read.files("data/flights", schema="origin STRING, dep_delay INT", name="flights") | hf.row_id()
parts = flights | hf.filter("dep_delay is not null") | hf.split(late="dep_delay > 15", otherwise="rest")
pipeline = hf.Pipeline(
    "p", parts.late | hf.write.sqlite("x.db", table="late"), parts.rest | hf.write.files("out"),
    flights | hf.write.redis("redis://h", key="k"), flights | hf.write.http("http://h/", auth="Bearer ${T}"),
    flights | hf.write.kafka("h:9092", "flights", key="origin"),
)
pipeline.explain(), pipeline.diagram(), pipeline.fingerprint()
heavy = {"pyspark", "py4j", "psycopg", "redis", "kafka", "confluent_kafka", "urllib3"}
print(sorted({module.partition(".")[0] for module in sys.modules} & heavy))
"""
    assert python(program) == "[]\n"


@pytest.mark.slow
def test_the_kit_for_tests_runs_graphs_without_pyspark():
    program = """
import sys
import holdfast as hf
import holdfast.testing.simulation.levels
from holdfast.testing import drive
given = hf.read.rows([], schema="k STRING, v BIGINT", name="given")
running = given | hf.accumulate(by="k", n=hf.count(), name="running")
assert drive(running, {"given": [[{"k": "a", "v": 1}]]}) == [[{"k": "a", "v": 1, "n": 1}]]
print(sorted(name for name in sys.modules if name.startswith(("pyspark", "py4j", "holdfast.spark"))))
"""
    assert python(program) == "[]\n"


def test_importing_holdfast_loads_nothing_that_is_not_asked_for():
    program = "import sys, holdfast; print(sorted(module for module in sys.modules if module.startswith('holdfast')))"
    assert python(program) == "['holdfast', 'holdfast.later']\n"


@pytest.mark.slow
def test_workers_and_planning_processes_start_without_what_builds_a_graph():
    """Spark starts several of these processes for each run; every import is part of how long a start takes."""
    program = """
import sys
import holdfast.spark.state.host, holdfast.spark.datasource, holdfast.plan.levels.packing
heavy = {"sqlglot", "typer", "psycopg", "pydantic", "redis", "kafka", "confluent_kafka", "urllib3", "urllib.request"}
heavy |= {"holdfast.pipeline", "holdfast.expressions.text"}
print(sorted(heavy & sys.modules.keys()))
"""
    assert python(program) == "[]\n"


@pytest.mark.slow
def test_what_is_private_of_pyspark_loads_nothing_that_pyspark_does_not():
    """Planning processes and workers import it."""
    program = """
import sys
import pyarrow, pyspark
before = set(sys.modules)
import holdfast.spark.private
print(sorted(name for name in sys.modules.keys() - before if not name.startswith("holdfast")))
"""
    assert python(program) == "[]\n"


@pytest.mark.slow
def test_without_psycopg_everything_but_the_postgres_sink_works():
    program = """
import sys
sys.modules["psycopg"] = None  # as if it were not installed
import holdfast as hf
hf.write.sqlite("x.db", table="t")
try:
    hf.write.postgres("postgresql://localhost/db", table="t")
except hf.InvalidPipeline as error:
    assert "holdfast[postgres]" in error.do, error
"""
    python(program)


@pytest.mark.slow
def test_a_planning_process_loads_neither_graphs_nor_what_evaluates_them():
    """One is started for each source, and waited for; joined modules bring more along than their readers need."""
    program = """
import sys
import holdfast.spark.datasource
heavy = {"holdfast.graph.graph", "holdfast.checkpoint.manifest", "holdfast.plan.stages", "holdfast.operators.sync.step"}
print(sorted(heavy & sys.modules.keys()))
"""
    assert python(program) == "[]\n"
