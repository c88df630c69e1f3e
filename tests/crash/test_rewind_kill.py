"""Kill a rewind before each change that it makes to a file: it has not begun, or it is carried through."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from itertools import count
from pathlib import Path

import pytest

from tests.crash import rewinding_process
from tests.sim.rewinding import Flow, expected

pytestmark = pytest.mark.slow

STRIDE = 7
NOT_BEGUN = expected((5, 1), (7, 2))
CARRIED_THROUGH = expected((3, 1), (7, 2))


FORKS = multiprocessing.get_context("forkserver")
"""Processes that need not import everything anew: there are dozens."""
FORKS.set_forkserver_preload([rewinding_process.__name__])


def killed(work: Path, change: int) -> bool:
    """Rewind in a process that dies before a change; tell whether it came so far."""
    process = FORKS.Process(target=rewinding_process.rewind, args=(str(work), change))
    process.start()
    process.join(timeout=120)
    assert process.exitcode in (0, -signal.SIGKILL), "it printed why"
    return process.exitcode != 0


@pytest.mark.parametrize("first", [pytest.param(n, marks=[pytest.mark.nightly] * (n > 0)) for n in range(STRIDE)])
def test_a_rewind_that_was_killed_before_any_change_of_a_file_is_not_begun_or_carried_through(
    tmp_path: Path, first: int
) -> None:
    filled = tmp_path / "filled"
    filled.mkdir()
    Flow(filled).run(5, version=1)
    outcomes = []
    for change in count(first, STRIDE):
        work = tmp_path / "work"
        shutil.copytree(filled, work)
        if not killed(work, change):
            break
        killed(work, change // 2)  # what carries it through dies too
        flow = Flow(work)
        flow.run(7, version=2)
        table, archive = flow.delivered()
        assert table == archive, change
        assert table in (NOT_BEGUN, CARRIED_THROUGH), change
        outcomes.append(table == CARRIED_THROUGH)
        used = flow.epochs_used()
        assert used == sorted(set(used)), change
        shutil.rmtree(work)
    assert len(outcomes) * STRIDE > 30, "the audit hook saw the work"
    assert outcomes == sorted(outcomes), "no place after the decision leaves a rewind undone"
    assert set(outcomes) == {False, True}
