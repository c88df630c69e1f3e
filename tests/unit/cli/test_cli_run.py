"""``holdfast run``: options, progress, exit codes and signals, against an engine that is a fake; no JVM."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from holdfast.errors import KINDS
from tests.crash.processes import kill_tree
from tests.everyday import everyday

pytestmark = pytest.mark.slow  # each test starts processes
AT_NIGHT = pytest.mark.nightly

SRC = Path(__file__).parents[3] / "src"

ENGINE = """
    import dataclasses, os, sys, threading, types
    import holdfast as hf
    from holdfast.status import SinkStatus, Status
    from holdfast.time_use import EpochStatus

    class FakeRun:
        def __init__(self, behaviour):
            self.behaviour = behaviour
            self.ended = threading.Event()
            self.asked_to_stop = False
            if behaviour == "ends":
                self.ended.set()

        def status(self):
            state = "stopped" if self.ended.is_set() else "running"
            return Status("trips", generation=1, state=state, epoch=7, rows_total=70, started_at_us=1)

        def wait(self, timeout_s=None):
            if self.behaviour in ("waits", "never ends") or self.behaviour.startswith("fails when stopped: "):
                print("waiting", flush=True)
            if self.behaviour in hf.errors.KINDS:
                error = hf.errors.KINDS[self.behaviour](
                    "it happened with password=hunter2.", why="because.", do="this.", epoch=7)
                error.add_note("History of epoch 7")
                raise error
            if self.behaviour.startswith("dies"):
                with open("lives", "a") as lives:
                    lives.write("life ")
                if len(open("lives").read().split()) <= int(self.behaviour.split()[1]):
                    os.kill(os.getpid(), 9)
                return True
            if self.behaviour == "bug":
                raise ZeroDivisionError("a bug, password=hunter2")
            return self.ended.wait(timeout_s)

        def stop(self, timeout_s=None):
            print("asked to stop", flush=True)
            if self.behaviour == "waits":
                self.ended.set()
            if self.behaviour.startswith("fails when stopped: "):
                self.behaviour = self.behaviour.partition(": ")[2]
                return True
            return self.ended.wait(timeout_s)

    def start(pipeline, *, checkpoint, trigger, **options):
        settings = options.pop("settings")
        print("started", pipeline.name, checkpoint, trigger, sorted(options.items()), settings.carry_max, flush=True)
        if os.environ.get("BEHAVIOUR") == "cannot start":
            raise hf.InvalidPipeline("it cannot start.", why="because.", do="this.")
        for number in os.environ.get("SIGNALS_AT_START", "").split():
            os.kill(os.getpid(), int(number))
        if os.environ.get("BEHAVIOUR") == "loses its workers":
            raise hf.errors.Unavailable("a worker died in a trial.", why="because.", do="this.")
        return FakeRun(os.environ.get("BEHAVIOUR", "ends"))

    engine = types.ModuleType("holdfast.controller.start")
    engine.start = start
    sys.modules["holdfast.controller.start"] = engine
"""
PIPELINE = """
    rows = hf.read.files("in/*.json", schema="x INT", name="rows")
    pipeline = hf.Pipeline("trips", rows | hf.write.sqlite("out.db", table="t", name="t"))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "trips.py").write_text(textwrap.dedent(ENGINE) + textwrap.dedent(PIPELINE))
    return tmp_path / "trips.py"


def environment(behaviour, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | {"PYTHONPATH": str(SRC), "BEHAVIOUR": behaviour, **more}


def holdfast(*arguments, cwd, behaviour="ends", **more):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=cwd,
        env=environment(behaviour, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_ends_well_exits_0_and_says_what_it_did(script, tmp_path):
    answer = holdfast("run", "trips.py", "--checkpoint", "ckpt", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert f"started trips {tmp_path / 'ckpt'} every" in answer.stdout
    assert "trips stopped at epoch 7: 70 rows" in answer.stderr
    assert "run trips.py; Python 3" in (tmp_path / "ckpt" / "holdfast.log").read_text()
    assert "run trips.py" not in answer.stderr


def test_options_reach_the_engine_and_those_not_given_do_not(script, tmp_path):
    answer = holdfast(
        "run", "trips.py:pipeline", "--checkpoint", "ckpt", "--every", "250ms", "--master", "local[2]",
        "--commit-every", "1s", cwd=tmp_path, HOLDFAST_CARRY_MAX="1 MB",
    )  # fmt: skip
    assert "every(\"250 ms\") [('commit_every', '1s'), ('master', 'local[2]')] 1 MB" in answer.stdout
    answer = holdfast("run", "trips.py", "--checkpoint", "ckpt", "--available-now", cwd=tmp_path)
    assert "available_now() []" in answer.stdout


def test_an_unknown_variable_is_warned_about(script, tmp_path):
    answer = holdfast("run", "trips.py", "--checkpoint", "c", cwd=tmp_path, HOLDFAST_CARY_MAX="hunter2")
    assert "did you mean HOLDFAST_CARRY_MAX?" in answer.stderr
    assert "hunter2" not in answer.stderr


def test_inspect_config_needs_no_checkpoint_and_the_log_of_a_run_has_what_was_chosen(script, tmp_path):
    answer = holdfast("inspect", "--config", "--json", cwd=tmp_path, HOLDFAST_CARRY_MAX="1 MB")
    assert answer.returncode == 0, answer.stderr
    shown = {one["variable"]: one for one in json.loads(answer.stdout)["settings"]}
    assert shown["HOLDFAST_CARRY_MAX"]["whence"] == "environment"
    assert holdfast("inspect", cwd=tmp_path).returncode == 2
    holdfast("run", "trips.py", "--checkpoint", "ckpt", cwd=tmp_path, HOLDFAST_CARRY_MAX="1 MB")
    assert "settings: HOLDFAST_CARRY_MAX=1 MB (environment)" in (tmp_path / "ckpt" / "holdfast.log").read_text()


QUICKLY = {"HOLDFAST_RESTART_FIRST": "1 ms", "HOLDFAST_RESTART_CAP": "1 ms"}


def test_a_supervised_run_is_started_again_after_a_kill_and_its_options_reach_it(script, tmp_path):
    answer = holdfast(
        "run", "trips.py", "--checkpoint", "ckpt", "--every", "250ms", "--supervise", cwd=tmp_path, behaviour="dies 2",
        **QUICKLY,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("started trips") == 3
    assert answer.stdout.count('every("250 ms")') == 3
    assert "the run killed by SIGKILL; restart 2 (2 of at most 10 consecutive)" in answer.stderr
    shown = holdfast("inspect", "--checkpoint", "ckpt", cwd=tmp_path)
    assert "supervisor  2 restarts, the last one" in shown.stdout
    assert "the run killed by SIGKILL" in shown.stdout


@pytest.mark.parametrize(
    ("behaviour", "code", "starts"),
    [
        pytest.param("dies 9", 137, 3, marks=AT_NIGHT),
        pytest.param("Fenced", 3, 1, marks=AT_NIGHT),
        ("Diverged", 4, 1),
        pytest.param("InDoubt", 4, 3, marks=AT_NIGHT),
    ],
)
def test_a_supervised_run_ends_with_the_code_of_its_last_child(script, tmp_path, behaviour, code, starts):
    answer = holdfast(
        "run", "trips.py", "--checkpoint", "c", "--supervise", "--max-restarts", "2", cwd=tmp_path,
        behaviour=behaviour, **QUICKLY,
    )  # fmt: skip
    assert (answer.returncode, answer.stdout.count("started trips")) == (code, starts), answer.stderr
    assert "hunter2" not in answer.stderr
    assert all("hunter2" not in path.read_text() for path in (tmp_path / "c").glob("*.json"))


@pytest.mark.nightly
def test_a_supervisor_finds_a_checkpoint_that_is_named_by_a_url(script, tmp_path):
    place = f"file://{tmp_path}/ckpt"
    holdfast("run", "trips.py", "--checkpoint", place, "--supervise", cwd=tmp_path, behaviour="dies 1", **QUICKLY)
    assert (tmp_path / "ckpt" / "supervisor.json").exists()
    made = {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"__pycache__"}
    assert made == {"ckpt"}, "nothing else was made for a part of the URL"


def test_the_hangup_of_a_terminal_ends_a_supervised_run_and_its_child(script, tmp_path):
    with Running(tmp_path, "waits", "--supervise") as running:
        running.read_until("waiting")
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(60) == 128 + signal.SIGHUP
        assert "started trips" not in running.process.stdout.read(), "the child is gone, and none came after it"


EXIT_CODES = {"InvalidPipeline": 2, "Fenced": 3, "InDoubt": 4, "Diverged": 4}


@pytest.mark.parametrize("kind", everyday(KINDS, ["InDoubt"]))
def test_each_kind_of_error_has_its_exit_code_and_one_message_and_the_log_has_the_traceback(script, tmp_path, kind):
    answer = holdfast("run", "trips.py", "--checkpoint", "ckpt", cwd=tmp_path, behaviour=kind)
    assert answer.returncode == EXIT_CODES.get(kind, 1)
    message = answer.stderr[answer.stderr.index(f"{kind}: ") :]
    assert message == (
        f"{kind}: it happened with password=***\n  Why: because.\n  Do:  this.\n  History of epoch 7\n  Log: "
        f"{tmp_path / 'ckpt' / 'holdfast.log'}\n"
    )
    assert "Traceback" not in answer.stderr
    log = (tmp_path / "ckpt" / "holdfast.log").read_text()
    assert "Traceback" in log
    assert "hunter2" not in log + answer.stderr + answer.stdout


def test_with_json_an_error_is_an_object_on_stdout(script, tmp_path):
    answer = holdfast("run", "trips.py", "--checkpoint", "ckpt", "--json", cwd=tmp_path, behaviour="Fenced")
    assert answer.returncode == 3
    *_, status, error = answer.stdout.splitlines()
    assert json.loads(status)["epoch"] == 7
    assert json.loads(error)["error"] == {
        "kind": "Fenced", "what": "it happened with password=***", "why": "because.", "do": "this.", "pipeline": "",
        "participant": "", "epoch": 7, "generation": None, "story": ["History of epoch 7"], "exit_code": 3,
    }  # fmt: skip
    assert answer.stderr == ""


@pytest.mark.nightly
def test_an_unforeseen_error_is_ours_and_only_the_log_has_its_traceback(script, tmp_path):
    answer = holdfast("run", "trips.py", "--checkpoint", "ckpt", cwd=tmp_path, behaviour="bug")
    assert answer.returncode == 1
    assert "InternalError: unforeseen ZeroDivisionError: a bug, password=***" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "ZeroDivisionError: a bug" in (tmp_path / "ckpt" / "holdfast.log").read_text()


@pytest.mark.nightly
def test_at_debug_the_traceback_is_shown_too(script, tmp_path):
    answer = holdfast(
        "run", "trips.py", "--checkpoint", "ckpt", cwd=tmp_path, behaviour="bug", HOLDFAST_LOG_LEVEL="debug"
    )
    assert "Traceback" in answer.stderr
    assert "hunter2" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "behaviour", "more", "said"),
    [
        (["run", "trips.py"], "ends", {}, "--checkpoint"),
        (
            ["run", "trips.py", "--checkpoint", "c", "--every", "1s", "--available-now"],
            "ends",
            {},
            "exclude each other",
        ),
        (["run", "nowhere.py", "--checkpoint", "c"], "ends", {}, "there is no file 'nowhere.py'"),
        (["run", "trips.py", "--checkpoint", "c"], "cannot start", {}, "it cannot start"),
        *(
            pytest.param(arguments, "ends", variables, said, marks=AT_NIGHT)
            for arguments, variables, said in [
                (["run", "trips.py", "--checkpoint", "c", "--every", "soon"], {}, "not a number with a unit"),
                (["run", "trips.py", "--checkpoint", "hdfs://host/c"], {}, "a hdfs:// address is not supported"),
                (["run", "trips.py", "--checkpoint", "trips.py"], {}, "cannot be the directory of a checkpoint"),
                (
                    ["run", "trips.py", "--checkpoint", "c"],
                    {"HOLDFAST_RETRY_ATTEMPTS": "x"},
                    "HOLDFAST_RETRY_ATTEMPTS",
                ),
                (["fly"], {}, "No such command"),
            ]
        ),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(script, tmp_path, arguments, behaviour, more, said):
    answer = holdfast(*arguments, cwd=tmp_path, behaviour=behaviour, **more)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_wrong_target_leaves_no_checkpoint_behind(script, tmp_path):
    holdfast("run", "nowhere.py", "--checkpoint", "ckpt", cwd=tmp_path)
    assert not (tmp_path / "ckpt").exists()


def hear_signals():
    """Tests in the background of a shell, or below nohup, have signals ignored, and a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Running:
    """A ``holdfast run`` in a process of its own; its stdout is read up to the words that say where it stands."""

    def __init__(self, cwd, behaviour, *more):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "holdfast", "run", "trips.py", "--checkpoint", "ckpt", *more],
            cwd=cwd,
            env=environment(behaviour),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_signals,
        )

    def read_until(self, words):
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"it never said {words!r}: {self.process.stderr.read()}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        kill_tree(self.process)  # a supervisor's child, too: it would hold the pipes open


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=AT_NIGHT), signal.SIGTERM])
def test_a_signal_stops_gracefully_with_exit_0(script, tmp_path, number):
    with Running(tmp_path, "waits") as running:
        running.read_until("waiting")
        running.process.send_signal(number)
        running.read_until("asked to stop")
        assert running.process.wait(60) == 0
        said = running.process.stderr.read()
    assert f"{number.name}: stopping after the current epoch; again to exit immediately." in said
    assert "trips stopped at epoch 7" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=AT_NIGHT)])
def test_a_second_signal_leaves_at_once(script, tmp_path, number, code):
    with Running(tmp_path, "never ends") as running:
        running.read_until("waiting")
        running.process.send_signal(number)
        running.read_until("asked to stop")
        running.process.send_signal(number)
        assert running.process.wait(60) == code
        assert f"{number.name} again: exiting now" in running.process.stderr.read()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("Unavailable", 5),
        *(
            pytest.param(*one, marks=AT_NIGHT)
            for one in (("Diverged", 4), ("InternalError", 5), ("Fenced", 3), ("BadRow", 1))
        ),
    ],
)
def test_a_stop_in_the_middle_of_an_epoch_is_told_in_a_sentence_and_has_a_code_of_its_own(script, tmp_path, kind, code):
    with Running(tmp_path, f"fails when stopped: {kind}") as running:
        running.read_until("waiting")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == code
        said = running.process.stderr.read()
    early = "StoppedEarly: SIGTERM asked for a stop, and the current epoch could not be finished."
    assert (early in said) == (code == 5), said
    assert (f"{kind}: it happened" in said) == (code != 5), said
    assert "hunter2" not in said


@pytest.mark.nightly
def test_a_supervised_run_that_is_sent_sigterm_besides_the_one_passed_on_stops_after_its_epoch(script, tmp_path):
    with Running(tmp_path, "waits", "--supervise") as running:
        running.read_until("waiting")
        (child,) = psutil.Process(running.process.pid).children()
        child.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        assert "exiting now" not in running.process.stderr.read()


@pytest.mark.nightly
def test_a_second_signal_to_a_supervisor_leaves_at_once(script, tmp_path):
    with Running(tmp_path, "never ends", "--supervise") as running:
        running.read_until("waiting")
        running.process.send_signal(signal.SIGTERM)
        running.read_until("asked to stop")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 143


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_signal_during_the_start_stops_the_run_as_soon_as_it_has_begun(script, tmp_path, number):
    arguments = ("run", "trips.py", "--checkpoint", "ckpt")
    answer = holdfast(*arguments, cwd=tmp_path, behaviour="waits", SIGNALS_AT_START=str(int(number)))
    assert answer.returncode == 0
    assert "asked to stop" in answer.stdout.partition("waiting")[0], "before it was waited for"
    assert f"{number.name}: stopping after the current epoch; again to exit immediately." in answer.stderr


@pytest.mark.parametrize(("numbers", "code"), [("15", 5), pytest.param("", 1, marks=AT_NIGHT)])
def test_a_start_that_fails_after_a_signal_is_told_as_a_stop(script, tmp_path, numbers, code):
    """A signal to every process ends the workers of a trial, too."""
    arguments = ("run", "trips.py", "--checkpoint", "ckpt")
    answer = holdfast(*arguments, cwd=tmp_path, behaviour="loses its workers", SIGNALS_AT_START=numbers)
    assert answer.returncode == code
    early = "StoppedEarly: SIGTERM asked for a stop, and the start could not be finished."
    assert (early in answer.stderr) == (code == 5)
    assert "a worker died in a trial." in answer.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)])
def test_a_second_signal_during_the_start_leaves_at_once(script, tmp_path, number, code):
    arguments = ("run", "trips.py", "--checkpoint", "ckpt")
    answer = holdfast(*arguments, cwd=tmp_path, behaviour="waits", SIGNALS_AT_START=f"{int(number)} {int(number)}")
    assert (answer.returncode, "asked to stop" in answer.stdout) == (code, False)
    assert f"{number.name} again: exiting now" in answer.stderr


def test_ctrl_c_while_the_commands_are_loaded_is_one_line(tmp_path):
    program = """
        import os, signal, sys

        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "holdfast.cli.app":
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupting())
        from holdfast.cli import main
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), "--version"]
    answer = subprocess.run(
        command, env=environment(""), capture_output=True, text=True, check=False, preexec_fn=hear_signals
    )
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr == "interrupted before anything was done.\n"


def test_on_a_terminal_the_display_is_live_and_the_cursor_comes_back(script, tmp_path):
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "holdfast", "run", "trips.py", "--checkpoint", "ckpt"],
        cwd=tmp_path,
        env=environment("waits", TERM="xterm", COLUMNS="120"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        preexec_fn=hear_signals,
    ) as process:
        os.close(theirs)
        try:
            assert any("waiting" in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            shown = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # Linux says so when the last writer is gone
                    break
                if not part:
                    break
                shown += part
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
    text = shown.decode()
    assert "generation 1  epoch 7" in text
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert "stopping after the current epoch" in text
    assert "trips stopped at epoch 7: 70 rows" in text
