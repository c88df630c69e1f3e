"""The diagram and the tables of ``docs/how-recovery-works.md``, made from the tables in the source.

    python -m tools.recovery_page docs/how-recovery-works.md

rewrites what stands between the page's ``<!-- made from ... -->`` marks; a test fails when the page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from holdfast.commit.recovery import CASES, Verdict
from holdfast.commit.transaction import NOTABLE, TRANSITIONS, Event, State
from holdfast.starts import table


def state_diagram() -> str:
    """Return the states of an epoch as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.OPEN.name}"]
    for (state, event), following in TRANSITIONS.items():
        if following is not None:
            remark = NOTABLE.get((state, event))
            # A second colon would end the label in some versions of Mermaid.
            label = f"{event.name.lower()} ({remark})".replace(":", ",") if remark else event.name.lower()
            lines.append(f"    {state.name} --> {following.name}: {label}")
    lines += [f"    {state.name} --> [*]" for state in (State.PUBLISHED, State.FORGOTTEN)]
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


def start_table() -> str:
    """Return the table of starts as Markdown."""
    lines = [
        "| | Spark's directory | the sinks | it is to begin | state can come from "
        "| the pipeline | state | sources | sinks | epoch numbers | what led here |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in table.CASES:
        found = (
            _words(case.spark, table.Spark),
            _words(case.sinks, table.Sinks),
            _words(case.begin, table.Begin),
            _words(case.state, table.StateSource),
        )
        done = (
            ("", "", "", "")
            if case.way is table.StartWay.REFUSE
            else (case.keeps, case.reads, case.gives, case.numbers)
        )
        lines.append(f"| **{case.letter}** | {' | '.join([*found, f'**{case.way.value}**', *done, case.why])} |")
    return "\n".join(lines)


def _words(of: Sequence[Enum], kind: type[Enum]) -> str:
    """Return words as the table shows them; nothing where any will do."""
    return "" if len(of) == len(kind) else ", ".join(_word(each) for each in of)


def _word(of: Enum) -> str:
    return of.name.lower().replace("_", " ")


def start_words() -> str:
    """Return what each word of the table of starts means, as Markdown lists."""
    kinds = {
        "Spark's directory": table.Spark,
        "The sinks": table.Sinks,
        "It is to begin": table.Begin,
        "State can come from": table.StateSource,
    }
    return "\n\n".join(
        f"{title}:\n\n" + "\n".join(f"- *{_word(each)}*: {each.value}" for each in kind)
        for title, kind in kinds.items()
    )


PARTS: Mapping[str, Callable[[], str]] = {
    "transaction.py, states": state_diagram,
    "transaction.py, meanings": state_table,
    "recovery.py, verdicts": verdict_table,
    "recovery.py, meanings": verdict_meanings,
    "table.py, cases": start_table,
    "table.py, meanings": start_words,
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
