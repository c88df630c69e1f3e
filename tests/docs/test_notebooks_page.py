"""The page about notebooks: its cells run one after the other, and what a cell ends with can be shown."""

import ast

import pytest

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.status import Status
from tests.docs.pages import ROOT, blocks

BLOCKS = blocks(ROOT / "docs/notebooks.md", "python")


def executed(block, names):
    """Execute a cell as a kernel does; return the value of its last line, None where that is no expression."""
    body = ast.parse(block.text).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(block), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(block), "eval"), names)


@pytest.mark.spark
def test_the_cells_of_the_page_do_what_it_says(tmp_path, monkeypatch, spark, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = [executed(block, names) for block in BLOCKS]
    drawn = [value for value in shown if hasattr(value, "_repr_html_")]
    assert all(isinstance(*each) for each in zip(drawn, (Stream, hf.Pipeline, Status), strict=True))
    assert all(value._repr_html_().startswith("<") for value in drawn)
    assert shown[2] is True, "run.progress() says that the run has ended"
    assert "rides stopped: epoch 1, 27 rows" in capsys.readouterr().out
    assert names["run"].status().state == "stopped"
    assert repr(names["run"]) == "<run of 'rides': generation 2, stopped>"
