"""Draws the demo's page: rows over time in every sink, the kills marked, and the verdict.  One file, nothing loaded."""

from __future__ import annotations

import html
from collections.abc import Sequence

from demo.kills import Experiment
from demo.verify import Verdict
from demo.watch import Sample

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 960, 130, 72, 24, 30, 40
COLOURS = ("#1f6f8b", "#b4632d", "#5b4a9c", "#8a6d1f", "#2f7d4f")
KILL = "#b3261e"
POINT_COUNT = 1200
"""Points per line at most."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; color: #22272b; background: #fbfbf9; }}
  body {{ margin: 0 auto; max-width: 1000px; padding: 32px 20px 60px; }}
  h1 {{ font-size: 22px; margin: 0 0 4px; }}
  p {{ margin: 4px 0 18px; color: #50575e; }}
  svg {{ width: 100%; height: auto; background: #fff; border: 1px solid #e4e4df; border-radius: 6px; }}
  svg text {{ font: 12px system-ui, sans-serif; fill: #50575e; }}
  table {{ border-collapse: collapse; margin: 22px 0 0; width: 100%; }}
  caption {{ text-align: left; font-weight: 600; padding-bottom: 6px; }}
  th, td {{ text-align: right; padding: 5px 10px; border-bottom: 1px solid #e4e4df; }}
  td {{ font-variant-numeric: tabular-nums; }}
  th:first-child, td:first-child {{ text-align: left; }}
  th {{ font-weight: 600; }}
  .verdict {{ font-weight: 600; color: {colour}; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="verdict">{verdict}</p>
<p>{text}</p>
{chart}
{tables}
</body>
</html>
"""


def page(
    experiment: Experiment,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    *,
    sinks: Sequence[str],
    settings: str,
    notes: Sequence[str] = (),
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    experiment : Experiment
        The kills.
    samples : sequence of Sample
        What was visible, over time.
    verdicts : sequence of Verdict
        One per sink, in the order of ``Sample.rows``.
    sinks : sequence of str
        What each sink is, for the chart's titles.
    settings : str
        Sink, master and seed, in words.
    notes : sequence of str
        Further sentences.
    """
    is_exact = all(verdict.is_exact for verdict in verdicts)
    held = sum(verdict.held for verdict in verdicts)
    kill_count = len(experiment.kills)
    found = "every row exactly once" if is_exact else "rows are lost or doubled"
    text = (
        f"The whole process tree was killed with SIGKILL {kill_count} times at seeded random moments of real work and "
        f"started again. Rows are counted from outside, in the sinks. {settings} " + " ".join(notes)
    )
    return PAGE.format(
        title=f"Holdfast demo: {held:,} rows, {kill_count} kills",
        verdict=html.escape(found.capitalize() + "."),
        colour="#22663a" if is_exact else KILL,
        text=html.escape(text),
        chart=chart(samples, experiment, verdicts, sinks),
        tables=_verdict_table(verdicts) + _kill_table(experiment),
    )


def chart(samples: Sequence[Sample], experiment: Experiment, verdicts: Sequence[Verdict], sinks: Sequence[str]) -> str:
    """Return the timeline as SVG: one panel per sink over a common time axis, kills as vertical lines through all."""
    end_s = max(samples[-1].at_s, 1.0)
    height = TOP + len(sinks) * (PANEL + GAP) + 6
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Rows over time in each sink, kills marked">']
    for number, (sink, verdict) in enumerate(zip(sinks, verdicts, strict=True)):
        top = TOP + number * (PANEL + GAP)
        most = max(verdict.expected, max(sample.rows[number] for sample in samples), 1)
        colour = COLOURS[number % len(COLOURS)]
        parts += _axes(top, most, end_s, sink)
        line = " ".join(f"{_x(at_s, end_s):.1f},{_y(rows, most, top):.1f}" for at_s, rows in _steps(samples, number))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    bottom = TOP + len(sinks) * (PANEL + GAP) - GAP
    for number, kill in enumerate(experiment.kills, start=1):
        x = _x(kill.at_s, end_s)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="{KILL}" stroke-width="1.2" '
            f'stroke-dasharray="4 3"><title>kill {number} at {kill.at_s:.1f} s, {kill.rows:,} rows</title></line>'
        )
        parts.append(f'<text x="{x:.1f}" y="{TOP - 13}" text-anchor="middle" style="fill:{KILL}">kill {number}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">seconds since the first start</text></svg>')
    return "\n".join(parts)


def _axes(top: int, most: int, end_s: float, title: str) -> list[str]:
    parts = [f'<text x="{LEFT + 8}" y="{top + 14}" style="font-weight:600;fill:#22272b">{html.escape(title)}</text>']
    for quarter in range(5):
        rows = most * quarter // 4
        y = _y(rows, most, top)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ecece6"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rows:,}</text>')
    step = _tick_step(end_s)
    for tick in range(0, int(end_s) + 1, step):
        x = _x(tick, end_s)
        parts.append(f'<text x="{x:.1f}" y="{top + PANEL + 16}" text-anchor="middle">{tick}</text>')
    return parts


def _steps(samples: Sequence[Sample], sink: int) -> list[tuple[float, int]]:
    """Return the corners of the line: rows stay until an epoch is published, then jump."""
    every = max(1, len(samples) // POINT_COUNT)
    corners: list[tuple[float, int]] = []
    for position, sample in enumerate(samples):
        rows = sample.rows[sink]
        is_last = position == len(samples) - 1
        if corners and rows != corners[-1][1]:
            corners += [(sample.at_s, corners[-1][1]), (sample.at_s, rows)]
        elif not corners or is_last or position % every == 0:
            corners.append((sample.at_s, rows))
    return corners


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s


def _y(rows: int, most: int, top: int) -> float:
    return top + PANEL * (1 - rows / most)


def _tick_step(end_s: float) -> int:
    return next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 10**6) if end_s / step <= 14)


def _verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [
            verdict.stream,
            f"{verdict.expected:,}",
            f"{verdict.held:,}",
            f"{verdict.duplicates:,}",
            f"{verdict.lost:,}",
            "equal" if all(s.expected == s.held for s in verdict.sums) else "differ",
        ]
        for verdict in verdicts
    ]
    head = ["Sink", "Rows expected", "Rows held", "Duplicates", "Lost", "Sums"]
    return _table("Against an independent computation over the raw files", head, rows)


def _kill_table(experiment: Experiment) -> str:
    rows = [
        [
            str(number),
            f"{kill.at_s:.1f}",
            f"{kill.rows:,}",
            f"{kill.waiting:,}",
            str(kill.process_count),
            f"{kill.first_row_s or 0:.1f}",
        ]
        for number, kill in enumerate(experiment.kills, start=1)
    ]
    head = ["Kill", "At, s", "Rows visible", "Flights waiting", "Processes killed", "Restart to first new row, s"]
    return _table("Kills", head, rows)


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption>\n<tr>{cells}</tr>\n{body}\n</table>\n"
