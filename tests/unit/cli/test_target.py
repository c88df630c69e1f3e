"""TARGET names a pipeline in a file or a module; whatever is wrong with it is said with the line."""

import os
import sys
import textwrap

import pytest
from pyspark import cloudpickle

from holdfast import InvalidPipeline
from holdfast.cli.target import load_target

PIPELINE = """
import holdfast as hf
rows = hf.read.files("in/*.json", schema="x INT", name="rows")
pipeline = hf.Pipeline("trips", rows | hf.write.sqlite("out.db", table="t", name="t"))
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """The current directory is empty, and what loading changes is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", "")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("flow"):
            del sys.modules[name]


def write(path, code):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def test_a_file_and_a_name(tmp_path):
    write(tmp_path / "trips.py", PIPELINE)
    assert load_target("trips.py:pipeline").name == "trips"
    assert load_target(f"{tmp_path}/trips.py:pipeline").name == "trips"


def test_without_a_name_the_only_pipeline_is_meant(tmp_path):
    write(tmp_path / "trips.py", PIPELINE + "\nthe_same = pipeline\n")
    assert load_target("trips.py").name == "trips"


def test_a_module_of_the_current_directory(tmp_path):
    write(tmp_path / "flows_a" / "__init__.py", "")
    write(tmp_path / "flows_a" / "trips.py", PIPELINE)
    assert load_target("flows_a.trips:pipeline").name == "trips"
    assert load_target("flows_a.trips").name == "trips"


def test_a_file_imports_its_neighbours_and_so_do_workers(tmp_path):
    write(tmp_path / "jobs" / "flow_common.py", "SCHEMA = 'x INT'")
    write(tmp_path / "jobs" / "trips.py", "import flow_common" + PIPELINE.replace('"x INT"', "flow_common.SCHEMA"))
    assert load_target("jobs/trips.py").name == "trips"
    assert str(tmp_path / "jobs") in os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_main_block_does_not_run(tmp_path):
    write(tmp_path / "trips.py", PIPELINE + "\nif __name__ == '__main__':\n    raise SystemExit('ran')\n")
    assert load_target("trips.py").name == "trips"


def test_functions_of_a_file_travel_by_value_so_no_executor_needs_the_file(tmp_path):
    write(
        tmp_path / "flow_udf.py",
        PIPELINE + "\nfrom dataclasses import dataclass\n@dataclass\nclass Point:\n    x: 'int'\n"
        "def clean(x):\n    return Point(x + 1).x\npipeline_function = clean\n",
    )
    load_target("flow_udf.py")
    from holdfast.cli import target

    clean = target._loaded[-1].clean
    sent = cloudpickle.dumps(clean)
    sys.path.remove(str(tmp_path))
    (tmp_path / "flow_udf.py").unlink()
    assert "flow_udf" not in sys.modules
    assert cloudpickle.loads(sent)(1) == 2


@pytest.mark.slow
def test_a_forgotten_stream_in_a_file_is_still_found_when_the_pipeline_starts(tmp_path):
    write(tmp_path / "trips.py", PIPELINE + "\nforgotten = rows | hf.filter('x > 1', name='forgotten')\n")
    pipeline = load_target("trips.py")
    with pytest.raises(InvalidPipeline, match="'forgotten'"):
        pipeline.start(checkpoint="ckpt")


@pytest.mark.parametrize(
    ("code", "target", "what", "why"),
    [
        ("", "trips.py", "trips.py has no pipeline", "no name of the module"),
        (PIPELINE, "trips.py:other", "has no 'other'", "it has pipeline"),
        (PIPELINE, "trips.py:rows", "is not a pipeline", "it is a Stream"),
        (PIPELINE, "nowhere.py", "there is no file 'nowhere.py'", "looked in"),
        (PIPELINE, "nowhere.at_all:pipeline", "there is no module 'nowhere.at_all'", "knows no 'nowhere'"),
        (PIPELINE, "trips.py:not a name", "names no pipeline", "TARGET is"),
        (PIPELINE, ":pipeline", "names no pipeline", "TARGET is"),
        ("x = 1\ny = undefined_name\n", "trips.py", "NameError: name 'undefined_name'", "line 2 of"),
        ("x = (\n", "trips.py", "cannot be loaded: SyntaxError", "line 1 of"),
        ("import not_installed_anywhere\n", "trips.py", "ModuleNotFoundError", "line 1 of"),
        ("import sys\nsys.exit(3)\n", "trips.py", "SystemExit: 3", "line 2 of"),
    ],
)
def test_whatever_is_wrong_is_said_with_what_and_why(tmp_path, code, target, what, why):
    write(tmp_path / "trips.py", code)
    with pytest.raises(InvalidPipeline) as caught:
        load_target(target)
    assert what in caught.value.what
    assert why in caught.value.why
    assert caught.value.do


def test_several_pipelines_want_a_name(tmp_path):
    second = (
        PIPELINE.replace("pipeline =", "second =").replace('"trips"', '"more"').replace("import holdfast as hf", "")
    )
    write(tmp_path / "trips.py", PIPELINE + second)
    with pytest.raises(InvalidPipeline, match="has 2 pipelines") as caught:
        load_target("trips.py")
    assert "trips.py:pipeline" in caught.value.do
    assert load_target("trips.py:second").name == "more"


def test_an_error_of_ours_in_the_file_comes_through_as_it_is(tmp_path):
    write(tmp_path / "trips.py", "import holdfast as hf\nhf.every('soon')\n")
    with pytest.raises(InvalidPipeline, match="interval='soon'"):
        load_target("trips.py")


def test_a_failed_file_leaves_no_module_behind(tmp_path):
    write(tmp_path / "flow_broken.py", "raise ValueError('no')")
    with pytest.raises(InvalidPipeline):
        load_target("flow_broken.py")
    assert "flow_broken" not in sys.modules
