"""A cell of a notebook that follows a run: one output that is replaced, or plain lines where there is no notebook.

IPython is no dependency: it is used where the program already runs in one of its kernels.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from holdfast.display.lines import as_line
from holdfast.masking import masked
from holdfast.status import Status


class _Shown:
    """One moment of a run: as HTML, and as a line where that cannot be shown."""

    def __init__(self, status: Status, html: str) -> None:
        self._line = masked(as_line(status))
        self._html = html

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        return self._html


def follow(
    status: Callable[[], Status],
    html: Callable[[Status], str],
    wait: Callable[[float], bool],
    *,
    interval_s: float,
    timeout_s: float | None,
) -> bool:
    """Show a run until it has ended, or the time is over.

    Parameters
    ----------
    status : callable
        Returns the run's status now.
    html : callable
        Draws it.
    wait : callable
        Waits a number of seconds for the end; returns whether it has come.
    interval_s : float
        Seconds between two pictures.
    timeout_s : float, optional
        Seconds after which to return; None: when the run has ended.

    Returns
    -------
    bool
        Whether the run has ended.
    """
    show = _output()
    left = float("inf") if timeout_s is None else timeout_s
    while True:
        now = status()
        show(_Shown(now, html(now)))
        if now.is_final or left <= 0:
            return now.is_final
        wait(min(interval_s, left))
        left -= interval_s


def _output() -> Callable[[_Shown], None]:
    """Return what shows a picture in place of the last one: in a kernel's cell; else as a line, if it differs."""
    if _is_kernel():
        display: Any = importlib.import_module("IPython.display").display
        handles: list[Any] = []

        def replace(picture: _Shown) -> None:
            if handles:
                handles[0].update(picture)
            else:
                handles.append(display(picture, display_id=True))

        return replace
    last: list[str] = []

    def line(picture: _Shown) -> None:
        if last != [repr(picture)]:
            last[:] = [repr(picture)]
            sys.stdout.write(last[0] + "\n")
            sys.stdout.flush()

    return line


def _is_kernel() -> bool:
    """Tell whether this program runs in a kernel of IPython: only that can replace an output."""
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return getattr(shell, "kernel", None) is not None
