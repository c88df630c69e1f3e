"""Flowgraphs: graphs of calculators that exchange packets with timestamps, alone or as an operator of a pipeline.

A graph runs in one process, without Spark and Java (:meth:`Graph.start`), or once for every key inside Spark's tasks
(:func:`holdfast.flow`).  The rules are in docs/operators/flow.md.
"""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
