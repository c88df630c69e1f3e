"""The supervisor: what is started again, how often, after which waits (design/0013, section 3)."""

import json
import os
import signal
import sys
import threading

import pytest

from holdfast.cli.child import VARIABLE, ChildEnd, ProcessChild, told_to_supervisor
from holdfast.cli.supervision import Supervisor, finished
from holdfast.connectors.files.sink.log import FilesLog, LogEntry
from holdfast.connectors.kit.expected import unpublished
from holdfast.errors import KINDS, BadRow, Corrupt, Diverged, Fenced, Unavailable
from holdfast.ports import EpochRecord, Held, Publication
from holdfast.quarantine.search import SEARCH
from holdfast.retry import RetryPolicy
from holdfast.shards.ends import is_final
from holdfast.spark.new_columns import add_columns

KILLED = ChildEnd(-9)
NO_WAIT = RetryPolicy(attempts=4, first_s=0, cap_s=0)


class Play:
    """Children that end as they are told, and what the supervisor makes of them."""

    def __init__(self, *ends, progress=(), retry=NO_WAIT, during=lambda: None):
        self.ends = list(ends)
        self.progress = set(progress)
        self.during = during
        self.started = 0
        self.signals = []
        self.notes = []
        self.epochs = 0
        self.supervisor = Supervisor(self.start, lambda: self.epochs, retry, lambda *noted: self.notes.append(noted))

    def start(self):
        self.started += 1
        return self

    def wait(self):
        self.during()
        self.epochs += self.started in self.progress
        return self.ends.pop(0)

    def signal(self, number):
        self.signals.append(number)

    def run(self):
        return self.supervisor.run()


def test_a_run_that_ends_well_is_not_started_again():
    play = Play(ChildEnd(0))
    assert (play.run(), play.started, play.notes) == (0, 1, [])


def test_what_was_killed_or_failed_is_started_again_and_counted():
    play = Play(KILLED, ChildEnd(1, "the database is away."), ChildEnd(0))
    assert play.run() == 0
    assert play.notes == [(1, 1, "killed by SIGKILL"), (2, 2, "ended with code 1: the database is away.")]


def test_a_system_without_room_for_a_process_is_tried_again():
    play = Play(ChildEnd(0))
    refusals = [OSError(11, "Resource temporarily unavailable")] * 2

    def start():
        if refusals:
            raise refusals.pop()
        return play.start()

    play.supervisor._start = start
    assert play.run() == 0
    said = "ended with code 1: no process could be started: Resource temporarily unavailable"
    assert play.notes == [(1, 1, said), (2, 2, said)]


@pytest.mark.parametrize(
    "end", [ChildEnd(2), ChildEnd(3), ChildEnd(4, "Diverged", True), ChildEnd(1, "a bad row", True)]
)
def test_what_a_start_would_meet_again_is_final(end):
    play = Play(end)
    assert (play.run(), play.started) == (end.code, 1)


def test_it_gives_up_after_so_many_restarts_in_a_row_with_the_childs_own_code():
    play = Play(KILLED, ChildEnd(1), ChildEnd(1), KILLED)
    assert (play.run(), play.started) == (137, 4)


def test_a_finished_epoch_ends_the_row():
    play = Play(*[KILLED] * 6, ChildEnd(0), progress=[3, 5])
    assert (play.run(), play.started) == (0, 7)
    assert [in_a_row for _, in_a_row, _ in play.notes] == [1, 2, 1, 2, 1, 2]


def test_a_run_that_has_added_columns_ends_the_row_too(tmp_path, monkeypatch):
    added = ChildEnd(1, "ride.ddl has the column tip BIGINT now", is_progress=True)
    assert Play(*[added] * 6, ChildEnd(0)).run() == 0
    monkeypatch.setenv(VARIABLE, str(tmp_path / "said"))
    (tmp_path / "ride.ddl").write_text("id BIGINT")
    for is_progress in (True, False):  # the second one finds the column there: who does not read it makes no progress
        error = BadRow("it has the member 'tip'.")
        error.new_columns, error.schema_file = "tip BIGINT", str(tmp_path / "ride.ddl")
        with pytest.raises(BadRow), told_to_supervisor():
            raise add_columns(error)
        said = (tmp_path / "said").read_text()
        program = f"import os; open(os.environ[{VARIABLE!r}], 'w').write({said!r})"
        ended = ProcessChild([sys.executable, "-c", program], tmp_path / "told").wait()
        assert (ended.is_final, ended.is_progress) == (False, is_progress)


def test_waits_double_with_jitter_up_to_the_cap_and_begin_anew_after_progress(monkeypatch):
    waited: list[float] = []
    play = Play(*[KILLED] * 6, ChildEnd(0), progress=[5], retry=RetryPolicy(attempts=9, first_s=1, cap_s=4, seed=1))
    monkeypatch.setattr(play.supervisor, "_is_asked_within", waited.append)
    assert play.run() == 0
    for wait_s, whole in zip(waited, [1, 2, 4, 4, 1, 2], strict=True):
        assert 0.85 * whole <= wait_s <= whole
    assert len(set(waited)) == 6


def test_a_signal_goes_to_the_child_and_nothing_is_started_after_it():
    play = Play(ChildEnd(0))
    play.during = lambda: play.supervisor.stop(signal.SIGTERM)
    assert (play.run(), play.signals, play.started) == (0, [signal.SIGTERM], 1)
    play = Play(KILLED)
    play.during = lambda: play.supervisor.stop(signal.SIGINT)
    assert (play.run(), play.signals, play.started) == (137, [signal.SIGINT], 1)


def test_a_second_signal_ends_the_child_at_once_and_the_code_is_that_of_the_signal():
    play = Play(KILLED)

    def twice():
        play.supervisor.stop(signal.SIGTERM)
        play.supervisor.stop(signal.SIGINT)

    play.during = twice
    assert (play.run(), play.signals, play.started) == (130, [signal.SIGTERM, signal.SIGKILL], 1)
    play = Play(ChildEnd(0))
    play.during = lambda: [play.supervisor.stop(signal.SIGTERM) for _ in range(3)]
    assert play.run() == 0, "it had ended by itself"


def test_a_signal_before_there_is_a_child_reaches_the_child_once():
    play = Play(ChildEnd(0))
    play.supervisor.stop(signal.SIGTERM)
    assert (play.run(), play.signals) == (0, [signal.SIGTERM])


@pytest.mark.slow
def test_a_signal_between_any_two_lines_is_heard_and_never_waits_for_a_lock_that_the_line_before_holds():
    """A handler interrupts the main thread between two lines, of ours or of the library's."""
    at, has_come = 0, True
    while has_come:
        at += 1
        play = Play(KILLED, KILLED, KILLED, ChildEnd(0))
        lines = []

        def interrupt(frame, event, _, *, play=play, lines=lines, at=at):
            if not frame.f_code.co_filename.endswith(("cli/supervision.py", "threading.py", "queue.py")):
                return None
            if event == "line":
                lines.append(play.started)
                if len(lines) == at:
                    play.supervisor.stop(signal.SIGTERM)
            return interrupt

        def run(*, play=play, interrupt=interrupt):
            sys.settrace(interrupt)
            play.run()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(timeout=30)
        assert not thread.is_alive(), f"it hangs when the signal comes at line {at}"
        has_come = len(lines) >= at
        if has_come:
            assert play.started <= lines[at - 1] + 1
            assert play.signals == [signal.SIGTERM] or play.started == lines[at - 1]
    assert at > 50


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_error_is_final_or_not(kind):
    final = {"InvalidPipeline", "BadRow", "Fenced", "Diverged", "Corrupt"}
    assert is_final(KINDS[kind]("it")) == (kind in final)
    assert not is_final(Corrupt("state cannot be read: the next start restores it", participant="@state"))


def test_a_row_that_is_isolated_later_is_no_reason_to_stay_down_and_any_other_is():
    """Also one whose epoch a worker has named."""
    row = BadRow("operator 'sums' refuses it", participant="sums", epoch=7)
    assert is_final(row)
    row.is_isolated_later = True
    assert not is_final(row)


def test_a_sink_that_went_back_under_a_live_run_is_no_reason_to_stay_down(tmp_path, monkeypatch):
    """The next start replays what it lacks.  Where that cannot be, the start itself says so, and is final."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "said"))
    published = Publication(EpochRecord("p", 3, 1, {"in": {"": 3}}, None), ())
    held, expected = Held(1, 1, {"in": {"": 1}}), Held(2, 1, {"in": {"": 2}})
    with pytest.raises(Diverged), told_to_supervisor():
        unpublished("sink 'target'", "p", [published], held, expected)
    assert json.loads((tmp_path / "said").read_text())["is_final"] is False
    log = FilesLog(str(tmp_path / "log"), aside=str(tmp_path))
    (tmp_path / "log").mkdir()
    with pytest.raises(Diverged) as caught:
        log.append(LogEntry(number=7))
    assert not is_final(caught.value)
    assert is_final(Diverged("the sources cannot give it any more"))


def test_a_child_says_how_it_ended_and_without_a_supervisor_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Fenced), told_to_supervisor():
        raise Fenced("another one")
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv(VARIABLE, str(tmp_path / "said"))
    with pytest.raises(Unavailable), told_to_supervisor():
        raise Unavailable("away")
    assert json.loads((tmp_path / "said").read_text()) == {"what": "away", "is_final": False}


def test_an_error_stays_what_it_is_where_the_supervisor_cannot_be_told(tmp_path, monkeypatch, caplog):
    """Its exit code alone is final for some: another error in its place would be tried again."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone" / "said"))
    with pytest.raises(Fenced), told_to_supervisor():
        raise Fenced("another one")
    assert "the supervisor does not learn" in caplog.text


def test_progress_is_read_from_the_log_of_finished_epochs(tmp_path):
    seen = [finished(tmp_path)]
    for name in ("spark/1/commits/0", "spark/1/commits/9", "spark/1/commits/10", "spark/2/commits/0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        seen.append(finished(tmp_path))
    assert seen == [("", -1), ("1", 0), ("1", 9), ("1", 10), ("2", 0)]


@pytest.mark.parametrize("noted", ["[]", "{}", "7", '{"low": 1, "high": 2}', '{"low": 1, "high": 2, "trial": 3}', "{"])
def test_a_damaged_note_of_a_search_and_a_copy_of_a_directory_do_not_stop_the_supervisor(tmp_path, noted):
    for name in ("spark/1/commits/4", "spark/1.bak/commits/9"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / SEARCH).parent.mkdir()
    (tmp_path / SEARCH).write_text(noted)
    assert finished(tmp_path) == ("1", 4)
