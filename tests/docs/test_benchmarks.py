"""Every benchmark runs to its RESULT on a small scale, and its second round meets what the first one left."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import run_all
from bench.run_all import COMMANDS, failure_of, is_result

ROOT = Path(__file__).resolve().parents[2]
NO_BENCHMARKS = {"__init__", "lives", "raw_spark", "run_all", "sides"}


def test_each_scale_has_every_benchmark() -> None:
    modules = {f"bench.{path.stem}" for path in (ROOT / "bench").glob("*.py") if path.stem not in NO_BENCHMARKS}
    for commands in COMMANDS.values():
        assert sorted(command[0] for command in commands) == sorted(modules)
    assert [command[0] for command in COMMANDS["smoke"]] == [command[0] for command in COMMANDS["full"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"ratio": 1.5, "details": {"ms": [2, 3]}}', True),
        ('{"ratio": NaN}', False),
        ('{"details": {"ratio": Infinity}}', False),
        ("{}", False),
        ("[1]", False),
        ('{"ratio":', False),
    ],
)
def test_figures_are_an_object_of_finite_numbers(text: str, expected: bool) -> None:
    assert is_result(text) is expected


@pytest.mark.slow
def test_a_benchmark_that_fails_or_says_nothing_is_named_after_all_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = {
        "failing": "print('RESULT {\"ratio\": 1}'); raise SystemExit(3)",
        "silent": "print('no figures')",
        "good": "print('RESULT {\"ratio\": 1}')",
    }
    for name, line in lines.items():
        (tmp_path / f"{name}.py").write_text(line)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_all.run([(name, "--rounds", "2") for name in lines]) == 1
    said = capfd.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("---")] == [f"--- {name} --rounds 2" for name in lines]
    assert said[-1] == "bench: failed: failing (exit code 3), silent (no RESULT)"
    assert run_all.run([("good",)]) == 0


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS["smoke"], ids=lambda command: command[0])
def test_a_benchmark_runs_to_its_result(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert failure_of(command) == ""
