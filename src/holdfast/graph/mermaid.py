"""The pipeline as a drawing: Mermaid text, or an SVG that needs nothing else.

The SVG is laid out in layers: a node stands one column to the right of the last of its inputs; an edge that passes
over columns keeps a lane of its own there; the order in a column follows the middle of the neighbours, a few sweeps
to and fro (Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.graph.explain import arguments_text
from holdfast.graph.nodes import SinkNode

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node
    from holdfast.graph.pipeline import Pipeline

_SWEEPS = 8
_BOX_HEIGHT = 46
_LANE_HEIGHT = 14
_GAP_X, _GAP_Y, _MARGIN = 56, 18, 16
_CHARACTER_WIDTH = 7.4  # of the 13 px monospace font below, generously
_BOX_WIDTH_MIN = 110
_FILLS = {"source": "#dcecf9", "operator": "#f3f3f0", "sink": "#dff2e1"}
_STROKES = {"source": "#2b6ca3", "operator": "#77776f", "sink": "#2f7d3b"}


def diagram(pipeline: Pipeline, format: str) -> str:
    """Return the pipeline as a drawing.

    Parameters
    ----------
    pipeline : Pipeline
        A checked graph.
    format : {"mermaid", "svg"}
        Mermaid flowchart text, or a self-contained SVG document.

    Raises
    ------
    InvalidPipeline
        If the format is another.
    """
    if format == "mermaid":
        return "\n".join(_mermaid(pipeline)) + "\n"
    if format == "svg":
        return _svg(pipeline)
    raise InvalidPipeline(f"format={format!r} is no format of a diagram.", do='write format="mermaid" or format="svg".')


def _everything(pipeline: Pipeline) -> tuple[Node | SinkNode, ...]:
    return (*pipeline.nodes, *pipeline.sinks)


def _role(node: Node | SinkNode) -> str:
    if isinstance(node, SinkNode):
        return "sink"
    return "operator" if node.inputs else "source"


def _mermaid(pipeline: Pipeline) -> Iterator[str]:
    shapes = {"source": ('[("', '")]'), "operator": ('["', '"]'), "sink": ('[/"', '"/]')}
    identity = {node: f"n{number}" for number, node in enumerate(_everything(pipeline))}  # `end` is no name in Mermaid
    yield "flowchart LR"
    for node, key in identity.items():
        before, after = shapes[_role(node)]
        yield f"  {key}{before}{node.name}<br/>{_mermaid_text(node.kind)}{after}"
    for node, key in identity.items():
        yield from (f"  {identity[source]} --> {key}" for source in node.inputs)


def _mermaid_text(text: str) -> str:
    return text.replace('"', "#quot;")


@dataclass(eq=False)
class _Place:
    """A box in a column, or the lane of an edge that passes through it."""

    node: Node | SinkNode | None
    column: int
    before: list[_Place]
    after: list[_Place]
    y: float = 0.0

    @property
    def height(self) -> int:
        return _LANE_HEIGHT if self.node is None else _BOX_HEIGHT

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def _svg(pipeline: Pipeline) -> str:
    columns = _layout(_everything(pipeline))
    widths = [_column_width(column) for column in columns]
    lefts = [_MARGIN + sum(widths[:index]) + index * _GAP_X for index in range(len(columns))]
    width = lefts[-1] + widths[-1] + _MARGIN
    height = max(place.y + place.height for column in columns for place in column) + _MARGIN
    body = [line for column in columns for place in column for line in _edges(place, lefts, widths)]
    body += [line for column in columns for place in column for line in _box(place, lefts, widths)]
    title = f"Pipeline {escape(pipeline.name, quote=False)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" font-family="ui-monospace, Menlo, Consolas, monospace">',
            f"<title>{title}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _layout(nodes: Sequence[Node | SinkNode]) -> list[list[_Place]]:
    """Return the columns from left to right, each from top to bottom, with every place's ``y`` set."""
    places: dict[Node | SinkNode, _Place] = {}
    columns: list[list[_Place]] = []

    def put(place: _Place) -> _Place:
        while len(columns) <= place.column:
            columns.append([])
        columns[place.column].append(place)
        return place

    for node in nodes:  # inputs come first
        column = max((places[source].column + 1 for source in node.inputs), default=0)
        places[node] = put(_Place(node, column, [], []))
    for node in nodes:
        for source in node.inputs:
            last = places[source]
            for column in range(last.column + 1, places[node].column):
                last = _join(last, put(_Place(None, column, [], [])))
            _join(last, places[node])
    _order(columns)
    _settle(columns)
    return columns


def _join(left: _Place, right: _Place) -> _Place:
    left.after.append(right)
    right.before.append(left)
    return right


def _order(columns: list[list[_Place]]) -> None:
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns[1:] if forward else columns[-2::-1]:
            rank = {place: index for other in columns for index, place in enumerate(other)}
            middle = {
                place: _mean([rank[near] for near in (place.before if forward else place.after)], rank[place])
                for place in column
            }
            column.sort(key=middle.__getitem__)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _settle(columns: list[list[_Place]]) -> None:
    """Give every place its ``y``: near the middle of its neighbours, never over another."""
    for column in columns:
        _stack(column, [0.0] * len(column))
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns[1:] if forward else columns[-2::-1]:
            near = [place.before if forward else place.after for place in column]
            wanted = [
                _mean([other.middle for other in others], place.middle) - place.height / 2
                for place, others in zip(column, near, strict=True)
            ]
            _stack(column, wanted)
    top = min(place.y for column in columns for place in column)
    for column in columns:
        for place in column:
            place.y += _MARGIN - top


def _stack(column: list[_Place], wanted: Sequence[float]) -> None:
    """Set ``y`` near what is wanted, in order and without overlap: push down, then shift the whole column back."""
    floor = float("-inf")
    for place, y in zip(column, wanted, strict=True):
        place.y = max(y, floor)
        floor = place.y + place.height + _GAP_Y
    shift = _mean([place.y - y for place, y in zip(column, wanted, strict=True)], 0.0)
    for place in column:
        place.y -= shift


def _column_width(column: Sequence[_Place]) -> float:
    texts = [max(len(place.node.name), len(_second_line(place.node))) for place in column if place.node is not None]
    return max([_BOX_WIDTH_MIN, *(length * _CHARACTER_WIDTH + 24 for length in texts)])


def _second_line(node: Node | SinkNode) -> str:
    return node.kind if node.guarantee.value == "exactly-once" else f"{node.kind}, {node.guarantee.value}"


def _box(place: _Place, lefts: Sequence[float], widths: Sequence[float]) -> Iterator[str]:
    node = place.node
    if node is None:
        return
    x, y, width, role = lefts[place.column], place.y, widths[place.column], _role(node)
    corner = _BOX_HEIGHT / 2 if role == "source" else 5
    tip = "\n".join(text for text in (str(node.origin), arguments_text(node.arguments())) if text)
    yield (
        f"<g><title>{escape(tip, quote=False)}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BOX_HEIGHT}" '
        f'rx="{corner:g}" fill="{_FILLS[role]}" stroke="{_STROKES[role]}" stroke-width="1.5"/>'
    )
    middle = x + width / 2
    yield (
        f'<text x="{middle:.1f}" y="{y + 20:.1f}" text-anchor="middle" font-size="13" font-weight="600" '
        f'fill="#1c1c1a">{escape(node.name, quote=False)}</text>'
    )
    yield (
        f'<text x="{middle:.1f}" y="{y + 36:.1f}" text-anchor="middle" font-size="11" '
        f'fill="#4a4a45">{escape(_second_line(node), quote=False)}</text></g>'
    )


def _edges(place: _Place, lefts: Sequence[float], widths: Sequence[float]) -> Iterator[str]:
    """Yield the edges that begin in a box, each drawn through its lanes to the box where it ends."""
    if place.node is None:
        return
    for following in place.after:
        x, y = lefts[place.column] + widths[place.column], place.middle
        path = [f"M{x:.1f},{y:.1f}"]
        current = following
        while True:
            left = lefts[current.column]
            path.append(_curve(x, y, left, current.middle))
            if current.node is not None:
                break
            x, y = left + widths[current.column], current.middle
            path.append(f"L{x:.1f},{y:.1f}")
            current = current.after[0]
        yield f'<path d="{" ".join(path)}" fill="none" stroke="#555" stroke-width="1.4" marker-end="url(#arrow)"/>'


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (x + to_x) / 2
    return f"C{half:.1f},{y:.1f} {half:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
