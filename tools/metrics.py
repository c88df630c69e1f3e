"""``python -m tools.metrics``: writes what follows from the list of metrics: docs table, Grafana board, alert rules.

The list is ``holdfast.metrics.table``; ``tests/spec/test_metrics.py`` compares.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from holdfast.metrics.kinds import COMMON, Alert, Metric, labels_of
from holdfast.metrics.table import METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/metrics.md"
BOARD = ROOT / "ops/grafana/holdfast.json"
RULES = ROOT / "ops/prometheus/alerts.yml"
BEGIN, END = "<!-- written by: python -m tools.metrics -->\n", "<!-- until here -->\n"

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 12, 8


def tables() -> str:
    """Return the tables of the docs page."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in labels_of(metric) if label not in COMMON or metric.is_of_shards)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    lines += ["", "| alert | when, for how long | severity | it means | what to do |", "|---|---|---|---|---|"]
    for alert in _alerts():
        expr = alert.expr.replace("|", "\\|")
        lines.append(f"| {alert.name} | `{expr}`, {alert.wait} | {alert.severity} | {alert.summary} | {alert.do} |")
    return "\n".join(lines) + "\n"


def page(before: str) -> str:
    """Return the docs page with its tables anew."""
    head, _, rest = before.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def rules() -> str:
    """Return the alert rules, as Prometheus reads them."""
    found = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": "pipeline {{ $labels.pipeline }}, shard {{ $labels.shard }}: " + alert.summary,
                "description": alert.do,
            },
        }
        for alert in _alerts()
    ]
    head = "# Written by: python -m tools.metrics\n"
    return head + yaml.safe_dump({"groups": [{"name": "holdfast", "rules": found}]}, sort_keys=False, width=110)


def board() -> str:
    """Return the board, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    shown = [metric for metric in METRICS if metric.panel is not None]
    headings = list(dict.fromkeys(metric.panel.row for metric in shown if metric.panel is not None))
    shown.sort(key=lambda metric: headings.index(metric.panel.row if metric.panel is not None else ""))
    for row, several in groupby(shown, key=lambda metric: metric.panel.row if metric.panel is not None else ""):
        panels.append({"type": "row", "title": row, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "collapsed": False})
        y += 1
        for at, metric in enumerate(several):
            x = at % 2 * _WIDTH
            panels.append(_panel(metric, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}))
            y += _HEIGHT if x else 0
        y += _HEIGHT if panels[-1]["gridPos"]["x"] == 0 and panels[-1]["type"] != "row" else 0
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    found = {
        "title": "Holdfast",
        "uid": "holdfast",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["holdfast"],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "pipeline",
                    "type": "query",
                    "label": "Pipeline",
                    "datasource": _DATASOURCE,
                    "query": {"query": "label_values(holdfast_run_state, pipeline)", "refId": "pipeline"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }
    return json.dumps(found, indent=1) + "\n"


def _panel(metric: Metric, place: dict[str, int]) -> dict[str, Any]:
    assert metric.panel is not None
    lines = ("pipeline", "shard", *metric.panel.by)
    return {
        "type": "timeseries",
        "title": metric.panel.title,
        "description": metric.help,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": metric.panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _DATASOURCE,
                "expr": _expression(metric, lines),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in lines),
            }
        ],
    }


def _expression(metric: Metric, lines: tuple[str, ...]) -> str:
    """Return what a panel shows, in PromQL."""
    chosen = f'{metric.name}{{pipeline=~"$pipeline"}}'
    by = ", ".join(lines)
    if metric.kind == "histogram":
        buckets = f'{metric.name}_bucket{{pipeline=~"$pipeline"}}'
        return f"histogram_quantile(0.99, sum by (le, {by}) (rate({buckets}[$__rate_interval])))"
    if metric.kind == "counter" or metric.name == "holdfast_epoch":
        return f"sum by ({by}) (rate({chosen}[$__rate_interval]))"
    together = "max" if metric.panel is not None and metric.panel.unit == "s" else "sum"
    return f"{together} by ({by}) ({chosen})"


def _alerts() -> list[Alert]:
    return [alert for metric in METRICS for alert in metric.alerts]


def main() -> None:
    """Write all of them."""
    PAGE.write_text(page(PAGE.read_text()))
    for path, text in ((BOARD, board()), (RULES, rules())):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
