"""``holdfast inspect --config``: each variable, its value, where it comes from; and no secret."""

import pytest

from holdfast.cli.words import configuration_lines
from holdfast.config import Settings, variable
from holdfast.observe.reading import configuration


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)


def of(shown):
    return {one.variable: (one.value, one.whence) for one in shown.settings}


def test_each_setting_is_shown_once_with_its_value_and_where_it_comes_from(monkeypatch):
    environ = {"HOLDFAST_CARRY_MAX": "1 MB", "HOLDFAST_LOG_JSON": "yes", "HOLDFAST_RETRY_ATTEMPTS": ""}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = of(configuration(Settings(commit_queue=7), environ))
    assert list(found) == [variable(name) for name in Settings.model_fields]
    assert found["HOLDFAST_CARRY_MAX"] == ("1 MB", "environment")
    assert found["HOLDFAST_LOG_JSON"] == ("true", "environment")
    assert found["HOLDFAST_COMMIT_QUEUE"] == ("7", "argument")
    assert found["HOLDFAST_RETRY_ATTEMPTS"] == ("10", "default")


def test_a_crash_point_that_there_is_not_is_told_beside_the_settings():
    text = "\n".join(configuration_lines(configuration(Settings(), {"HOLDFAST_FAULT": "after-desire"})))
    assert "! HOLDFAST_FAULT='after-desire' has no effect: 'after-desire' is not a crash point" in text


def test_an_argument_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("HOLDFAST_COMMIT_QUEUE", "9")
    environ = {"HOLDFAST_COMMIT_QUEUE": "9"}
    assert of(configuration(Settings(commit_queue=7), environ))["HOLDFAST_COMMIT_QUEUE"] == ("7", "argument")
    assert of(configuration(Settings(), environ))["HOLDFAST_COMMIT_QUEUE"] == ("9", "environment")


def test_secrets_are_covered_and_a_mistyped_variable_is_named_with_its_nearest_match():
    environ = {"HOLDFAST_POSTGRES": "postgresql://app:hunter2@db/trips", "HOLDFAST_CARY_MAX": "hunter2"}
    shown = configuration(Settings(master="spark://h:1?token=hunter2"), environ)
    text = "\n".join(configuration_lines(shown)) + str(shown.to_json())
    assert "hunter2" not in text
    assert of(shown)["HOLDFAST_POSTGRES"] == ("postgresql://app:***@db/trips", "environment")
    assert "! HOLDFAST_CARY_MAX is not a setting and is ignored; did you mean HOLDFAST_CARRY_MAX?" in text
