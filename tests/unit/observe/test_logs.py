"""Logs: short lines for people, everything for the file, secrets for nobody."""

import json
import logging
import os
import sys
import warnings

import pytest

from holdfast.errors import BadRow, InvalidPipeline, crossing
from holdfast.observe.logs import FILE_BYTES, FILE_ONLY, logging_to

SECRET = "hunter2"
DSN = f"postgresql://app:{SECRET}@db/trips"
log = logging.getLogger("holdfast.test")


def fail_with(text):
    try:
        try:
            raise ValueError(text)
        except ValueError as cause:
            raise RuntimeError(f"again: {text}") from cause
    except RuntimeError:
        log.exception("it failed with %s", text)


def test_stderr_gets_short_lines_and_the_file_gets_the_traceback(tmp_path, capsys):
    file = tmp_path / "ckpt" / "holdfast.log"
    with logging_to(file):
        log.info("epoch %d published", 7)
        fail_with("nothing secret")
    shown, kept = capsys.readouterr().err, file.read_text()
    assert "epoch 7 published" in shown
    assert "error: it failed" in shown
    assert "Traceback" not in shown
    assert "epoch 7 published" in kept
    assert "ValueError: nothing secret" in kept
    assert "RuntimeError: again" in kept


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_errors_say_to_programs_reaches_neither_stderr_nor_the_file(tmp_path, capsys, as_json, is_cut):
    """Secrets in it neither, which JSON has spelled in its own way."""
    file, said = tmp_path / "holdfast.log", ""
    try:
        with crossing():
            raise BadRow("refused by the table.", why=f'{DSN} password="{SECRET}" said "no"')
    except BadRow as error:
        said = str(error)
    assert said.count(SECRET) == 4
    with logging_to(file, level="DEBUG", as_json=as_json):
        log.debug("epoch 7 failed: %s", said[:-9] if is_cut else said)
        fail_with(said)
    for text in (capsys.readouterr().err, file.read_text()):
        assert text.count("refused by the table.") >= 3
        assert SECRET not in text
        assert "holdfast-error" not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_a_password_reaches_neither_stderr_nor_the_file(tmp_path, capsys, level, as_json):
    file = tmp_path / "holdfast.log"
    with logging_to(file, level=level, as_json=as_json):
        log.info("connecting to %s", DSN)
        log.info("options %s", {"user": "app", "password": SECRET})
        log.info("password=%s", SECRET)
        log.warning("wrong format %d", DSN)
        logging.getLogger("somebody.else").error(f"failed: password={SECRET}", stack_info=True)
        warnings.warn(f"deprecated: {DSN}", stacklevel=1)
        fail_with(DSN)
    shown, kept = capsys.readouterr().err, file.read_text()
    assert SECRET not in shown
    assert SECRET not in kept
    assert kept.count("***") >= 7
    if as_json:
        assert all(json.loads(line) for line in kept.splitlines())
        assert "RuntimeError" in json.loads(kept.splitlines()[-1])["traceback"]


def test_a_handler_that_somebody_added_later_sees_the_masked_record_too(tmp_path):
    seen = []

    class Collecting(logging.Handler):
        def emit(self, record):
            seen.append(self.format(record))

    with logging_to(tmp_path / "holdfast.log"):
        logging.getLogger().addHandler(Collecting())
        fail_with(DSN)
    assert seen
    assert SECRET not in seen[0]


def test_noise_of_others_is_quieted_and_comes_back_at_debug(tmp_path, capsys):
    with logging_to(None):
        logging.getLogger("py4j.clientserver").warning("closing down")
        logging.getLogger("kafka.net.connection").error("no broker")
        log.debug("a detail")
    assert capsys.readouterr().err == ""
    with logging_to(None, level="DEBUG"):
        logging.getLogger("py4j.clientserver").warning("closing down")
        log.debug("a detail")
    assert "closing down" in (shown := capsys.readouterr().err)
    assert "a detail" in shown


def test_a_quiet_stderr_does_not_thin_out_the_file(tmp_path, capsys):
    file = tmp_path / "holdfast.log"
    with logging_to(file, level="ERROR"):
        log.info("asked sink 'a' for epoch 3, answered PUBLISHED")
    assert capsys.readouterr().err == ""
    assert "answered PUBLISHED" in file.read_text()


@pytest.mark.parametrize(("level", "is_shown"), [("INFO", False), ("DEBUG", True)])
def test_what_the_reader_is_told_anyway_is_only_kept(tmp_path, capsys, level, is_shown):
    file = tmp_path / "holdfast.log"
    with logging_to(file, level=level):
        log.error("the run failed", exc_info=ValueError("why"), extra={FILE_ONLY: True})
    assert ("the run failed" in capsys.readouterr().err) is is_shown
    assert "ValueError: why" in file.read_text()


def test_calls_of_py4j_that_fail_are_only_kept_though_the_root_logger_is_given_them(tmp_path, capsys):
    file = tmp_path / "holdfast.log"
    place = "/lib/py4j/java_gateway.py"
    with logging_to(file):
        for of in (place, "/srv/pipeline.py"):
            record = logging.makeLogRecord({"name": "root", "levelno": logging.INFO, "pathname": of, "msg": of})
            logging.getLogger().handle(record)
    said = capsys.readouterr().err
    assert place not in said
    assert "pipeline.py" in said
    assert place in file.read_text()


def test_logging_is_afterwards_as_it_was_before(tmp_path):
    root = logging.getLogger()
    before = (root.level, root.handlers[:], logging.getLogger("py4j").level)
    with logging_to(tmp_path / "holdfast.log"):
        pass
    assert (root.level, root.handlers[:], logging.getLogger("py4j").level) == before


def test_the_file_is_rotated_and_its_size_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.observe.logs.FILE_BYTES", 2_000)
    with logging_to(tmp_path / "holdfast.log", level="ERROR"):
        for number in range(500):
            log.info("line %d %s", number, "x" * 50)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["holdfast.log", *(f"holdfast.log.{n}" for n in range(1, 6))]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 6 * 2_100
    assert FILE_BYTES == 10_000_000


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_checkpoint_without_the_right_to_write_is_an_error_that_says_so(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidPipeline, match="cannot be written"), logging_to(tmp_path / "ckpt" / "holdfast.log"):
        pass


def test_a_checkpoint_below_a_file_is_an_error_that_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InvalidPipeline, match="cannot be written"),
        logging_to(tmp_path / "file" / "ckpt" / "holdfast.log"),
    ):
        pass


def test_a_process_that_does_not_rotate_follows_the_one_that_does(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.observe.logs.FILE_BYTES", 2_000)
    file = tmp_path / "holdfast.log"
    with logging_to(file, another_rotates=True):
        log.info("before")
        file.rename(tmp_path / "holdfast.log.1")
        file.write_text("a line of the other process\n")
        log.info("x" * 2_001)
        log.info("after")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["holdfast.log", "holdfast.log.1"]
    assert file.read_text().startswith("a line of the other process\n")
    assert file.read_text().endswith(": after\n")


class ClosedPipe:
    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_or_a_closed_stderr_never_stops_the_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "holdfast.log").symlink_to("/dev/full")
    with logging_to(tmp_path / "holdfast.log"):
        log.info("shown, not kept")
        with monkeypatch.context() as closed:
            closed.setattr(sys, "stderr", ClosedPipe())
            log.info("neither")
    assert capsys.readouterr().err.endswith("shown, not kept\n")
