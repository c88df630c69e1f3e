"""What becomes of each node of a graph, in lines; and in a number, for scripts (design/0031)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.checkpoint.graph_record import Role
from holdfast.starts.graph_diff import REREADS, GraphChange, NodeChange, NodeVerdict

if TYPE_CHECKING:
    from holdfast.observe.reading import Targets
    from holdfast.starts.directory import Directory
    from holdfast.starts.plan import Plan

CHANGED = 10
"""The exit code of a plan by which something changes."""

_MARKS = {
    NodeVerdict.KEPT: " ",
    NodeVerdict.CHANGED: "~",
    NodeVerdict.RENAMED: "~",
    NodeVerdict.MIGRATED: "~",
    NodeVerdict.REBUILT: "~",
    NodeVerdict.NEW: "+",
    NodeVerdict.GONE: "-",
    NodeVerdict.REFUSED: "!",
}

_ORDER = (
    NodeVerdict.REFUSED,
    NodeVerdict.REBUILT,
    NodeVerdict.MIGRATED,
    NodeVerdict.RENAMED,
    NodeVerdict.CHANGED,
    NodeVerdict.KEPT,
    NodeVerdict.NEW,
    NodeVerdict.GONE,
)


def change_lines(directory: Directory, change: GraphChange, *, shows_kept: bool) -> Iterator[str]:
    """Say what becomes of each node, and end with how many: ``1 migrated, 20 kept, 2 new``."""
    for reason in directory.reasons:
        yield f"* {reason}"
    if change.replay is not None:
        yield f"* {change.replay.text(change.backfilled)}"
    for node in change.nodes:
        if node.verdict is NodeVerdict.KEPT and not (shows_kept or _is_mentioned(node)):
            continue
        effect = f": {node.effect}" if node.effect else ""
        yield f"{_mark(node)} {node.verdict.value:<8} {node.role.value} {node.name}{effect}"
        for detail in node.details:
            yield f"             {detail}"
    for old, new in change.unclaimed:
        yield f"! state of {old} that no operator takes over, while {new}, of the same kind, begins without"
    for name in change.finished:
        yield f"! finished source {name}: it has ended, and a changed graph would read it again"
    yield f"{summary(change)}{'' if shows_kept else '; with -v what is kept is shown, too'}"


def summary(change: GraphChange) -> str:
    """Return how many nodes become what."""
    counts = Counter(node.verdict for node in change.nodes)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in _ORDER if counts[verdict]) or "no nodes"


def new_column_lines(targets: Targets) -> Iterator[str]:
    """Say which columns a start adds to tables."""
    for sink, columns in targets.new_columns.items():
        several = "columns" if len(columns) > 1 else "column"
        yield f"+ sink {sink}: {several} {', '.join(columns)} will be added to its table; older rows get null"


def exit_code(plan: Plan, targets: Targets) -> int:
    """Return 0 where a start goes on as if nothing had been asked, and :data:`CHANGED` where anything changes."""
    change = plan.change
    is_same = change is None or change.is_empty
    return 0 if is_same and not plan.directory.reasons and not targets.new_columns else CHANGED


def _mark(node: NodeChange) -> str:
    """Return the sign before a node: ``!`` where something is lost, or read again from its beginning."""
    return "!" if is_loss(node) else _MARKS[node.verdict]


def _is_mentioned(node: NodeChange) -> bool:
    """Return whether a kept node is worth a line: more happens to it than that it keeps its state."""
    return bool(node.details) or (bool(node.effect) and node.role is not Role.STATEFUL)


def is_loss(node: NodeChange) -> bool:
    """Return whether state goes with a node, or rows are read again from the beginning of a source."""
    if node.verdict is NodeVerdict.REFUSED:
        return True
    if node.verdict is NodeVerdict.GONE:
        return node.role is Role.STATEFUL
    return node.role is Role.SOURCE and REREADS in node.effect
