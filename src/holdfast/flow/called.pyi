# How type checkers see ``hf.flow``: a namespace that can be called.  Its names are those of the stub of the package.

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.flow import calculators as _calculators
from holdfast.flow.building import Stream as _Stream
from holdfast.flow.building import Streams as _Streams
from holdfast.flow.building import node as _node
from holdfast.flow.context import Context as _Context
from holdfast.flow.contract import STOP as _STOP
from holdfast.flow.contract import Calculator as _Calculator
from holdfast.flow.contract import Contract as _Contract
from holdfast.flow.contract import Stop as _Stop
from holdfast.flow.contract import function as _function
from holdfast.flow.executors import Application as _Application
from holdfast.flow.executors import Executor as _Executor
from holdfast.flow.executors import Seeded as _Seeded
from holdfast.flow.executors import Sequential as _Sequential
from holdfast.flow.executors import Threads as _Threads
from holdfast.flow.graph import Graph as _Graph
from holdfast.flow.policies import CLOSE as _CLOSE
from holdfast.flow.policies import Policy as _Policy
from holdfast.flow.queues import ABSENT as _ABSENT
from holdfast.flow.queues import BrokenContract as _BrokenContract
from holdfast.flow.queues import InputQueue as _InputQueue
from holdfast.flow.run import Run as _Run
from holdfast.flow.timestamps import DONE as _DONE
from holdfast.flow.timestamps import MAX as _MAX
from holdfast.flow.timestamps import MIN as _MIN
from holdfast.flow.timestamps import ONE_OVER_POST_STREAM as _ONE_OVER_POST_STREAM
from holdfast.flow.timestamps import POST_STREAM as _POST_STREAM
from holdfast.flow.timestamps import PRE_STREAM as _PRE_STREAM
from holdfast.flow.timestamps import UNSET as _UNSET
from holdfast.flow.timestamps import UNSTARTED as _UNSTARTED
from holdfast.graph.nodes import Stream as _Rows

class flow(Any):  # type: ignore[misc]  # what a call returns: a stream, several by name, or what stands right of one
    def __new__(
        cls,
        streams: Mapping[str, _Rows] | _Graph,
        graph: _Graph | None = None,
        *,
        by: str | Sequence[str],
        schema: Any = None,
        outputs: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str] | None = None,
        disorder: str | int | Mapping[str, str | int] | None = None,
        idle_after: str | None = None,
        side_inputs: Mapping[str, Any] | None = None,
        renamed_nodes: Mapping[str, str] | None = None,
        forget_after: str | None = None,
        threads: int | None = None,
        name: str | None = None,
        renamed_from: str | None = None,
        migrate: Any = None,
    ) -> flow: ...
    calculators = _calculators
    Graph: TypeAlias = _Graph
    Stream: TypeAlias = _Stream
    Streams: TypeAlias = _Streams
    node = _node
    Context: TypeAlias = _Context
    STOP = _STOP
    Calculator: TypeAlias = _Calculator
    Contract: TypeAlias = _Contract
    Stop: TypeAlias = _Stop
    function = _function
    Application: TypeAlias = _Application
    Executor: TypeAlias = _Executor
    Seeded: TypeAlias = _Seeded
    Sequential: TypeAlias = _Sequential
    Threads: TypeAlias = _Threads
    CLOSE = _CLOSE
    Policy: TypeAlias = _Policy
    ABSENT = _ABSENT
    BrokenContract: TypeAlias = _BrokenContract
    InputQueue: TypeAlias = _InputQueue
    Run: TypeAlias = _Run
    DONE = _DONE
    MAX = _MAX
    MIN = _MIN
    ONE_OVER_POST_STREAM = _ONE_OVER_POST_STREAM
    POST_STREAM = _POST_STREAM
    PRE_STREAM = _PRE_STREAM
    UNSET = _UNSET
    UNSTARTED = _UNSTARTED
