"""The tables of ``docs/matrix.md``, rendered from ``bench/matrix.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.matrix import ours, peers
from bench.matrix.targets import TARGETS
from holdfast import faults

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "bench" / "matrix.json"
PAGE = ROOT / "docs" / "matrix.md"
BEGIN, END = "<!-- tables: make matrix -->", "<!-- end of the tables -->"
NOT_YET = "not measured yet"


def published(page: str, figures: Mapping[str, Any]) -> str:
    """Return the page with the tables of these figures."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{rendered(figures)}\n{END}{after}"


def rendered(figures: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    return "\n".join([*_measured_when(figures), "", *_ours(figures["ours"]), *_peers(figures["peers"])])


def _measured_when(figures: Mapping[str, Any]) -> Iterator[str]:
    machine, versions, load = figures["machine"], figures["versions"], figures["load_max"]
    needs = ", ".join(need.replace("==", " ") for peer in peers.PEERS.values() for need in peer.needs)
    yield (
        f"Measured on {figures['date']}, on a machine with {machine['cores']} cores and {machine['memory_gib']} GiB of "
        f"memory, beside other programs (load up to {load}, so that all seconds are long); Python "
        f"{versions['python']}, Holdfast {versions['holdfast']} on Spark {versions['pyspark']}; {needs}."
    )
    yield ""
    yield "A cell of Holdfast: duplicates / lost / seconds to the first right row."


def _ours(cells: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Holdfast", "")
    sinks = [sink for sink in TARGETS if cells.get(sink)]
    yield from _row("point", *sinks)
    yield "|---" * (len(sinks) + 1) + "|"
    for point in ours.POINTS:
        yield from _row(f"`{point}`", *(_cell(cells[sink], sink, point) for sink in sinks))
    yield ""
    for point in ours.POINTS:
        yield f"- `{point}`: {faults.POINTS[point]}."
    yield from ("", "Points that no plain run comes to:", "")
    for point, where in ours.COMMANDS.items():
        yield f"- `{point}`: {where}."
    yield from ("", "Points that a sink does not have:", "")
    for (sink, point), why in ours.NOT_REACHED.items():
        yield f"- `{point}` of {sink}: {why}."
    yield from ("", "Sinks that are not in the table:", "")
    for sink in TARGETS:
        if sink not in sinks:
            yield f'- {sink}: {NOT_YET}; `make matrix SINKS="{sink}" PEERS=`.'
    for sink, why in ours.NOT_RUN.items():
        yield f"- {sink}: {why}."
    yield ""


def _cell(cells: Mapping[str, Any], sink: str, point: str) -> str:
    figures = cells.get(point)
    if figures is None:
        return "no such point" if (sink, point) in ours.NOT_REACHED else NOT_YET
    wrong = f", {figures['wrong']} wrong" if figures["wrong"] else ""
    # The life after a death may come to the next one before it shows a row.
    seconds = "the next death came first" if figures["seconds"] is None else _seconds(figures)
    return f"{figures['duplicates']} / {figures['lost']} / {seconds}{wrong}"


def _seconds(figures: Mapping[str, Any]) -> str:
    return "all were there" if figures["seconds"] is None else f"{figures['seconds']} s"


def _peers(cells: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## The others", "")
    yield from _row("system", "sink", "its documentation says", "killed", "duplicates", "lost", "first right row")
    yield "|---" * 7 + "|"
    for name, peer in peers.PEERS.items():
        for sink, declared in peer.sinks.items():
            for point in declared.points:
                figures = cells.get(name, {}).get(sink, {}).get(point)
                measured = ["", "", NOT_YET] if figures is None else [
                    str(figures["duplicates"]), str(figures["lost"]), _seconds(figures)
                ]  # fmt: skip
                yield from _row(name, sink, declared.promise, point, *measured)
    yield ""
    for point, where in peers.POINTS.items():
        yield f"- *{point}*: {where}."


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |"
