"""The pipeline as a drawing: Mermaid text, for Markdown and whatever else draws Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.graph.nodes import SinkNode

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node
    from holdfast.graph.pipeline import Pipeline


def diagram(pipeline: Pipeline) -> str:
    """Return a checked graph as the text of a Mermaid flowchart."""
    return "\n".join(_lines((*pipeline.nodes, *pipeline.sinks))) + "\n"


def _lines(everything: tuple[Node | SinkNode, ...]) -> Iterator[str]:
    identity = {node: f"n{number}" for number, node in enumerate(everything)}  # `end` is not a name in Mermaid
    yield "flowchart LR"
    for node, key in identity.items():
        before, after = _shape(node)
        yield f"  {key}{before}{node.name}<br/>{_escaped(node.kind)}{after}"
    for node, key in identity.items():
        yield from (f"  {identity[source]} --> {key}" for source in node.inputs)


def _shape(node: Node | SinkNode) -> tuple[str, str]:
    if isinstance(node, SinkNode):
        return '[/"', '"/]'
    return ('["', '"]') if node.inputs else ('[("', '")]')


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;")
