"""Settings: checked at the start, each with a range and a reason, and documented from the same table."""

import os
import re
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.config import (
    Settings,
    known_variables,
    limit_of,
    markdown_table,
    markdown_table_of_others,
    mistaken_variables,
    unknown_variables,
    variable,
)
from holdfast.errors import InvalidPipeline

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in [name for name in os.environ if name.upper().startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


def test_the_defaults_are_those_of_the_design():
    settings = Settings()
    assert settings.carry_max_bytes == 16_000_000
    assert settings.prefetch_max_bytes == 4_000_000
    assert (settings.retry_attempts, settings.retry_first_s, settings.retry_cap_s) == (10, 0.5, 15.0)
    assert (settings.commit_queue, settings.ledger_keep) == (4, 100)
    assert settings.progress_interval_s == 5.0
    assert settings.master == "local[*]"


def test_ten_attempts_outlast_a_minute():
    settings = Settings()
    waits = [min(settings.retry_first_s * 2**n, settings.retry_cap_s) for n in range(settings.retry_attempts - 1)]
    assert sum(waits) > 60


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_default_lies_in_its_own_range_and_has_a_reason(name):
    default = Settings.model_fields[name].default
    assert getattr(Settings(**{name: default}), name) == default
    assert len(Settings.model_fields[name].description or "") > 40
    assert limit_of(name)


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("HOLDFAST_CARRY_MAX", "0 B", "carry_max_bytes", 0),
        ("HOLDFAST_CARRY_MAX", " 1MiB ", "carry_max_bytes", 2**20),
        ("HOLDFAST_RETRY_ATTEMPTS", "3", "retry_attempts", 3),
        ("HOLDFAST_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("HOLDFAST_LOG_JSON", "yes", "log_json", True),
        ("HOLDFAST_LOG_JSON", "0", "log_json", False),
        ("HOLDFAST_MASTER", "spark://h:7077", "master", "spark://h:7077"),
        ("HOLDFAST_MASTER", "local[*, 4]", "master", "local[*, 4]"),
        ("HOLDFAST_MASTER", "local-cluster[2,1,1024]", "master", "local-cluster[2,1,1024]"),
        ("HOLDFAST_DRIVER_MEMORY", "4 GiB", "driver_memory_mib", 4096),
        ("HOLDFAST_CARRY_MAX", "", "carry_max_bytes", 16_000_000),
    ],
)
def test_a_variable_is_read(monkeypatch, name, text, attribute, value):
    monkeypatch.setenv(name, text)
    assert getattr(Settings(), attribute) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("HOLDFAST_CARRY_MAX", "16", "not a number with a unit"),
        ("HOLDFAST_CARRY_MAX", "2 GB", "0 B to 1 GB"),
        ("HOLDFAST_SWEEP_INTERVAL", "0 s", "1 s to 1 d"),
        ("HOLDFAST_RETRY_ATTEMPTS", "0", "1 to 100"),
        ("HOLDFAST_RETRY_ATTEMPTS", "many", "whole number"),
        ("HOLDFAST_LOG_LEVEL", "LOUD", "DEBUG, INFO"),
        ("HOLDFAST_LOG_JSON", "maybe", "true or false"),
        ("HOLDFAST_MASTER", " ", "spark://host:7077"),
        ("HOLDFAST_MASTER", "localhost", "spark://host:7077"),
        ("HOLDFAST_MASTER", "local[0]", "local[2]"),
        ("HOLDFAST_MASTER", "local[many]", "local[*]"),
        ("HOLDFAST_MASTER", "host:7077", "spark://host:7077"),
        ("HOLDFAST_RETRY_FIRST", "1 min", "longer than HOLDFAST_RETRY_CAP"),
    ],
)
def test_a_value_that_cannot_be_used_names_the_variable_and_what_it_may_be(monkeypatch, name, text, said):
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidPipeline) as caught:
        Settings()
    assert name in caught.value.what
    assert said in str(caught.value)
    assert caught.value.do


@pytest.mark.parametrize("value", ["-1", "many", "1000000000"])
@pytest.mark.parametrize("name", ["checkpoint_freq", "max_restarts", "commit_queue"])
def test_the_example_for_a_count_is_its_default_and_not_a_bound_that_may_mean_off(name, value):
    with pytest.raises(InvalidPipeline) as caught:
        Settings(**{name: value})
    assert caught.value.do == f"for instance {variable(name)}='{Settings.model_fields[name].default}'."


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Settings().carry_max = "1 MB"


def test_an_unknown_variable_is_told_with_the_nearest_known_one_and_without_its_value():
    warnings = unknown_variables({"HOLDFAST_RETRY_ATEMPTS": "hunter2", "HOLDFAST_QQ": "hunter2", "OTHER": "x"})
    assert warnings == [
        "HOLDFAST_QQ is not a setting and is ignored; docs/configuration.md lists them all.",
        "HOLDFAST_RETRY_ATEMPTS is not a setting and is ignored; did you mean HOLDFAST_RETRY_ATTEMPTS?",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("after-desire:5", "'after-desire' is not a crash point; there are before-stage, stage-write, "),
        ("after_decide", "'after_decide' is not a crash point"),
        ("after-decide:5x", "'5x' is not an epoch: write for instance after-decide:3"),
        ("after-decide:05", "'05' is not an epoch"),
        ("after-decide:-1", "'-1' is not an epoch"),
    ],
)
def test_a_crash_point_that_kills_nobody_is_told_with_those_there_are(value, said):
    (warning,) = mistaken_variables({"HOLDFAST_FAULT": value})
    assert warning.startswith(f"HOLDFAST_FAULT='{value}' has no effect: {said}")


def test_a_crash_point_that_there_is_is_not_warned_about():
    for point in faults.POINTS:
        for value in (point, f"{point}:", f"{point}:5", ""):
            assert mistaken_variables({"HOLDFAST_FAULT": value}) == []


def test_variables_of_tests_and_every_setting_are_known():
    assert unknown_variables(dict.fromkeys(known_variables(), "x")) == []
    assert {"HOLDFAST_FAULT", "HOLDFAST_POSTGRES", "HOLDFAST_SEED", variable("carry_max")} <= set(known_variables())


def test_the_documented_tables_are_those_in_the_code():
    """Mend with: python -c "from holdfast.config import markdown_table; print(markdown_table())"."""
    text = DOCUMENT.read_text()
    assert markdown_table() in text
    assert markdown_table_of_others() in text
    assert set(re.findall(r"HOLDFAST_[A-Z_]*[A-Z]", text)) == set(known_variables())
