"""The graph as SVG: nodes coloured by how busy they are, and on each edge what passes it and what waits there.

Colours and fonts are the style sheet's, because the page allows no style in its markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.display.drawing import NAME_MAX, Box, columns_of
from holdfast.masking import masked
from holdfast.page.html import Html, el, join

_CHARACTER, _LINE, _PADDING, _GAP_X, _GAP_Y = 7.2, 17, 11, 46, 22

Place = tuple[float, float, float]
"""Left, top and width of a box."""


def drawing(
    boxes: Sequence[Box],
    title: str,
    *,
    edges: Mapping[tuple[str, str], str],
    shares: Mapping[str, float],
    troubled: Mapping[str, str],
) -> Html:
    """Return a graph.

    Parameters
    ----------
    boxes : sequence of Box
        Each after those that lead to it; a note is its third line.
    title : str
        What is drawn.
    edges : mapping of (str, str) to str
        (From, to) -> what stands on the edge.
    shares : mapping of str to float
        Node -> which part of an epoch's time it takes, 0 to 1.
    troubled : mapping of str to str
        Node -> ``minor`` or ``bad``: its frame says so.
    """
    columns = columns_of(boxes)
    label_width = max((len(label) for label in edges.values()), default=0) * 6.2
    gap = max(_GAP_X, label_width + 20)
    height = _LINE * 3 + _PADDING
    places = _places(boxes, columns, gap, height)
    total_x = max((x + width for x, _, width in places), default=0) + 2
    total_y = max((y for _, y, _ in places), default=0) + height + 2
    inside = [*_arrows(boxes, places, height, edges)]
    inside += [
        _box(box, place, height, shares.get(box.name), troubled.get(box.name))
        for box, place in zip(boxes, places, strict=True)
    ]
    drawn = el(
        "svg",
        el("title", title),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        viewBox=f"0 0 {total_x:.0f} {total_y:.0f}",
        width=f"{total_x:.0f}",
        height=f"{total_y:.0f}",
        class_="graph",
    )
    return el("div", drawn, class_="scroll", tabindex=0)


def _places(boxes: Sequence[Box], columns: Sequence[Sequence[int]], gap: float, height: float) -> list[Place]:
    tallest = max((len(column) for column in columns), default=0)
    places: dict[int, Place] = {}
    x = 1.0
    for column in columns:
        width = _PADDING * 2 + _CHARACTER * max(_length(boxes[at]) for at in column)
        first = 1 + (tallest - len(column)) * (height + _GAP_Y) / 2
        for row, at in enumerate(column):
            places[at] = (x, first + row * (height + _GAP_Y), width)
        x += width + gap
    return [places[at] for at in range(len(boxes))]


def _length(box: Box) -> int:
    return max(min(len(box.name), NAME_MAX), len(box.kind), len(box.note))


def _arrows(
    boxes: Sequence[Box], places: Sequence[Place], height: float, edges: Mapping[tuple[str, str], str]
) -> Iterator[Html]:
    for box, (x, y, _) in zip(boxes, places, strict=True):
        for before in box.inputs:
            from_x, from_y, width = places[before]
            left, top, bottom = from_x + width, from_y + height / 2, y + height / 2
            middle = (left + x) / 2
            curve = f"M{left:.0f} {top:.0f}C{middle:.0f} {top:.0f} {middle:.0f} {bottom:.0f} {x - 6:.0f} {bottom:.0f}"
            yield el("path", d=curve, class_="edge")
            yield el("path", d=f"M{x - 7:.0f} {bottom - 4:.0f}l7 4l-7 4z", class_="head")
            label = edges.get((boxes[before].name, box.name))
            if label:
                place = {"x": f"{middle:.0f}", "y": f"{(top + bottom) / 2 - 6:.0f}"}
                yield el("text", label, class_="label", **place)


def _box(box: Box, place: Place, height: float, share: float | None, trouble: str | None) -> Html:
    x, y, width = place
    name = masked(box.name)  # before it is cut: half a secret is not known as one
    shown = name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"
    texts = [
        el("text", line, x=f"{x + _PADDING:.0f}", y=f"{y + _LINE * (row + 1):.0f}", class_=kind)
        for row, (line, kind) in enumerate([(shown, "name"), (box.kind, "kind"), (box.note, "note")])
        if line
    ]
    busy = "" if share is None else f" busy{min(4, int(share * 5))}"
    told = "" if share is None else f", {100 * share:.0f} % of an epoch"
    frame = el(
        "rect",
        x=f"{x:.0f}",
        y=f"{y:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        rx=5,
        class_=f"box {box.role}{busy}" + (f" {trouble}" if trouble else ""),
    )
    return el("g", el("title", f"{box.role} {box.name}, {box.kind}{told}"), frame, join(texts))


CHART_EPOCHS = 100
"""Epochs in the chart of the server; the one of the browser has all of them."""

_STAGES = ("plan", "evaluate", "decide", "publish")
_BAR, _CHART_HEIGHT = 9, 120


def chart(bars: Sequence[tuple[str, str, Mapping[str, float]]]) -> Html:
    """Return epochs as bars of their stages.

    Parameters
    ----------
    bars : sequence of (str, str, mapping of str to float)
        Of each epoch: what its tooltip says, where it leads, and stage -> seconds; the newest last.
    """
    highest = max((sum(stages.values()) for _, _, stages in bars), default=0.0) or 1.0
    width = max(1, len(bars)) * _BAR
    return el(
        "svg",
        el("title", "The time of the last epochs by stage"),
        *(_bar(at, bar, highest) for at, bar in enumerate(bars)),
        role="img",
        viewBox=f"0 0 {width} {_CHART_HEIGHT}",
        width=width,
        height=_CHART_HEIGHT,
        class_="chart",
    )


def _bar(at: int, bar: tuple[str, str, Mapping[str, float]], highest: float) -> Html:
    tip, href, stages = bar
    rects, bottom = [], float(_CHART_HEIGHT)
    for stage in _STAGES:
        height = _CHART_HEIGHT * stages.get(stage, 0.0) / highest
        bottom -= height
        place = {"x": at * _BAR, "width": _BAR - 2}
        rects.append(el("rect", y=f"{bottom:.1f}", height=f"{height:.1f}", class_=f"stage {stage}", **place))
    return el("a", el("title", tip), *rects, href=href)


def legend() -> Html:
    """Return what the colours of the chart mean."""
    return el("p", *(el("span", stage, class_=f"key {stage}") for stage in _STAGES), class_="legend")
