"""A status in a notebook, and the cell that follows a run: in a kernel one output is replaced, elsewhere lines."""

import sys
import types
from typing import Any

import pytest

from holdfast.display.cell import follow
from holdfast.display.tables import ShownStatus, counts, status_html
from holdfast.status import FilterStatus, OperatorStatus, SinkStatus, SourceStatus, Status

RUNNING = ShownStatus(
    "trips",
    state="running",
    epoch=41,
    rows_total=12_345,
    doing="waiting for files",
    sources=(SourceStatus("rides", {"log": 7}, lag=2, rows=9), SourceStatus("w", {"": "x<y"})),
    filters=(FilterStatus("late", 12, 3), FilterStatus("odd")),
    operators=(OperatorStatus("seen", "distinct", 30, 900),),
    sinks=(SinkStatus("t", "sqlite", "exactly-once", "", 41, 9, "carried"),),
)
STOPPED = Status("trips", state="stopped", epoch=42, rows_total=20_000)


def test_a_status_has_a_short_repr():
    assert repr(RUNNING) == "<status of 'trips': running, waiting for files, epoch 41, 12,345 rows>"


def test_a_status_shows_its_counts_as_tables_with_escaped_texts():
    html = RUNNING._repr_html_()
    assert html == status_html(RUNNING)
    assert html.count("<table>") == 4
    assert "x&lt;y" in html
    assert "?" not in html


def test_an_error_is_shown_without_its_secret():
    html = status_html(Status("trips", state="failed", error="<b>no answer from postgresql://app:hunter2@db/x"))
    assert "hunter2" not in html
    assert "&lt;b&gt;no answer" in html


def test_a_drawing_has_the_counts_of_its_nodes():
    assert counts(RUNNING) == {
        "rides": "9 rows",
        "w": "0 rows",
        "late": "3 filtered",
        "seen": "30 rows of state",
        "t": "9 rows, epoch 41",
    }


class Kernel:
    """IPython in a kernel, as far as the cell uses it."""

    def __init__(self, monkeypatch, *, kernel=True):
        self.outputs = []
        self.updates = []
        package: Any = types.ModuleType("IPython")
        module: Any = types.ModuleType("IPython.display")
        package.get_ipython = lambda: types.SimpleNamespace(kernel=object()) if kernel else types.SimpleNamespace()
        package.display = module
        module.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, shown, *, display_id):
        assert display_id is True
        self.outputs.append(shown._repr_html_())
        return self

    def update(self, shown):
        self.updates.append(shown._repr_html_())


def followed(*statuses, timeout_s=None, waits=None):
    each = iter(statuses)
    waited = [] if waits is None else waits
    return follow(
        lambda: next(each),
        lambda status: f"<i>{status.epoch}</i>",
        lambda seconds: bool(waited.append(seconds)),
        interval_s=1.0,
        timeout_s=timeout_s,
    )


def test_in_a_kernel_one_output_is_replaced_until_the_run_has_ended(monkeypatch):
    kernel = Kernel(monkeypatch)
    assert followed(RUNNING, RUNNING, STOPPED)
    assert kernel.outputs == ["<i>41</i>"]
    assert kernel.updates == ["<i>41</i>", "<i>42</i>"]


@pytest.mark.parametrize("has_ipython", [True, False])
def test_elsewhere_there_are_lines_and_none_twice_in_a_row(monkeypatch, capsys, has_ipython):
    if has_ipython:
        Kernel(monkeypatch, kernel=False)
    else:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert followed(RUNNING, RUNNING, STOPPED)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("trips running: waiting for files, epoch 41, 12,345 rows")


def test_a_time_limit_ends_the_picture_and_not_the_run(capsys):
    waits = []
    assert not followed(RUNNING, RUNNING, RUNNING, timeout_s=1.5, waits=waits)
    assert waits == [1.0, 0.5]
