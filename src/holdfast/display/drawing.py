"""The pipeline as a drawing: Mermaid text for whatever shows Markdown, and SVG for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from holdfast.display.svg import Box, svg
from holdfast.masking import masked


class Drawn(Protocol):
    """What a drawing shows of a node or a sink."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def inputs(self) -> Sequence[Any]:
        """What it reads, drawn before it."""


def diagram(nodes: Sequence[Drawn], sinks: Sequence[Drawn]) -> str:
    """Return a checked graph as the text of a Mermaid flowchart; arguments as for :func:`picture`."""
    return "\n".join(_lines(nodes, sinks)) + "\n"


def picture(nodes: Sequence[Drawn], sinks: Sequence[Drawn], title: str, notes: Mapping[str, str]) -> str:
    """Return a graph as an inline SVG.

    Parameters
    ----------
    nodes : sequence of Drawn
        Inputs before their consumers.
    sinks : sequence of Drawn
        What takes their rows.
    title : str
        What the drawing shows.
    notes : mapping of str to str
        Node's name -> a line below its kind.
    """
    everything: tuple[Drawn, ...] = (*nodes, *sinks)
    place = {node: at for at, node in enumerate(everything)}
    boxes = [
        Box(
            node.name,
            node.kind,
            "sink" if at >= len(nodes) else "operator" if node.inputs else "source",
            tuple(place[before] for before in node.inputs),
            notes.get(node.name, ""),
        )
        for node, at in place.items()
    ]
    return svg(boxes, title)


def stream_html(nodes: Sequence[Drawn], known: Sequence[str] | None) -> str:
    """Return the last of some nodes as HTML: its columns, where known, and a drawing of all that leads to it."""
    last = nodes[-1]
    columns = "its columns are known at a start" if known is None else ", ".join(known)
    head = f"<div><b>{escape(masked(last.name))}</b>: {escape(masked(columns))}</div>"
    return head + picture(nodes, (), f"stream {last.name}", {})


def _lines(nodes: Sequence[Drawn], sinks: Sequence[Drawn]) -> Iterator[str]:
    everything: tuple[Drawn, ...] = (*nodes, *sinks)
    identity = {node: f"n{number}" for number, node in enumerate(everything)}  # `end` is not a name in Mermaid
    yield "flowchart LR"
    for at, (node, key) in enumerate(identity.items()):
        before, after = ('[/"', '"/]') if at >= len(nodes) else ('["', '"]') if node.inputs else ('[("', '")]')
        yield f"  {key}{before}{node.name}<br/>{_escape(node.kind)}{after}"
    for node, key in identity.items():
        yield from (f"  {identity[source]} --> {key}" for source in node.inputs)


def _escape(text: str) -> str:
    return text.replace('"', "#quot;")
