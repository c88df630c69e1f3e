"""The tests on the page about testing pass: those without Spark as they stand, the others as a reader runs them."""

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, blocks, environment

PAGE = ROOT / "docs/testing-your-pipeline.md"
BLOCKS = blocks(PAGE, "python")
KIT = [block for block in BLOCKS if not block.file_name]


def saved(directory):
    for block in BLOCKS:
        if block.file_name:
            (directory / block.file_name).write_text(block.text)


def pytest_in(directory, *files):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    return subprocess.run(
        command,
        cwd=directory,
        env=environment() | {"PYTHONPATH": f"{ROOT / 'src'}:{directory}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", KIT, ids=str)
def test_what_the_page_does_with_the_kit_is_true(block):
    names = {}
    exec(compile(block.text, str(block), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.slow
def test_the_test_of_the_graph_passes_without_java(tmp_path):
    saved(tmp_path)
    result = pytest_in(tmp_path, "test_rides_graph.py")
    assert "2 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.nightly
@pytest.mark.spark
def test_the_test_of_the_rows_passes(tmp_path):
    saved(tmp_path)
    result = pytest_in(tmp_path, "test_rides_rows.py")
    assert "1 passed" in result.stdout, result.stdout + result.stderr
