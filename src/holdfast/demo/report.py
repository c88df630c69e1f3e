"""Writes the demo's page: the rows in every sink over time, the kills marked, and the verdict.  Nothing is loaded."""

from __future__ import annotations

import html
from collections.abc import Sequence

from holdfast.demo.kills import Experiment
from holdfast.demo.verify import SinkVerdict
from holdfast.demo.watch import Sample

KILL = "#b3261e"
MOMENTS = 24
"""Lines of the table of rows over time, besides the kills."""

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
  meter {{ width: 70px; }}
  .kill {{ color: {kill}; font-weight: 600; }}
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
{tables}
</body>
</html>
"""


def page(
    experiment: Experiment,
    samples: Sequence[Sample],
    verdicts: Sequence[SinkVerdict],
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
    verdicts : sequence of SinkVerdict
        One per sink, in the order of ``Sample.rows``.
    sinks : sequence of str
        What each sink is, for the titles of its columns.
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
        kill=KILL,
        tables=_verdict_table(verdicts) + _kill_table(experiment) + _timeline(samples, experiment, verdicts, sinks),
    )


def _verdict_table(verdicts: Sequence[SinkVerdict]) -> str:
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
    return _table("Against an independent computation over the raw files", head, [_line(row) for row in rows])


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
    return _table("Kills", head, [_line(row) for row in rows])


def _timeline(
    samples: Sequence[Sample], experiment: Experiment, verdicts: Sequence[SinkVerdict], sinks: Sequence[str]
) -> str:
    """Return a table with a line for each moment that is shown and for each kill, and a bar for each sink."""
    every = max(1, len(samples) // MOMENTS)
    moments = [("", sample.at_s, sample.rows) for sample in [*samples[:-1:every], samples[-1]]]
    for number, kill in enumerate(experiment.kills, start=1):
        before = [sample.rows for sample in samples if sample.at_s <= kill.at_s]
        moments.append((f"kill {number}", kill.at_s, before[-1] if before else (0,) * len(sinks)))
    lines = []
    for name, at_s, rows in sorted(moments, key=lambda moment: moment[1]):
        bars = (
            f'<meter max="{max(verdict.expected, held, 1)}" value="{held}"></meter> {held:,}'
            for verdict, held in zip(verdicts, rows, strict=True)
        )
        cells = "".join(f"<td>{cell}</td>" for cell in (f"{at_s:.1f}", name, *bars))
        lines.append(f'<tr class="kill">{cells}</tr>' if name else f"<tr>{cells}</tr>")
    return _table("Rows over time", ["Second", "", *sinks], lines)


def _line(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _table(caption: str, head: Sequence[str], lines: Sequence[str]) -> str:
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "\n".join(lines)
    return f"<table><caption>{html.escape(caption)}</caption>\n<tr>{titles}</tr>\n{body}\n</table>\n"
