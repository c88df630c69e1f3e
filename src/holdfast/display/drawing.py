"""The pipeline as a drawing: Mermaid text for whatever shows Markdown, and SVG for a notebook.

In the SVG boxes stand in columns, from the sources on the left to the sinks on the right.  Every text is masked and
escaped.  The colours are those of the text around it, so that it suits dark pages as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, Protocol

from holdfast.masking import masked

NAME_MAX = 28
"""Characters of a name that a box shows; the rest is in its tooltip."""

_CHARACTER, _LINE, _PADDING, _GAP_X, _GAP_Y = 7.5, 16, 10, 48, 14
_STYLE = {
    "source": "fill:currentColor;fill-opacity:.04;stroke:currentColor;stroke-dasharray:4 2",
    "operator": "fill:currentColor;fill-opacity:.04;stroke:currentColor",
    "sink": "fill:currentColor;fill-opacity:.12;stroke:currentColor",
}


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
    return svg(boxes_of(nodes, sinks, notes), title)


def boxes_of(nodes: Sequence[Drawn], sinks: Sequence[Drawn], notes: Mapping[str, str]) -> list[Box]:
    """Return a graph as the boxes of a drawing; arguments as for :func:`picture`."""
    everything: tuple[Drawn, ...] = (*nodes, *sinks)
    place = {node: at for at, node in enumerate(everything)}
    return [
        Box(
            node.name,
            node.kind,
            "sink" if at >= len(nodes) else "operator" if node.inputs else "source",
            tuple(place[before] for before in node.inputs),
            notes.get(node.name, ""),
        )
        for node, at in place.items()
    ]


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


@dataclass(frozen=True)
class Box:
    """One node of a drawing.

    Parameters
    ----------
    name, kind : str
        Its two lines.
    role : str
        ``source``, ``operator`` or ``sink``.
    inputs : tuple of int
        Which boxes lead to it, by their place in the drawing; each stands before it.
    note : str
        A third line: counts, for instance.
    """

    name: str
    kind: str
    role: Literal["source", "operator", "sink"]
    inputs: tuple[int, ...] = ()
    note: str = ""


def svg(boxes: Sequence[Box], title: str) -> str:
    """Return boxes and the arrows between them as SVG text, for a page of HTML.

    Examples
    --------
    >>> drawn = svg([Box("rides", "files", "source"), Box("<t>", "sqlite", "sink", (0,))], "trips")
    >>> drawn.startswith("<svg "), drawn.count("<rect "), drawn.count("<path "), "<t>" in drawn
    (True, 2, 1, False)
    """
    columns = columns_of(boxes)
    widths = [_PADDING * 2 + _CHARACTER * max(_length(boxes[at]) for at in column) for column in columns]
    height = _LINE * (3 if any(box.note for box in boxes) else 2) + _PADDING
    place: dict[int, tuple[float, float, float]] = {}
    tallest = max((len(column) for column in columns), default=0)
    x = 1.0
    for column, width in zip(columns, widths, strict=True):
        first = 1 + (tallest - len(column)) * (height + _GAP_Y) / 2
        for row, at in enumerate(column):
            place[at] = (x, first + row * (height + _GAP_Y), width)
        x += width + _GAP_X
    total_x, total_y = max(x - _GAP_X, 0) + 1, max(tallest * (height + _GAP_Y) - _GAP_Y, 0) + 2
    inside = [*_arrows(boxes, place, height), *(_box(box, *place[at], height) for at, box in enumerate(boxes))]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {total_x:.0f} {total_y:.0f}" '
    head += f'width="{total_x:.0f}" style="max-width:100%;height:auto;font:12px sans-serif">'
    return f"{head}<title>{_text(title)}</title>{''.join(inside)}</svg>"


def columns_of(boxes: Sequence[Box]) -> list[list[int]]:
    """Return the boxes by column: each one to the right of all that lead to it, and sinks in the last one."""
    depth: list[int] = []
    for box in boxes:
        depth.append(1 + max((depth[at] for at in box.inputs), default=-1))
    last = max(depth, default=-1)
    columns: list[list[int]] = [[] for _ in range(last + 1)]
    for at, box in enumerate(boxes):
        columns[last if box.role == "sink" else depth[at]].append(at)
    return [column for column in columns if column]


def _length(box: Box) -> int:
    return max(min(len(box.name), NAME_MAX), len(box.kind), len(box.note))


def _arrows(boxes: Sequence[Box], place: dict[int, tuple[float, float, float]], height: float) -> Iterator[str]:
    for at, box in enumerate(boxes):
        x, y, _ = place[at]
        for before in box.inputs:
            from_x, from_y, width = place[before]
            left, top, bottom = from_x + width, from_y + height / 2, y + height / 2
            middle = (left + x) / 2
            curve = f"M{left:.0f} {top:.0f}C{middle:.0f} {top:.0f} {middle:.0f} {bottom:.0f} {x - 5:.0f} {bottom:.0f}"
            head = f"M{x - 6:.0f} {bottom - 4:.0f}l6 4l-6 4"
            yield f'<path d="{curve}{head}" style="fill:none;stroke:currentColor;stroke-opacity:.6"/>'


def _box(box: Box, x: float, y: float, width: float, height: float) -> str:
    shown = box.name if len(box.name) <= NAME_MAX else box.name[: NAME_MAX - 1] + "…"
    lines = [(shown, "font-weight:bold"), (box.kind, "opacity:.7"), (box.note, "")]
    texts = "".join(
        f'<text x="{x + _PADDING:.0f}" y="{y + _LINE * (row + 1):.0f}" style="fill:currentColor;{style}">'
        f"{_text(line)}</text>"
        for row, (line, style) in enumerate(lines)
        if line
    )
    tip = f"<title>{_text(f'{box.role} {box.name}, {box.kind}')}</title>"
    rect = (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" style="{_STYLE[box.role]}"/>'
    )
    return f"<g>{tip}{rect}{texts}</g>"


def _text(text: str) -> str:
    return escape(masked(text))
