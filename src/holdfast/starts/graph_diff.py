"""What becomes of each node when a graph is started over the checkpoint of another one: compared by name.

A stateful operator keeps its state if it keeps the same tables under the same key, or can take them over
(:mod:`holdfast.checkpoint.state_upgrade`); under another name, if it says so (``renamed_from=``).  The comparison is
pure: it is what ``holdfast plan`` prints, and what a start does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from holdfast.checkpoint.graph_record import Described, GraphRecord, Role, has_options
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateMove, StateUpgrade, Way, state_move
from holdfast.connectors import spark_options
from holdfast.flow.saving import names_before
from holdfast.graph.changes import RETRACTED
from holdfast.graph.evolution import Evolution
from holdfast.graph.naming import canonical_json, where

REREADS = "read again from its beginning"
"""What is said of a source whose rows come again."""


class NodeVerdict(Enum):
    """What becomes of a node."""

    KEPT = "kept"
    CHANGED = "changed"
    RENAMED = "renamed"
    MIGRATED = "migrated"
    REBUILT = "rebuilt"
    NEW = "new"
    GONE = "gone"
    REFUSED = "refused"


_READ_BY = ("by", "window", "top", "on", "how")
"""Arguments of an aggregation, besides its aggregates, and of a join of changes, by which state is read."""

_RESTORED = (NodeVerdict.KEPT, NodeVerdict.CHANGED, NodeVerdict.RENAMED, NodeVerdict.MIGRATED)


@dataclass(frozen=True)
class NodeChange:
    """What becomes of one node.

    Parameters
    ----------
    name : str
        The node.
    role : Role
        What it is.
    verdict : NodeVerdict
        What becomes of it.
    effect : str
        What that means, in words.
    details : tuple of str
        What differs.
    was : str
        The name under which its state was kept, where that is another one; of a new sink, the one that is gone and
        wrote to the same place.
    """

    name: str
    role: Role
    verdict: NodeVerdict
    effect: str
    details: tuple[str, ...] = ()
    was: str = ""


@dataclass(frozen=True)
class Replay:
    """Epochs that sinks hold, and the graph that ran last has not evaluated again yet.

    Parameters
    ----------
    count : int
        How many.
    is_of_old_graph : bool
        Whether only the old graph may evaluate them: they are not of a backfill.
    """

    count: int
    is_of_old_graph: bool = False

    def text(self, backfilled: Sequence[str] = ()) -> str:
        """Say which graph evaluates them."""
        if backfilled:
            return f"{self.count} epochs that were to be evaluated again are part of what is read from the beginning"
        by = "the old graph must evaluate again" if self.is_of_old_graph else "this graph evaluates again"
        return f"{self.count} epochs {by}, for their state: sinks hold their rows"


@dataclass(frozen=True)
class GraphChange:
    """What becomes of every node.

    Parameters
    ----------
    nodes : tuple of NodeChange
        Those of the new graph in its order, then those that were removed.
    finished : tuple of str
        Sources that have ended: a changed graph would take them up again.
    backfilled : tuple of str
        Sinks that get everything from the beginning; then all state is recomputed.
    replay : Replay, optional
        What was still to be evaluated again by the graph that ran last; None: nothing.
    unclaimed : tuple of (str, str)
        Operators whose state no operator takes, each with a new one of the same kind that begins without: perhaps the
        same one under another name.
    """

    nodes: tuple[NodeChange, ...]
    finished: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    replay: Replay | None = None
    unclaimed: tuple[tuple[str, str], ...] = ()

    @property
    def restored(self) -> tuple[str, ...]:
        """The operators that take state over."""
        return tuple(self.sources)

    @property
    def sources(self) -> dict[str, str]:
        """The operators that take state over, with the names under which it was kept."""
        return {
            node.name: node.was or node.name
            for node in self.nodes
            if node.role is Role.STATEFUL and node.verdict in _RESTORED
        }

    @property
    def is_empty(self) -> bool:
        """Whether nothing is another than it was."""
        return all(node.verdict is NodeVerdict.KEPT for node in self.nodes)

    def over(self, finished: Sequence[str]) -> GraphChange:
        """Return the change as one over sources that have ended; those that are gone count no more."""
        gone = {node.name for node in self.nodes if node.verdict is NodeVerdict.GONE}
        return replace(self, finished=tuple(name for name in finished if name not in gone))

    def problems(self) -> Iterator[str]:
        """Yield what stands in the way, unless it is forced."""
        for node in self.nodes:
            if node.verdict is NodeVerdict.REFUSED:
                yield f"{node.role.value} {node.name!r}: {'; '.join(node.details)}"
        for name in self.finished:
            yield f"source {name!r} has ended, and is finished"


def compare(
    before: GraphRecord,
    after: GraphRecord,
    upgrades: Mapping[str, StateUpgrade] | None = None,
    backfilled: Sequence[str] = (),
) -> GraphChange:
    """Return what becomes of every node.

    Parameters
    ----------
    before, after : GraphRecord
        The graph that ran last, and the one that is to run.
    upgrades : mapping of str to StateUpgrade, optional
        With what each stateful operator of the new graph takes over the state of another version of itself.
    backfilled : sequence of str
        Sinks that get everything from the beginning.
    """
    found = [_compare(name, before, after, (upgrades or {}).get(name, StateUpgrade())) for name in after.nodes]
    taken = {node.was for node in found}
    found = [_with_former_name(node, before, after) for node in found]
    found = [_checked_over_changes(node, found, before, after) for node in found]
    if backfilled:
        found = [_from_the_beginning(node, backfilled) for node in found]
    gone = [_gone(name, node) for name, node in before.nodes.items() if name not in after.nodes and name not in taken]
    change = GraphChange((*found, *gone), backfilled=tuple(backfilled))
    fresh = [node.name for node in found if node.role is Role.STATEFUL and node.verdict is NodeVerdict.NEW]
    unfit = [node.name for node in found if node.verdict is NodeVerdict.REFUSED]
    return replace(
        change,
        unclaimed=unclaimed(before.state_schemas, after.state_schemas, [*change.sources.values(), *unfit], fresh),
    )


def unclaimed(
    before: Mapping[str, StateSchema], after: Mapping[str, StateSchema], taken: Collection[str], fresh: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Return the operators whose state would be lost without a word, each with one that may be the same.

    Parameters
    ----------
    before, after : mapping of str to StateSchema
        What the operators kept, and what those of now keep.
    taken : collection of str
        The operators before of whose state something is known.
    fresh : collection of str
        The operators of now that begin without state.
    """
    pairs = []
    for name, schema in before.items():
        alike = [other for other in fresh if after[other].kind == schema.kind]
        if name not in taken and alike:
            pairs.append((name, alike[0]))
    return tuple(pairs)


def _compare(name: str, before: GraphRecord, after: GraphRecord, upgrade: StateUpgrade) -> NodeChange:
    old, new, was = before.nodes.get(name), after.nodes[name], ""
    if upgrade.past.renamed_from and name not in before.nodes:
        was = upgrade.past.renamed_from
        old = before.nodes.get(was)
        if old is None or old.role is not Role.STATEFUL:
            return NodeChange(
                name, new.role, NodeVerdict.REFUSED, "has no state to take over", (_no_past(was, before),)
            )
    if old is None or old.role is not new.role:
        effect = _EFFECT_OF_AGAIN if _is_left_out(new, before) else _EFFECT_OF_NEW[new.role]
        return NodeChange(name, new.role, NodeVerdict.NEW, effect)
    details: list[str] = []
    reasons: list[str] = []
    if old.kind != new.kind:
        details.append(f"it was {old.kind}, and is {new.kind}")
    if old.arguments != new.arguments:
        arguments = _comparable(old, new)
        if upgrade.past.parts:
            given, now = (each.pop(upgrade.past.parts, {}) for each in arguments)
            lines, reasons = _of_parts(given, now, upgrade.past)
            details += lines
        details += _differing(*arguments)
    if old.inputs != new.inputs:
        details.append(f"it read {', '.join(old.inputs)}, and reads {', '.join(new.inputs)}")
    if new.role is Role.STATEFUL:
        move = state_move(before.state_schemas[was or name], after.state_schemas[name], upgrade)
        return _stateful(name, was, replace(move, reasons=(*move.reasons, *reasons)), details)
    if not details:
        return NodeChange(name, new.role, NodeVerdict.KEPT, "")
    is_moved = new.role is Role.SINK and _target(old) != _target(new)
    effect = _EFFECT_OF_ANOTHER_TARGET if is_moved else _EFFECT_OF_CHANGED[new.role]
    return NodeChange(name, new.role, NodeVerdict.CHANGED, effect, tuple(details))


def _of_parts(before: Mapping[str, Any], now: Mapping[str, Any], past: Evolution) -> tuple[list[str], list[str]]:
    """Return what becomes of an operator's parts, and which of them cannot take over the state of their name."""
    lines, reasons = [], []
    kept = names_before(now, before, past.renamed_parts)
    for name, what in now.items():
        if name not in kept:
            lines.append(f"{past.parts}: {name!r} is new, and begins without state")
            continue
        was = before[kept[name]]
        if was["is"] != what["is"]:
            reasons.append(f"{past.parts}: {name!r} was {was['is']}, and is {what['is']}: give it a name of its own")
        if kept[name] != name:
            lines.append(f"{past.parts}: {name!r} is renamed, and keeps the state of {kept[name]!r}")
        lines += _differing({**was, "is": ""}, {**what, "is": ""}, f"{past.parts}: {name}.")
    gone = [name for name in before if name not in kept.values()]
    lines += [f"{past.parts}: {name!r} is gone, and its state is left out" for name in gone]
    same = [name for name, was in kept.items() if name == was and now[name] == before[name]]
    return [*lines, f"{past.parts}: kept as they are: {_list(same)}"], reasons


def _stateful(name: str, was: str, move: StateMove, details: Sequence[str]) -> NodeChange:
    of = f"keeps the state of {was!r}" if was else "keeps its state"
    if move.reasons:
        return NodeChange(name, Role.STATEFUL, NodeVerdict.REFUSED, "its state does not fit", move.reasons)
    if not move.is_plain:
        is_migrated = any(table.way is Way.MIGRATED for table in move.tables.values()) or bool(move.dropped)
        effect = f"{of}, migrated" if is_migrated else f"{of}; what is new in it begins neutral"
        lines = (*details, *move.lines())
        return NodeChange(name, Role.STATEFUL, NodeVerdict.MIGRATED, effect, lines, was)
    if details and not was:
        effect = f"{of}; what it does with it is the new arguments'"
        return NodeChange(name, Role.STATEFUL, NodeVerdict.CHANGED, effect, tuple(details))
    return NodeChange(name, Role.STATEFUL, NodeVerdict.RENAMED if was else NodeVerdict.KEPT, of, tuple(details), was)


def _checked_over_changes(
    node: NodeChange, nodes: Sequence[NodeChange], before: GraphRecord, after: GraphRecord
) -> NodeChange:  # fmt: skip
    """Refuse state of changes that would not be that of the rows which hold now (design/0059).

    Such an operator subtracts rows that it has added: so it begins and goes on with what makes the changes, and what is
    between lets the same rows pass as before.
    """
    of = after.nodes[node.name]
    retracted = json.loads(of.arguments).get(RETRACTED)
    if of.kind not in ("aggregate", "join_changes") or node.verdict is NodeVerdict.REFUSED or retracted is None:
        return node  # an operator of the user's may have an argument of this name
    found = {each.name: each for each in nodes}
    goes_on = node.verdict in _RESTORED
    columns = retracted if isinstance(retracted, list) else [retracted]  # rows of one of two inputs may only come
    changing = [name for name, column in zip(of.inputs, columns, strict=True) if column is not None]
    reasons = _reasons_upstream(changing, found, before, after, goes_on=goes_on)
    if goes_on and (differs := _read_otherwise(node, before, after)):
        reasons.append(f"another {differs}: it would subtract what it has never added")
    was = before.nodes.get(node.was or node.name)
    if goes_on and was is not None and isinstance(columns_before := json.loads(was.arguments).get(RETRACTED), list):
        reasons += [
            f"rows of {name!r} could {'be retracted, and cannot now' if new is None else 'not be retracted before'}"
            for name, old, new in zip(of.inputs, columns_before, columns, strict=True)
            if (old is None) != (new is None)
        ]
    inputs = tuple(found[name].was or name if name in found else name for name in of.inputs)
    if goes_on and was is not None and was.inputs != inputs and not reasons:
        reasons.append(f"it read {', '.join(was.inputs)}, and reads {', '.join(inputs)}")
    if not reasons:
        return node
    return NodeChange(node.name, Role.STATEFUL, NodeVerdict.REFUSED, "its state would be of other rows", tuple(reasons))


def _reasons_upstream(
    inputs: Sequence[str], found: Mapping[str, NodeChange], before: GraphRecord, after: GraphRecord, *, goes_on: bool
) -> list[str]:
    """Return what upstream of an operator over changes, from its inputs that have them on, does not fit its state."""
    reasons, waiting = list[str](), [*inputs]
    while waiting:
        if (other := found.get(waiting.pop())) is None:  # a named checkpoint does not say what was between
            continue
        if other.role is Role.STATEFUL:
            if (other.verdict in _RESTORED) != goes_on:
                does = ("is new", "has state") if goes_on else ("goes on", "is new")
                why = f"{does[0]}, and it {does[1]}: both keep their names, or both get new ones"
                reasons.append(f"{other.name!r}, whose changes it reads, {why}")
            elif goes_on and (differs := _read_otherwise(other, before, after)):
                why = f"has another {differs}: it would retract rows that it has never emitted; give both new names"
                reasons.append(f"{other.name!r}, whose changes it reads, {why}")
        elif goes_on and other.verdict is not NodeVerdict.KEPT:
            reasons.append(f"{other.name!r} is {other.verdict.value}: rows that it let pass could not be retracted")
        waiting += [] if other.role is Role.STATEFUL else after.nodes[other.name].inputs
    return reasons


def _read_otherwise(node: NodeChange, before: GraphRecord, after: GraphRecord) -> str:
    """Return an argument by which the state of an aggregation reads otherwise than it did; empty where none does.

    An aggregate that is added or removed is none: those that stay read as before.  Nor is what says when rows wait.
    """
    was = before.nodes.get(node.was or node.name)
    if was is None:
        return ""
    old, new = (json.loads(each.arguments) for each in (was, after.nodes[node.name]))
    differing = [name for name in _READ_BY if old.get(name) != new.get(name)]
    old_values, new_values = old.get("aggregates", {}), new.get("aggregates", {})
    differing += [name for name in old_values if name in new_values and old_values[name] != new_values[name]]
    return f"{differing[0]}=" if differing else ""


def _from_the_beginning(node: NodeChange, backfilled: Sequence[str]) -> NodeChange:
    if node.role is Role.STATEFUL:
        return NodeChange(node.name, node.role, NodeVerdict.REBUILT, "its state is computed anew, from the beginning")
    if node.role is Role.SOURCE:
        return NodeChange(node.name, node.role, node.verdict, f"is {REREADS}", node.details)
    if node.name in backfilled:
        return replace(node, effect="gets everything from the beginning")
    return node


def _with_former_name(node: NodeChange, before: GraphRecord, after: GraphRecord) -> NodeChange:
    """Return a new sink or source with the one that is gone and had the same place: who renames one should know."""
    if node.role is Role.SOURCE and node.verdict is NodeVerdict.NEW:
        new = after.nodes[node.name]
        for name, old in before.nodes.items():
            if name not in after.nodes and (old.role, old.kind, old.arguments) == (new.role, new.kind, new.arguments):
                reason = f"it reads what source {name!r} read: a position is kept under the name of its source"
                return replace(node, effect=f"is {REREADS}", details=(reason,), was=name)
        return node
    if node.role is not Role.SINK or node.verdict is not NodeVerdict.NEW:
        return node
    target = _target(after.nodes[node.name])
    for name, old in before.nodes.items():
        if old.role is Role.SINK and name not in after.nodes and target is not None and _target(old) == target:
            reason = f"it writes where sink {name!r} wrote: a sink cannot be renamed, its ledger is kept under its name"
            return replace(node, details=(reason,), was=name)
    return node


def _target(node: Described) -> tuple[str, dict[str, Any]] | None:
    place = where(json.loads(node.arguments))
    return (node.kind, place) if place else None


def _is_left_out(sink: Described, before: GraphRecord) -> bool:
    """Tell whether a new sink writes where one wrote that the last rewind left out."""
    return sink.role is Role.SINK and (sink.kind, _target(sink)) in [
        (node.kind, _target(node)) for node in before.left_out.values()
    ]


def _no_past(was: str, before: GraphRecord) -> str:
    there = [name for name, node in before.nodes.items() if node.role is Role.STATEFUL]
    return f"renamed_from={was!r} is no stateful operator of the graph that ran last, which has {_list(there)}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _gone(name: str, node: Described) -> NodeChange:
    return NodeChange(name, node.role, NodeVerdict.GONE, _EFFECT_OF_GONE[node.role])


_EFFECT_OF_NEW = {
    Role.SOURCE: "begins at its beginning, or where it was when it was last in the graph",
    Role.OPERATOR: "holds for the rows from here on",
    Role.STATEFUL: "begins without state",
    Role.SINK: "begins here: it gets no older rows",
}

_EFFECT_OF_AGAIN = (
    "begins here, where the last rewind went back to and left its target as it was: what is made again "
    "is there twice, unless it was emptied"
)

_EFFECT_OF_CHANGED = {
    Role.SOURCE: "continues at its position",
    Role.OPERATOR: "holds for the rows from here on",
    Role.SINK: "keeps its rows and continues",
}

_EFFECT_OF_ANOTHER_TARGET = (
    "continues with another target: the rows so far stay where they are, and do not come to the new one"
)

_EFFECT_OF_GONE = {
    Role.SOURCE: "is read no further; its position is kept",
    Role.OPERATOR: "",
    Role.STATEFUL: "its state is left out; it stays in older snapshots until they are pruned",
    Role.SINK: "keeps its rows, and gets no more",
}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield what differs between two nodes' arguments, one line each."""
    for name in [*old, *(name for name in new if name not in old)]:
        was, now = old.get(name), new.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differing(was, now, f"{above}{name}.")
        elif isinstance(was, list) and isinstance(now, list) and (changes := _of_list(was, now)):
            yield f"{above}{name}: {', '.join(_cut(changes))}"
        elif was != now or (name in old) != (name in new):
            texts = [canonical_json(of[name]) if name in of else "not given" for of in (old, new)]
            yield f"{above}{name}: {' -> '.join(_cut(texts))}"


def _of_list(was: Sequence[Any], now: Sequence[Any]) -> list[str]:
    """Return which items of a list went (``-``) and came (``+``); none where that is not what differs."""
    gone, come = [item for item in was if item not in now], [item for item in now if item not in was]
    kept = [item for item in was if item in now]
    if len(was) < 2 or kept != [item for item in now if item in was]:
        return []
    return [f"- {canonical_json(item)}" for item in gone] + [f"+ {canonical_json(item)}" for item in come]


def _comparable(old: Described, new: Described) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two nodes' arguments; options of Spark's readers that cannot be compared stand in both alike."""
    was, now = json.loads(old.arguments), json.loads(new.arguments)
    if has_options(old.kind, was) and has_options(new.kind, now):
        was["options"] = spark_options.as_of_now(was["options"], now["options"])
    return was, now


def _cut(texts: Sequence[str], most: int = 200, before: int = 20) -> list[str]:
    """Return texts that fit on a line, each with the place from which on they differ."""
    if max(map(len, texts)) <= most:
        return list(texts)
    apart = (at for at, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
    same = next(apart, min(map(len, texts)))
    start = max(0, same - before)
    return [
        f"{'...' if start else ''}{text[start : start + most]}{'...' if len(text) > start + most else ''}"
        for text in texts
    ]
