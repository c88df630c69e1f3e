"""The benchmark of bad input runs, and says what its page promises; the other ones need a JVM."""

from __future__ import annotations

import json

import pytest

from bench import bad_input


@pytest.mark.nightly
def test_the_benchmark_of_bad_input_prints_its_three_figures(capsys: pytest.CaptureFixture[str]) -> None:
    bad_input.main(["--rows", "2000", "--fields", "2000", "--gzip-mb", "70", "--rounds", "1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    assert {"bad_ratio", "quoted_growth", "gzip_peak_mb"} <= set(result)
    assert all(result[key] >= 0 for key in result)
