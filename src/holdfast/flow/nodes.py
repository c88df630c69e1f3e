"""A node of a graph that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.context import CalledNode, Context
from holdfast.flow.contract import STOP, Contract, Kind
from holdfast.flow.policies import Close, InputSet, Policy
from holdfast.flow.queues import ABSENT, InputQueue, Packet, Payload, Throttle, Types, late_packet
from holdfast.flow.replay import REPLAY_MAX, ReplayedSets
from holdfast.flow.streams import OutputStream, Raised
from holdfast.flow.timestamps import DONE, MAX, MIN, PRE_STREAM, UNSTARTED


class Scheduler(Throttle):
    """What a node needs of the engine that runs it."""

    clock: Callable[[], int]
    """Real time, in microseconds."""

    def schedule(self, invocation: CalculatorCall) -> None:
        """Have a calculator called."""
        raise NotImplementedError

    def stop_sources(self) -> None:
        """Close all sources."""
        raise NotImplementedError


class NodeRun(CalledNode):
    """A node that runs: its calculator, the queues of its inputs, its policy, and what is in flight.

    Parameters
    ----------
    engine : Scheduler
        The graph's.
    name : str
        Unique in the graph.
    number : int
        Place in the topological order.
    contract : Contract
        What it declares.
    kind : Kind
        What its calculator is.
    side_inputs : mapping
        What it is given once.
    source_layer : int
        Of a source: sources of a layer begin when those of lower ones are closed.
    """

    def __init__(
        self,
        engine: Scheduler,
        name: str,
        number: int,
        contract: Contract,
        kind: Kind,
        side_inputs: Mapping[str, Payload],
        source_layer: int = 0,
    ) -> None:
        self.engine = engine
        self.throttle = engine
        self.name = name
        self.number = number
        self.contract = contract
        self.calculator = kind.make()
        self.identity = kind.identity
        self.side_inputs = side_inputs
        self.source_layer = source_layer
        self.is_source = not contract.inputs
        self.is_closed = False
        self.is_ended = False
        """Whether the calculator's ``close`` was called."""

        self.queues: list[InputQueue] = []
        self.policy: Policy = Policy(())
        self.places = {name: place for place, name in enumerate(contract.inputs)}
        self.outputs: dict[str, tuple[OutputStream, Types]] = {}
        self.no_packets: list[Packet] = [(UNSTARTED, ABSENT)] * len(self.places)
        self.streams: tuple[OutputStream, ...] = ()
        self.in_flight = 0
        self.drop_count = 0
        self.batch: list[InputSet] = []
        self.blocked_by: set[InputQueue] = set()
        """Of a source: the full queues that it feeds."""

        self.replay = ReplayedSets(contract.replay_from, contract.replay_marks)

        self._offset = contract.timestamp_offset
        self._batch_size = contract.batch_size
        self._max_in_flight = contract.max_in_flight
        self._is_closing = False
        self._free: list[Context] = []
        self._order: deque[CalculatorCall] = deque()
        """What was taken and has not left yet, in the order of time."""

        self.priority: tuple[int, ...] = (0, -number)

    def connect(self, queues: Sequence[InputQueue], outputs: Mapping[str, OutputStream], policy: Policy) -> None:
        """Give it its inputs and outputs."""
        self.queues = list(queues)
        self.policy = policy
        for queue in queues:
            queue.is_ordered = policy.is_ordered
            queue.is_asked_always = policy.drops
        self.outputs = {name: (stream, self.contract.outputs[name]) for name, stream in outputs.items()}
        self.streams = tuple(outputs.values())
        self._free = [Context(self) for _ in range(self._max_in_flight)]

    # --- what is next: under the engine's lock -------------------------------------------------------

    def ask(self, ahead: list[Raised] | None = None) -> None:
        """Ask the policy what is next, and schedule it.

        Parameters
        ----------
        ahead : list, optional
            Where bounds are put that rise by it; without one all that follows from them is done.
        """
        if self.is_closed:
            return
        try:
            if self.policy.drops:
                self.policy.drop()
            while self.in_flight < self._max_in_flight and not self._is_closing:
                answer = self.policy.next_set()
                if answer is None:
                    self._forward(ahead)
                    return
                if isinstance(answer, Close):
                    if self.batch:
                        self._schedule(self.batch)
                        self.batch = []
                    elif self.in_flight == 0:
                        self._is_closing = True
                        self._schedule(None)
                    return
                if self._batch_size > 1:
                    self.batch.append(answer)
                    if len(self.batch) < self._batch_size:
                        continue
                    sets, self.batch = self.batch, []
                else:
                    sets = [answer]
                self._schedule(sets)
        except HoldfastError:
            raise
        except Exception as error:
            raise InvalidPipeline(
                f"The policy of calculator {self.name!r} failed: {type(error).__name__}: {error}.",
                why="its own code raised it; the graph has stopped.",
                do="mend the policy, or what it is given; the traceback above is where.",
                participant=self.name,
            ) from error

    def ask_source(self) -> None:
        """Schedule the next call of a source, where it may run."""
        if not (self.in_flight or self._is_closing or self.is_closed or self.blocked_by):
            low = min((stream.bound for stream in self.streams), default=PRE_STREAM)
            self.priority = (1, self.source_layer, low, self.number)
            self._schedule([(UNSTARTED, self.no_packets)])

    def stop(self) -> None:
        """Close a source, now or when its call has ended."""
        if not (self._is_closing or self.is_closed):
            self._is_closing = True
            if self.in_flight == 0:
                self._schedule(None)

    def _schedule(self, sets: list[InputSet] | None) -> None:
        self.in_flight += 1
        invocation = CalculatorCall(self, self._free.pop(), sets)
        if self._max_in_flight > 1:
            self._order.append(invocation)
        self.engine.schedule(invocation)

    def _forward(self, ahead: list[Raised] | None) -> None:
        """Promise what the inputs promise, moved by the offset; not before all that was taken has left."""
        offset = self._offset
        if offset is None or self.in_flight:
            return
        low = self.batch[0][0] if self.batch else self.policy.low
        if low is None or not MIN <= low <= MAX:
            return
        bound = low + offset
        if MIN <= bound <= MAX:
            for stream in self.streams if ahead is None else reversed(self.streams):
                if bound > stream.bound:
                    if ahead is None:
                        stream.raise_bound(bound)
                    else:
                        stream.rise(bound, ahead)

    # --- the work: without the lock ------------------------------------------------------------------

    def run(self, invocation: CalculatorCall) -> None:
        """Call the calculator.

        Raises
        ------
        HoldfastError
            What it raises, with its name and the time.
        """
        context = invocation.context
        try:
            if invocation.sets is None:
                self.close(context)
                return
            for context.timestamp, context._packets in invocation.sets:
                if self.contract.replay_from and any(value is not ABSENT for _, value in context._packets):
                    self._note(context)  # without packets nothing is kept: a silent key would gather calls for ever
                if self.calculator.process(context) is STOP:
                    invocation.is_stop = True
        except Exception as error:
            raise self.error_of(error, context.timestamp) from error

    def now(self) -> int:
        """Return real time, for a calculator whose contract says that it reads the clock.

        Raises
        ------
        InvalidPipeline
            If the contract does not say so.
        """
        if not self.contract.reads_clock:
            raise InvalidPipeline(
                f"Calculator {self.name!r} asks for real time.",
                why="its contract does not say so: what it makes would differ from run to run.",
                do="declare Contract(reads_clock=True), or use the times of packets.",
                participant=self.name,
            )
        return self.engine.clock()

    def _note(self, context: Context) -> None:
        """Keep an input set for a replay.

        Raises
        ------
        InvalidPipeline
            If none was marked for too long.
        """
        bounds = {name: context.output_bound(name) for name in self.outputs} if self.replay.encode else {}
        if not self.replay.note(context.timestamp, context._packets, bounds):
            raise InvalidPipeline(
                f"Calculator {self.name!r} has seen {REPLAY_MAX} input sets without a packet that is marked by "
                f"{self.contract.replay_from!r}.",
                why="all of them would have to be kept, to make its state again.",
                do="mark packets more often, key frames for instance, or write save() and restore().",
                participant=self.name,
            )

    def open(self, *, is_muted: bool = False) -> None:
        """Open the calculator.

        Parameters
        ----------
        is_muted : bool
            Whether it was open before: what it sends has left then.

        Raises
        ------
        HoldfastError
            What it raises, with its name.
        """
        context = Context(self, {} if is_muted else None)  # of its own: what was sent to it may be scheduled already
        try:
            self.calculator.open(context)
        except Exception as error:
            self.is_ended = True
            raise self.error_of(error, context.timestamp) from error
        if is_muted:
            return
        self._send(context)
        self._promise(context)

    def close(self, context: Context) -> None:
        """Close the calculator."""
        self.is_ended = True
        context.timestamp = DONE
        context._packets = self.no_packets
        self.calculator.close(context)

    def error_of(self, error: BaseException, t: int) -> HoldfastError:
        """Return the error of a calculator for the user: which one it was, and when."""
        if isinstance(error, HoldfastError):
            return error
        where = f" at {timestamps.text(t)}" if t not in (UNSTARTED, DONE) else " in close" if t == DONE else ""
        return InvalidPipeline(
            f"Calculator {self.name!r} failed{where}: {type(error).__name__}: {error}.",
            why="its own code raised it; the graph has stopped, and what had left before stays.",
            do="mend the calculator; the traceback above is where.",
            participant=self.name,
        )

    # --- what has left: under the lock ---------------------------------------------------------------

    def finish(self, invocation: CalculatorCall) -> None:
        """Send what a call has made, in the order of time, and ask what is next.

        Raises
        ------
        BrokenContract
            If an input must not have it.
        """
        if self._max_in_flight > 1:
            invocation.is_done = True
            while self._order and self._order[0].is_done:
                self._leave(self._order.popleft())
        else:
            self._leave(invocation)

    def _leave(self, invocation: CalculatorCall) -> None:
        context = invocation.context
        if context._sent:
            self._send(context)
        if context._explicit:
            self._promise(context)
        if context._drop_count:
            self.drop_count += context._drop_count
            context._drop_count = 0
        self.in_flight -= 1
        self._free.append(context)
        sets = invocation.sets
        if sets is None:
            self.close_outputs()
            return
        if self._offset is not None and not self.is_source:
            bound = _bound_after(sets[-1][0], self._offset)
            for stream in self.streams:
                if bound > stream.bound:
                    stream.raise_bound(bound)
        if invocation.is_stop:
            if self.is_source:
                self._is_closing = True
            else:
                self.engine.stop_sources()
        if not self.is_source:
            self.ask()
        elif self._is_closing:
            self._schedule(None)
        else:
            self.ask_source()

    def _send(self, context: Context) -> None:
        sent, context._sent = context._sent, []
        for stream, packet in sent:
            if stream.bound == DONE:
                raise late_packet(stream.name, packet[0], DONE, "everybody", self.name)
            stream.send(packet)

    def _promise(self, context: Context) -> None:
        explicit, context._explicit = context._explicit, {}
        for name, bound in explicit.items():
            self.outputs[name][0].raise_bound(bound)

    def close_outputs(self) -> None:
        """Close the outputs: nothing comes any more."""
        self.is_closed = True
        self.replay = ReplayedSets()
        for queue in self.queues:
            queue.clear()
        for stream in self.streams:
            stream.raise_bound(DONE)


class CalculatorCall:
    """A call of a calculator: its input sets, or None where it closes."""

    __slots__ = ("context", "is_done", "is_stop", "node", "sets")

    def __init__(self, node: NodeRun, context: Context, sets: list[InputSet] | None) -> None:
        self.node = node
        self.context = context
        self.sets = sets
        self.is_done = False
        self.is_stop = False


def _bound_after(t: int, offset: int) -> int:
    """Return the bound that an offset promises after an input set.

    Examples
    --------
    >>> _bound_after(5, 0), _bound_after(5, 2)
    (6, 8)
    """
    if MIN <= t < MAX:
        return timestamps.shift(t + 1, offset)
    if t == PRE_STREAM:
        return MIN
    if t == MAX:
        return timestamps.POST_STREAM if offset >= 0 else timestamps.shift(MAX, offset)
    return timestamps.ONE_OVER_POST_STREAM
