"""Settings, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.page.html import Child, el, join, table
from holdfast.page.model import Moment, Section
from holdfast.page.words import items, mark


def settings(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view."""
    shown = moment.reader.configuration()
    chosen = sorted(shown.settings, key=lambda one: not one.is_given)
    rows: list[Sequence[Child]] = [
        (one.variable, one.value, mark("minor", one.whence) if one.is_given else one.whence)
        for one in chosen
        if one.is_setting or one.is_given
    ]
    said = el("p", "As this page's process has them. What the run was started with is in its log.", class_="small")
    yield Section("settings", "Settings", join([said, table(("variable", "value", "from"), rows)]))
    if shown.warnings:
        yield Section("warnings", "Warnings", items([*shown.warnings], ""))
