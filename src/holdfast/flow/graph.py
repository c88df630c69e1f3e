"""A graph of calculators that can be run: what users build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.flow import drawing
from holdfast.flow.building import Structure
from holdfast.flow.executors import Executor
from holdfast.flow.queues import Packet, Payload
from holdfast.flow.run import Run, run_over
from holdfast.flow.streams import Observer


class Graph(Structure):
    """A graph of calculators.

    Parameters
    ----------
    name : str
        Of the graph; of its nodes, too, where it is a part of another one.
    max_queue_size : int
        Packets in one queue at which what feeds it is held back; -1: never.
    report_deadlock : bool
        Whether it is an error when full queues keep everything from going on; else these may grow.
    policy : policy, optional
        Of all nodes that name none, instead of what their contracts declare.
    keeps : mapping of type to (callable, callable), optional
        In a pipeline: how payloads of a class that wait between epochs become plain values, and are made of these
        again.  Plain values, NumPy arrays and dataclasses that a port names need nothing.

    Examples
    --------
    >>> from holdfast.flow import node
    >>> graph = Graph("sums")
    >>> left, right = graph.input("left", int), graph.input("right", int)
    >>> def add(left: int, right: int):
    ...     return left + right
    >>> graph.output("sum", {"left": left, "right": right} | node(add))
    >>> graph.run({"left": [(1, 10), (2, 20)], "right": [(1, 1), (3, 3)]})
    {'sum': [(1, 11)]}
    """

    def start(
        self,
        *,
        side_inputs: Mapping[str, Payload] | None = None,
        executor: Executor | None = None,
        executors: Mapping[str, Executor] | None = None,
        clock: Any = None,
        trace: bool = False,
        observers: Mapping[str, Observer] | None = None,
    ) -> Run:
        """Start the graph, in this process.

        Parameters
        ----------
        side_inputs : mapping, optional
            Name -> value, of each that was declared.
        executor : Executor, optional
            The default one; a pool of threads by default.
        executors : mapping of str to Executor, optional
            Those that nodes name.
        clock : callable, optional
            Real time in microseconds, for calculators that read it; a test's own.
        trace : bool
            Whether to keep each call, for a viewer: :meth:`Run.trace`.
        observers : mapping of str to callable, optional
            Graph output -> what is called with time and payload of each packet, those of sources and of ``open`` too,
            which :meth:`Run.observe` may come too late for.

        Returns
        -------
        Run
            What packets are added to.

        Raises
        ------
        InvalidPipeline
            If the graph is not complete, or a side input or an executor is missing.
        """
        return Run(
            self,
            side_inputs=side_inputs,
            executor=executor,
            executors=executors or {},
            clock=clock,
            is_traced=trace,
            observers=observers,
        )

    def run(
        self,
        inputs: Mapping[str, Iterable[Packet]] | None = None,
        *,
        side_inputs: Mapping[str, Payload] | None = None,
        executor: Executor | None = None,
    ) -> dict[str, list[Packet]]:
        """Run the graph over packets that there are, to its end.

        Parameters
        ----------
        inputs : mapping, optional
            Graph input -> (time, payload), ascending.
        side_inputs : mapping, optional
            Name -> value.
        executor : Executor, optional
            :class:`Application` by default: in this thread.  It runs all nodes, also those that name another one.

        Returns
        -------
        dict
            Graph output -> (time, payload).
        """
        return run_over(self, inputs or {}, side_inputs, executor)

    def explain(self) -> str:
        """Return the graph as a text."""
        return drawing.explain(self)

    def mermaid(self) -> str:
        """Return the graph as a Mermaid diagram."""
        return drawing.mermaid(self)
