"""The state diagram and the verdict table of the documentation, made from the tables in the source.

    python -m holdfast.commit.diagram docs/how-recovery-works.md

rewrites what stands between the page's ``<!-- made from ... -->`` marks; a test fails when the page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.commit.recovery import CASES, Verdict
from holdfast.commit.transaction import NOTABLE, TRANSITIONS, Event, State


def state_diagram() -> str:
    """Return the states of an epoch as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.OPEN.name}"]
    for (state, event), following in TRANSITIONS.items():
        if following is not None:
            remark = NOTABLE.get((state, event))
            # A second colon would end the label in some versions of Mermaid.
            label = f"{event.name.lower()} ({remark})".replace(":", ",") if remark else event.name.lower()
            lines.append(f"    {state.name} --> {following.name}: {label}")
    lines += [f"    {state.name} --> [*]" for state in (State.PUBLISHED, State.FORGOTTEN, State.ABORTED)]
    return "\n".join([*lines, "```"])


def state_table() -> str:
    """Return what each state and each event means, as Markdown tables."""
    states = [f"| `{state.name}` | {state.value} |" for state in State]
    events = [f"| {event.name.lower()} | {event.value} |" for event in Event]
    return "\n".join(
        [
            "| state | an epoch is here when |",
            "|---|---|",
            *states,
            "",
            "| event | what happened |",
            "|---|---|",
            *events,
        ]
    )


def verdict_table() -> str:
    """Return the verdicts as a Markdown table."""
    lines = ["| the ledger says | the sink says | verdict | what led here |", "|---|---|---|---|"]
    lines += [
        f"| {case.decision.name.lower()} | {case.outcome.name.lower()} | **{case.verdict.name.lower()}** | {case.why} |"
        for case in CASES
    ]
    return "\n".join(lines)


def verdict_meanings() -> str:
    """Return what each verdict does, as a Markdown list."""
    return "\n".join(f"- **{verdict.name.lower()}**: {verdict.value}." for verdict in Verdict)


PARTS: Mapping[str, Callable[[], str]] = {
    "transaction.py, states": state_diagram,
    "transaction.py, meanings": state_table,
    "recovery.py, verdicts": verdict_table,
    "recovery.py, meanings": verdict_meanings,
}
"""Name in the page's marks -> what stands between them."""


def current(page: str) -> str:
    """Return the page with every made part renewed.

    Raises
    ------
    KeyError
        If a mark names something that is not made here.
    """

    def renew(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- made from (.*?) -->)\n.*?\n?(<!-- end -->)", renew, page, flags=re.DOTALL)


def main(paths: list[str]) -> None:
    """Renew the pages."""
    for path in map(Path, paths):
        path.write_text(current(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
