"""What a start shows before there is a run: the phase that it says."""

import json

from holdfast.display import lines
from holdfast.observe.progress import start_shown


def test_phases_are_shown_while_the_start_lasts_and_no_line_at_its_end(capsys):
    with start_shown("trips", interval_s=0.001, now_us=lambda: 7, as_json=True):
        lines.say("starting Spark")
        while '"starting Spark"' not in capsys.readouterr().out:
            pass
    lines.say("nobody listens any more")
    out, err = capsys.readouterr()
    assert err == ""
    assert "nobody" not in out


def test_a_short_start_prints_nothing(capsys):
    with start_shown("trips", interval_s=3600, now_us=lambda: 7, is_terminal=False):
        lines.say("starting Spark")
    assert capsys.readouterr() == ("", "")


def test_a_line_says_the_phase(capsys):
    out = ""
    with start_shown("trips", interval_s=0.001, now_us=lambda: 7, is_terminal=False):
        lines.say("replaying epoch 7")
        while "trips starting: replaying epoch 7\n" not in out:
            out += capsys.readouterr().err


def test_json_lines_of_a_start_are_statuses(capsys):
    out = ""
    with start_shown("trips", interval_s=0.001, now_us=lambda: 7, as_json=True):
        while not out:
            out += capsys.readouterr().out
    first = json.loads(out.splitlines()[0])
    assert (first["state"], first["doing"], first["started_at_us"]) == ("starting", "reading the checkpoint", 7)
