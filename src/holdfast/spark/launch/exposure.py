"""What of a pipeline travels to other hosts that should not be read on the way, and whether Spark encrypts it.

Executors stage rows by themselves, so a sink's writer factory goes to them with each task, a PostgreSQL DSN with its
password in it; so do the options of Spark's own readers.  Both are part of task closures and plans, which Spark sends
over its own connections (RPC and block transfer), unencrypted unless it is configured otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.ports import Confidential

Ask = Callable[[str], bool]
"""Whether a switch of Spark's is on."""


def exposed(pipeline: Graph, master: str, is_on: Ask) -> str:
    """Return a warning if secrets of the pipeline would travel in clear to another host; else nothing.

    Parameters
    ----------
    pipeline : Graph
        What is to run.
    master : str
        Spark's master.
    is_on : callable
        Asked for names of Spark settings.
    """
    if master.startswith("local"):  # threads of one JVM, or (local-cluster) processes of one machine
        return ""
    if is_on("spark.ssl.rpc.enabled") or (is_on("spark.authenticate") and is_on("spark.network.crypto.enabled")):
        return ""
    ends: list[Node | SinkNode] = [*pipeline.sources, *pipeline.sinks]
    nodes = [node.name for node in ends if isinstance(node.spec, Confidential) and node.spec.sends_secret]
    if not nodes:
        return ""
    return (
        f"secrets of {', '.join(nodes)} travel to the executors of {master} in clear: set spark.authenticate and "
        "spark.network.crypto.enabled (or spark.ssl.rpc.enabled) to true; docs/operations.md says what travels"
    )
