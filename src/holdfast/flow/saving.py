"""A graph's state as bytes, by node: what waits, what is held and promised; and how a graph goes on from it.

Only an idle graph is saved: no call is under way, and what waits, waits by the policies.  A node's state is its queues
with their bounds, what its policy remembers, an unfinished batch, the bounds of its outputs, and its calculator's own,
which is either saved or made again: by the input sets since the last marked packet, whose outputs have left before.

Where the graph has changed meanwhile, a node that is kept finds its state under its name.  An input that is new begins
at the bound of the stream that fills it now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.errors import InvalidPipeline
from holdfast.flow.context import Context
from holdfast.flow.nodes import NodeRun
from holdfast.flow.policies import Policy, identity_of
from holdfast.flow.queues import Payload
from holdfast.flow.run import Run
from holdfast.flow.timestamps import PRE_STREAM

INPUTS = ""
"""In the place of a node's name: the graph's inputs."""


@dataclass(frozen=True)
class SavedNode:
    """The state of one node.

    Parameters
    ----------
    state : bytes
        What waits, is held and promised.
    replay : sequence of bytes
        Input sets that the calculator is restored by: those that were not saved before.
    first : int
        Number of the first of them; those from there on that were saved before are gone.
    count : int
        How many there are, from number 0 on.
    """

    state: bytes
    replay: Sequence[bytes] = ()
    first: int = 0
    count: int = 0


def save(run: Run, of: str) -> dict[str, SavedNode]:
    """Return the state of an idle graph, by node.

    Parameters
    ----------
    run : Run
        The graph.
    of : str
        Whose it is, for errors.

    Raises
    ------
    InvalidPipeline
        If a calculator has state and can neither save it nor be replayed, or a value cannot become bytes.
    """
    bounds = {name: each.stream.bound for name, each in run.engine.inputs.items()}
    codec = run.graph.codec
    found = {INPUTS: SavedNode(codec.encode({"bounds": bounds}, of=of))}
    for node in run.engine.nodes:
        named = f"node {node.name!r} of {of}"
        first, sets = node.replay.take()
        state = codec.encode({**_state(node), "replay": [node.replay.count, node.replay.digest]}, of=named)
        found[node.name] = SavedNode(state, sets, first, node.replay.count)
    return found


def _state(node: NodeRun) -> dict[str, Payload]:
    return {
        "queues": {
            queue.name: [queue.bound, queue.had_packet, [list(packet) for packet in queue.items]]
            for queue in node.queues
        },
        "policy": {name: getattr(node.policy, name) for name in node.policy.state},
        "policy_is": _policy_is(node.policy),
        "batch": [[t, [list(packet) for packet in packets]] for t, packets in node.batch],
        "outputs": {name: stream.bound for name, (stream, _) in node.outputs.items()},
        "is_closed": node.is_closed,
        "identity": node.identity,
        "calculator": _own(node),
    }


def _policy_is(policy: Policy) -> list[Payload]:
    return [identity_of(type(policy)), *policy.form()]


def _own(node: NodeRun) -> dict[str, Payload] | None:
    if node.is_closed or node.contract.replay_from:
        return None
    try:
        own = node.calculator.save()
    except Exception as error:
        raise _failure(node, "save", error) from error
    if not isinstance(own, Mapping):
        if own is not None:
            raise InvalidPipeline(
                f"save() of calculator {node.name!r} returned {type(own).__name__}.",
                why="its state is a mapping of names to values.",
                do='return for instance {"total": self.total}.',
                participant=node.name,
            )
        raise InvalidPipeline(
            f"Calculator {node.name!r} has state that nobody can keep.",
            why="it has neither save() nor Contract(replay_from=...), and does not say that it has none: in a pipeline "
            "it is restored after a crash.",
            do="write save() and restore(), or declare Contract(is_pure=True), or what it can be replayed from.",
            participant=node.name,
        )
    return dict(own)


def restore(
    run: Run, states: Mapping[str, bytes], replays: Mapping[str, Sequence[bytes]], renamed: Mapping[str, str], of: str
) -> None:
    """Let a graph that has not begun go on from a state, and begin.

    Parameters
    ----------
    run : Run
        Built with ``starts=False``.
    states : mapping of str to bytes
        Node -> state, of this graph or of an earlier version of it.
    replays : mapping of str to sequence of bytes
        Node -> input sets by which its calculator is restored.
    renamed : mapping of str to str
        Node -> its name there, until its state is kept under the new one.
    of : str
        Whose it is, for errors.

    Raises
    ------
    InvalidPipeline
        If a calculator is another kind than the one that was saved.
    """
    codec = run.graph.codec
    known = {name: codec.decode(state, of=f"node {name!r} of {of}") for name, state in states.items()}
    bounds = known[INPUTS]["bounds"] if INPUTS in known else {}
    for name, graph_input in run.engine.inputs.items():
        graph_input.stream.bound = bounds.get(name, PRE_STREAM)
    kept = names_before([node.name for node in run.engine.nodes], known, renamed)
    found = {name: known[before] for name, before in kept.items()}
    for node in run.engine.nodes:
        node.replay.encode = partial(codec.encode, of=f"node {node.name!r} of {of}")
        if node.name in found:
            for name, (stream, _) in node.outputs.items():
                stream.bound = found[node.name]["outputs"].get(name, PRE_STREAM)
    for node in run.engine.nodes:
        _restore_inputs(run, node, found.get(node.name))
    run.engine.open(muted=kept)  # what new nodes send comes after what waits
    for node in run.engine.nodes:
        if node.name in found and not node.is_closed:
            sets = replays.get(kept[node.name], ()) if node.contract.replay_from else ()
            decoded = [codec.decode(each, of=f"node {node.name!r} of {of}") for each in sets]
            is_renamed = kept[node.name] != node.name  # they are kept under the old name
            digest = None if is_renamed else found[node.name]["replay"][1]
            node.replay.go_on(sets, [packets for _, packets, _ in decoded], digest)
            _replay(node, decoded)
            _restore_own(node, found[node.name]["calculator"])
    run.engine.begin()


def names_before(names: Collection[str], known: Collection[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return node -> the name under which its state is kept, of the nodes that are not new.

    A node that is known by its own name was not renamed, or was so before; and of two the renamed one goes on.

    Examples
    --------
    >>> names_before(["a", "b", "c"], ["a"], {"b": "a"}), names_before(["a", "b"], ["a", "b"], {"b": "a"})
    ({'b': 'a'}, {'a': 'a', 'b': 'b'})
    """
    moved = {name: renamed[name] for name in names if name not in known and renamed.get(name) in known}
    taken = set(moved.values())
    return {name: moved.get(name, name) for name in names if name in moved or (name in known and name not in taken)}


def _restore_inputs(run: Run, node: NodeRun, state: Mapping[str, Payload] | None) -> None:
    """Give a node what it had waiting, and what its policy remembers; a new one begins at the bounds of its streams."""
    queues = {} if state is None else state["queues"]
    for queue in node.queues:
        stream = run.stream_bound(queue.stream)
        queue.bound = stream
        if queue.name in queues:
            bound, queue.had_packet, packets = queues[queue.name]
            queue.items.extend((t, value) for t, value in packets)
            queue.pass_over(bound)
    if state is None:
        return
    if state["identity"] != node.identity:
        raise InvalidPipeline(
            f"Node {node.name!r} was {state['identity']}, and is {node.identity} now.",
            why="a node's name is the identity of its state, and another calculator cannot read it.",
            do="give the new node a name of its own, or bring the old calculator back; if it is the same one and only "
            f"its code has moved, say so in its class: identity = {state['identity']!r}.",
            participant=node.name,
        )
    reached = min((queue.head for queue in node.queues if queue.name in queues), default=PRE_STREAM)
    for queue in node.queues:
        if queue.name not in queues and node.policy.is_ordered_across:  # its times ascend across inputs, new ones too
            queue.pass_over(reached)
    if state["policy_is"] == _policy_is(node.policy):  # another one begins anew: it could not read what is there
        for name in node.policy.state:
            if name in state["policy"]:
                setattr(node.policy, name, state["policy"][name])
    node.batch = [(t, [(at, value) for at, value in packets]) for t, packets in state["batch"]]
    node.is_closed = state["is_closed"]


def _restore_own(node: NodeRun, saved: Mapping[str, Payload] | None) -> None:
    if saved and not node.contract.replay_from:
        try:
            node.calculator.restore(saved)
        except Exception as error:
            raise _failure(node, "restore", error) from error


def _failure(node: NodeRun, where: str, error: Exception) -> InvalidPipeline:
    return InvalidPipeline(
        f"Calculator {node.name!r} failed in {where}: {type(error).__name__}: {error}.",
        why="its own code raised it; its state is what save() gave, which may have been an earlier version of it.",
        do=f"mend {where}(); restore() takes what save() of every version gives that may still be kept.",
        participant=node.name,
    )


def _replay(node: NodeRun, sets: Sequence[Payload]) -> None:
    """Give a calculator the input sets since its mark again; what it makes of them has left before."""
    for t, packets, bounds in sets:
        context = Context(node, bounds)
        context.timestamp, context._packets = t, [(at, value) for at, value in packets]
        try:
            node.calculator.process(context)
        except Exception as error:
            raise node.error_of(error, t) from error
