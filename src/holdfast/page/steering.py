"""Forms by which the run is told something; each sends the token of the page back."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.page.html import Child, Html, el, join
from holdfast.page.model import Asked
from holdfast.status import SourceStatus, Status


def form(command: str, label: str, asked: Asked, *inputs: Child, danger: bool = False, **hidden: str) -> Html:
    """Return the form of a command.

    Parameters
    ----------
    command : str
        Its name, as the command line has it.
    label : str
        What its button says.
    asked : Asked
        The request: has the token.
    *inputs : Html, optional
        What is typed.
    danger : bool
        Whether it ends the run.
    **hidden : str
        What is sent besides, unless it is empty.
    """
    kept = {
        **hidden,
        "form_token": asked.form_token,
        "back": asked.to(asked.view) if asked.view != "now" else asked.to(),
    }
    return el(
        "form",
        *(el("input", type="hidden", name=name, value=value) for name, value in kept.items() if value),
        *inputs,
        el("button", label, type="submit", class_="danger" if danger else None),
        method="post",
        action=asked.to("commands", command),
    )


def run_forms(status: Status, asked: Asked) -> Html:
    """Return what the run as a whole can be told."""
    is_paused = bool(status.sources) and all(source.is_paused for source in status.sources)
    name = el("label", "name ", el("input", name="name", required=True, pattern="[A-Za-z0-9_.\\-]+", size=16))
    forms = [
        form("resume", "Resume all sources", asked) if is_paused else form("pause", "Pause all sources", asked),
        form("flush", "Flush sinks", asked),
        form("checkpoint", "Create checkpoint", asked, name),
        form("drain", "Drain, then end the run", asked, danger=True),
    ]
    return el("div", *forms, class_="forms")


def sample_form(nodes: Sequence[str], asked: Asked) -> Html:
    """Return the form that shows rows as they pass a node."""
    chosen = el("select", *(el("option", name, value=name) for name in nodes), name="node", aria_label="node")
    shard = "" if asked.shard is None else f"{asked.shard}"
    return el("div", form("sample", "Show rows that pass", asked, chosen, shard=shard), class_="forms")


def source_forms(source: SourceStatus, asked: Asked) -> Html:
    """Return what one source can be told."""
    command, label = ("resume", "Resume") if source.is_paused else ("pause", "Pause")
    limit = source.limit_rows_per_s
    typed = el(
        "input",
        name="rate",
        size=8,
        inputmode="decimal",
        required=True,
        placeholder="rows/s, none",
        aria_label=f"rows a second of {source.name}",
        value=None if limit is None else f"{limit:g}",
    )
    return join(
        [form(command, label, asked, source=source.name), form("limit", "Limit", asked, typed, source=source.name)]
    )
