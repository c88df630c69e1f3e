"""What operators keep, as ``inspect`` prints it, and state that ``run`` is given on the command line."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.pipeline import Pipeline

SCRIPT = """
    import holdfast as hf
    rides = hf.read.files("in/*.json", schema="city STRING, km BIGINT", name="rides")
    def running(key, rows, state):
        state.set(n=state.get("n", 0) + len(rows))
    counts = rides | hf.apply(running, by="city", state="n BIGINT", schema="n BIGINT", name="counts")
    pipeline = hf.Pipeline("trips", counts | hf.write.sqlite("trips.db", table="trips", name="trips"))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(textwrap.dedent(SCRIPT))


def holdfast(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.slow
def test_inspect_prints_what_the_operators_of_a_target_would_keep() -> None:
    answer = holdfast("inspect", "flow.py")
    assert answer.stdout.splitlines() == [
        "keeps       counts, apply by city string",
        "  keys  city string, n int64, __touched_us__ int64; one row for each city",
    ]
    (kept,) = json.loads(holdfast("inspect", "flow.py", "--json").stdout)["schemas"]
    assert kept["tables"] == [
        {"name": "keys", "columns": "city string, n int64, __touched_us__ int64", "key": ["city"]}
    ]


@pytest.mark.slow
def test_run_begins_with_the_state_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    class Started(Exception):
        pass

    def start(self: Pipeline, **options: Any) -> None:
        asked.update(options)
        raise Started

    monkeypatch.setattr(Pipeline, "start", start)
    run = ("run", "flow.py", "--checkpoint", "ckpt")
    holdfast(*run, "--state", "counts=counts.parquet", "--state", "seen=a=b/c")
    assert asked["state"] == {"counts": "counts.parquet", "seen": "a=b/c"}
    for wrong in (["--state", "counts.parquet"], ["--state", "a=1", "--state", "a=2"]):
        assert holdfast(*run, *wrong).exit_code == 2
