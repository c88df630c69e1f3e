"""Segments move between shards, none of which runs: a start with another number of shards (design/0048, section 6).

Invariants.  All shards are taken over before the layout that holds is read, and before one is changed.  A layout is
carried through before anything else: each shard that gets segments has them before one gives any away, and no shard
begins before all have moved.  At each moment each segment's position is in the sinks of at least one shard; where it is
in those of two, it is the same.

What only grows: the number of the layout; in each shard, its generation and its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.commit.coordinator import Coordinator
from holdfast.commit.delivery import remembers
from holdfast.errors import Diverged, Fenced
from holdfast.ports import EpochRecord, Explanation, Held, Sink, SinkLedger, Store
from holdfast.positions import Positions, covers_all
from holdfast.shards.assignment import Assignment, regroup
from holdfast.shards.layout import ShardLayout, record_layout, settled_layout
from holdfast.shards.moves import Move, Stand, UnitOf, moves_between, note_beginnings, plans_of_others

Ledgers = Mapping[str, SinkLedger]
"""Sink -> what it knows of a shard."""


class ShardDirectory(Protocol):
    """What the engine of a shard has written of its own, in its checkpoint: Spark's directories."""

    @property
    def layout(self) -> int:
        """Number of the layout under which the newest directory began; 0: before there was one, or there is none."""

    def last_epoch(self) -> int:
        """Return the highest epoch that was ever planned, in any directory; 0: none."""

    def planned_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has planned; where it begins, if it has none."""

    def finished_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has finished; where it begins, if it has none."""

    def explanations(self, kept: Mapping[str, Mapping[str, int]]) -> tuple[Explanation, ...]:
        """Return what is durable of the meaning of positions and not among what sinks keep, by sink and source."""

    def begin(self, layout: int, epoch: int, positions: Positions) -> None:
        """Begin a directory under a layout, behind an epoch that ends there, unless it has begun.

        What the one before has planned beyond is not run.
        """


@dataclass
class StandingShard:
    """A shard that was taken over, and does not run.

    Parameters
    ----------
    name : str
        Its name in ledgers.
    coordinator : Coordinator
        Its own; not opened yet.
    sinks : sequence of Sink
        Those of the coordinator.
    directory : ShardDirectory
        What its engine has written.
    """

    name: str
    coordinator: Coordinator
    sinks: Sequence[Sink]
    directory: ShardDirectory
    answers: Mapping[str, Held] = field(default_factory=dict)
    """Sink -> what it held when the shard was taken over."""
    _last_epoch: int = 0
    _held: dict[str, Held] = field(default_factory=dict)

    def open(self) -> None:
        """Take the shard over; what is in doubt is resolved.

        Raises
        ------
        Diverged
            If one of its sinks lacks what only a run can give it.
        HoldfastError
            Whatever :meth:`~holdfast.commit.coordinator.Coordinator.open` raises.
        """
        resumption = self.coordinator.open(
            on_behind=lambda sinks, held: self._refuse(sorted(sinks)),
            on_expired=lambda expired, held: self._refuse([each.sink for each in expired]),
        )
        self._last_epoch = resumption.last_epoch
        self.answers = resumption.held
        held = {name: of for name, of in resumption.held.items() if not of.is_empty}
        self._held = {name: held[name] for name in self._remembering if name in held}

    @property
    def _remembering(self) -> list[str]:
        return [sink.name for sink in self.sinks if remembers(sink)]

    @property
    def holdings(self) -> Mapping[str, Held]:
        """What each of its sinks holds that remembers it, and holds anything."""
        return self._held

    def stand(self) -> Stand:
        """Return where it stands.

        Raises
        ------
        Diverged
            If its sinks do not hold the same, or less than its engine has finished.
        """
        finished = self.directory.finished_end()
        held = {name: _plain(of.positions) for name, of in self._held.items()}
        positions = next(iter(held.values()), _plain(finished))
        behind = [name for name, of in held.items() if of != positions or not covers_all(of, finished)]
        if not self.directory.last_epoch() and all(of.epoch <= 1 for of in self._held.values()):
            # The checkpoint is lost: it may have died between two sinks in its first epoch, and neither is a new one.
            behind += [name for name in self._remembering if self._held and name not in self._held]
        if not held and finished:  # its sinks were emptied; or none of them remembers what it holds
            behind = self._remembering
        if behind:
            self._refuse(behind)
        epoch = max(self._last_epoch, self.directory.last_epoch())
        return Stand(epoch, positions, self.directory.planned_end())

    def move(self, layout: int, move: Move, *, gives: bool) -> None:
        """Perform one of the two hand-overs of a move, unless its sinks hold it: what it receives, or what it gives.

        Raises
        ------
        Diverged
            If its sinks hold anything else than the layout says.
        Fenced
            If it has been taken over since.

        Notes
        -----
        One epoch without rows, decided as any other: a crash before its decision leaves the shard as it was, and one
        after it what the next takeover carries out.
        """
        if self.directory.layout >= layout:
            return
        at = max((of.epoch for of in self._held.values()), default=0)
        expected = move.at(at)
        if expected is not None and any(_plain(of.positions) != _plain(expected) for of in self._held.values()):
            self.coordinator.check_fenced()
            raise Diverged(
                f"shard {self.name!r} stands elsewhere than layout {layout} says.",
                why="sinks or checkpoint were restored while segments moved between shards.",
                do="restore both to one moment; delete nothing.",
                pipeline=self.name,
                epoch=at,
            )
        wanted = move.gives if gives else move.receives
        epoch, positions = move.end if gives else move.receipt
        if wanted is None or self._last_epoch >= epoch:
            return
        self._hand_over(epoch, positions)

    def hand_over(self, positions: Positions) -> None:
        """Let all its sinks hold these positions, in an epoch without rows."""
        self._hand_over(self._last_epoch + 1, positions)

    def _hand_over(self, epoch: int, positions: Positions) -> None:
        generation, pts = self.coordinator.generation, [of.pts for of in self._held.values() if of.pts is not None]
        explanations = self.directory.explanations(self.coordinator.explained)
        record = EpochRecord(self.name, epoch, generation, positions, min(pts, default=None), explanations=explanations)
        self.coordinator.hand_over(record)
        self._last_epoch = epoch
        self._held = {name: Held(epoch, generation, positions, record.pts) for name in self._remembering}

    def begin(self, layout: int, move: Move) -> None:
        """Begin a directory of the engine under a layout, unless it has begun there."""
        epoch, positions = move.end
        if self.directory.layout < layout and self._last_epoch <= epoch:
            self.coordinator.check_fenced()
            self.directory.begin(layout, epoch, positions)

    def _refuse(self, sinks: Collection[str]) -> None:
        self.coordinator.check_fenced()  # then another run has gone on since its sinks were asked
        raise Diverged(
            f"shard {self.name!r} cannot give or take segments: its sinks {sorted(sinks)} hold less than others.",
            why="only a run can give them what they lack.",
            do="start with as many shards as before, and change the number when these sinks have caught up.",
            pipeline=self.name,
            participant=min(sinks),
        )


@dataclass
class Moving:
    """The shards of a pipeline between two runs of it.

    Parameters
    ----------
    pipeline : str
        Its name.
    store : Store
        Its checkpoint.
    connect : callable
        Given the number of a shard, returns it: connected, not opened.
    unit_of : callable
        Given a layout, says which unit a segment is of.
    check : callable
        Given the assignment before and after, refuses a change that a sink cannot follow; nothing is changed then.
    seeds : callable, optional
        Of a pipeline that keeps state: given the layout before, the assignment after and what becomes of each shard,
        writes the state with which each goes on, and returns its key.
    """

    pipeline: str
    store: Store
    connect: Callable[[int], StandingShard]
    unit_of: Callable[[ShardLayout], UnitOf]
    check: Callable[[Assignment, Assignment], None] = lambda before, after: None
    seeds: Callable[[ShardLayout, Assignment, Mapping[int, Move]], Mapping[int, str]] | None = None
    shards: dict[int, StandingShard] = field(default_factory=dict)

    def settle(self) -> ShardLayout | None:
        """Take all shards over, carry the layout through that holds, and return it; None where there are no shards.

        Raises
        ------
        HoldfastError
            Whatever taking a shard over raises.  Nothing was changed that recovery would not do.

        Notes
        -----
        The layout is read again when all are taken over: one that was decided in between may name more of them.
        """
        while True:
            layout = settled_layout(self.store)
            wanted = {0} if layout is None else {*range(layout.shard_count), *layout.moves}
            new = sorted(wanted - self.shards.keys())
            if not new:
                break
            self.take(new)
        if layout is not None and layout.moves:
            self._carry_through(layout)
        return layout

    def first(
        self,
        ask: Callable[[], Sequence[Ledgers]],
        layout_of: Callable[[Sequence[Ledgers]], tuple[ShardLayout, Mapping[int, Positions]]],
    ) -> ShardLayout:
        """Record the first layout of a checkpoint, when every sink knows every shard of it; returns the one that holds.

        Parameters
        ----------
        ask : callable
            Returns what sinks know of each shard, up to the first that none knows: shards whose checkpoint is lost.
        layout_of : callable
            Given that, returns the layout, and the positions that sinks of shards have to be given before one runs.

        Raises
        ------
        Fenced
            If another controller has taken a shard over, or recorded a layout.  It goes on.
        HoldfastError
            Whatever taking a shard over raises.

        Notes
        -----
        Durable writes: 1. the takeovers.  A crash within leaves shards that hold what they held.  2. hand-overs, each
        decided in the shard's ledger, in the order of the shards: before one gives a segment away, a lower one has it.
        3. the layout.  A crash before it leaves a checkpoint without one: the next start asks the sinks again.
        """
        said = ask()
        while len(said) > len(self.shards):
            self.take(range(len(said)))
            said = ask()  # what older runs have written until they were fenced
        layout, hand_overs = layout_of(said)
        self.take(range(layout.shard_count))
        found = settled_layout(self.store)
        if found is not None:
            return found
        for number, positions in sorted(hand_overs.items()):
            self.shards[number].hand_over(positions)
        return self._record(layout)

    def note(self, layout: ShardLayout, deal: Callable[[ShardLayout], ShardLayout]) -> ShardLayout:
        """Note what the shard with the rest has begun to read, and deal what is new; returns the layout that holds.

        Parameters
        ----------
        layout : ShardLayout
            What :meth:`settle` returned.
        deal : callable
            Returns a layout with the segments that there are now.

        Notes
        -----
        What its engine has planned counts as begun: that epoch is run again, whatever the layout says.
        """
        assignment = note_beginnings(layout.assignment, self._stands(), self.unit_of(layout))
        dealt = deal(replace(layout, assignment=assignment))
        if dealt.assignment.shards == layout.assignment.shards:
            return layout
        return self._record(replace(dealt, moves={}))

    def change(self, layout: ShardLayout, shard_count: int, deal: Callable[[ShardLayout], ShardLayout]) -> ShardLayout:
        """Move segments, so that there is another number of shards; returns the layout that holds.

        Parameters
        ----------
        layout : ShardLayout
            What :meth:`settle` returned; where that was None, one with the one shard that there is, and number 0.
        shard_count : int
            How many there are to be.
        deal : callable
            Returns a layout with the segments that there are now.

        Raises
        ------
        Diverged
            If a shard cannot move.  Nothing was changed.
        Fenced
            If another controller has taken a shard over, or changed the layout.  It goes on.

        Notes
        -----
        Durable writes: the takeovers of new shards; with state, that of each shard; 1. the layout, and that it counts.
        A crash right before leaves the shards as they were, and perhaps state that no layout names; one right after
        leaves what the next start carries through, whatever number is asked for.  2. what is received.  3. what is
        given.  4. a directory for each shard.  A crash within leaves shards that stand at different steps: each is
        asked, and passes over what its sinks hold.

        With state, all count on from the highest epoch of any: what waits for a key is in the order of its epochs, and
        what follows in another shard has to come behind it.
        """
        self.take(range(shard_count))
        stands = {number: replace(stand, planned={}) for number, stand in self._stands().items()}
        unit_of = self.unit_of(layout)
        before = deal(replace(layout, assignment=note_beginnings(layout.assignment, stands, unit_of)))
        after = regroup(before.assignment, shard_count)
        self.check(before.assignment, after)
        if self.seeds is not None:
            highest = max(stand.epoch for stand in stands.values())
            stands = {number: replace(stand, epoch=highest) for number, stand in stands.items()}
        moves = moves_between(before.assignment, after, stands, unit_of)
        if self.seeds is not None:
            seeds = self.seeds(before, after, moves)
            moves = {number: replace(move, seed=seeds.get(number, "")) for number, move in moves.items()}
        found = self._record(replace(before, assignment=after, moves=moves))
        self._carry_through(found)
        return found

    def is_to_begin_anew(self, layout: ShardLayout) -> bool:
        """Return whether an engine has planned an epoch that no shard may run (:func:`plans_of_others`).

        :meth:`change` to as many shards lets each begin behind what its sinks hold.
        """
        plans = {number: Stand(planned=shard.directory.planned_end()) for number, shard in self.shards.items()}
        return plans_of_others(layout.assignment, plans, self.unit_of(layout))

    def take(self, numbers: Iterable[int]) -> None:
        """Take shards over that are not yet: each sink knows them then."""
        for number in numbers:
            if number not in self.shards:
                shard = self.connect(number)
                shard.open()
                self.shards[number] = shard

    def _stands(self) -> dict[int, Stand]:
        found = {number: shard.stand() for number, shard in self.shards.items()}
        self._look()  # what one that was taken over since has written says nothing
        return found

    def _record(self, layout: ShardLayout) -> ShardLayout:
        found = record_layout(self.store, layout, self._look)
        if found is None:
            raise Fenced(
                f"the shards of pipeline {self.pipeline!r} have been changed by another start just now.",
                why="each layout follows the one before, and that one has a successor.",
                do="nothing, if that was meant; else stop the other one and start this one again.",
                pipeline=self.pipeline,
            )
        return found

    def _look(self) -> None:
        """Raise ``Fenced`` if a shard has been taken over since it was here."""
        for shard in self.shards.values():
            shard.coordinator.check_fenced()

    def _carry_through(self, layout: ShardLayout) -> None:
        """Let each shard receive, then give, then begin: what is done is passed over."""
        if is_carried_through(layout, {number: self.shards[number].directory for number in layout.moves}):
            return
        for gives in (False, True):
            for number, move in sorted(layout.moves.items()):
                self.shards[number].move(layout.number, move, gives=gives)
        for number, move in sorted(layout.moves.items()):
            self.shards[number].begin(layout.number, move)


def is_carried_through(layout: ShardLayout, directories: Mapping[int, ShardDirectory]) -> bool:
    """Return whether all shards of a layout have moved: before that none may run.

    Parameters
    ----------
    layout : ShardLayout
        The layout that counts.
    directories : mapping of int to ShardDirectory
        At least those of the shards that it moves.
    """
    return all(directories[number].layout >= layout.number for number in layout.moves)


def check_layout(store: Store, layout: int, pipeline: str) -> None:
    """Raise unless a layout still holds: asked each time that a shard has been taken over by a controller that runs it.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    layout : int
        The number of the layout that the controller runs; 0: a run without shards.
    pipeline : str
        Its name.

    Raises
    ------
    Fenced
        If another controller has changed it: the shard may have other segments now.
    """
    newest = settled_layout(store)
    number = 0 if newest is None else newest.number
    if number != layout:
        raise Fenced(
            f"the shards of pipeline {pipeline!r} have been changed by another start.",
            why=f"this one runs layout {layout}, and {number} holds now.",
            do="nothing, if that was meant; else stop the other one and start this one again.",
            pipeline=pipeline,
        )


def _plain(positions: Positions) -> Positions:
    return {source: dict(of) for source, of in positions.items() if of}
