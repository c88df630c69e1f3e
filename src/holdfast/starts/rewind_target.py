"""What a rewind can go back to, and what it makes untrue in the checkpoint.

A rewind is an epoch that withdraws what was published after the end of an older one, its target (design/0012).  What
can be a target: every epoch whose end is known, and, with state, up to which a snapshot and the records after it
reach.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint import named, progress
from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.manifest import EpochEnd, Manifest
from holdfast.checkpoint.progress import EpochSpan, chain
from holdfast.checkpoint.snapshot import good_snapshots, read_manifest, snapshot_keys
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided, Done
from holdfast.errors import Corrupt, Diverged, InvalidPipeline, Unavailable, invariant
from holdfast.ports import Held, Store, Withdrawal
from holdfast.positions import Positions, covers_all
from holdfast.starts.restore import Restoration, restoration
from holdfast.store import sealed
from holdfast.types.units import time_us

REWINDS = "rewinds.json"
"""Record of all rewinds: their epochs, and the positions that they went back to."""


@dataclass(frozen=True)
class RewindTarget:
    """Where a rewind goes.

    Parameters
    ----------
    ended : EpochEnd
        The end of the epoch.
    restored : Restoration, optional
        Where its state comes from; None without state.
    named : Manifest, optional
        The named checkpoint that was asked for.
    batch_id : int, optional
        Where no snapshot is of the target: the epoch as Spark numbers it, if the journal of state still has it.
    """

    ended: EpochEnd
    restored: Restoration | None = None
    named: Manifest | None = None
    batch_id: int | None = None

    @property
    def replayed(self) -> tuple[EpochEnd, ...]:
        """The epochs that have to be evaluated again for their state."""
        return () if self.restored is None or self.batch_id is not None else self.restored.replayed

    @property
    def read_from(self) -> Positions:
        """Where the sources have to be read from."""
        if self.restored is None or not self.replayed:
            return self.ended.positions
        return self.restored.manifest.ended.positions


@dataclass(frozen=True)
class Rewound:
    """A rewind, planned or done.

    Parameters
    ----------
    epoch : int
        Its own number; 0 when it is planned only.
    to : int
        The epoch at whose end the pipeline stands.
    positions : Positions
        Where that is.
    snapshot : int, optional
        Epoch of the snapshot that state comes from; None without state.
    replayed : int
        Epochs after it that are evaluated again for their state alone.
    sinks : mapping of str to Withdrawal
        What each sink withdraws.
    absent : tuple of str
        Sinks that have taken part and are not in the graph: what they hold from after the target stays in them.
    left_out : tuple of str
        Sinks of the graph that keep what they hold.
    is_from_journal : bool
        Whether that snapshot is made of what the journal of state has.
    """

    epoch: int
    to: int
    positions: Positions
    snapshot: int | None
    replayed: int
    sinks: Mapping[str, Withdrawal]
    absent: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_from_journal: bool = False


def is_name(to: str) -> bool:
    """Return whether the target of a rewind is the name of a checkpoint: neither an epoch nor a time."""
    return not to.isdigit() and _time_us(to) is None


def target(
    store: Store, pipeline: str, to: str, steps: Sequence[EpochSpan], *, has_state: bool, graph: str = ""
) -> RewindTarget:
    """Return the target of a rewind.

    Parameters
    ----------
    store : Store
        The checkpoint.
    pipeline : str
        Its pipeline.
    to : str
        Number of an epoch; a time in ISO 8601: the last epoch that was planned up to then; or the name of a checkpoint.
    steps : sequence of EpochSpan
        All epochs whose ends are known.
    has_state : bool
        Whether operators keep state.
    graph : str
        Fingerprint of the state of the graph that ran last: of several snapshots of one epoch its own is taken.

    Raises
    ------
    InvalidPipeline
        If nothing reaches so far: says how far it does.
    """
    if is_name(to):
        return _named(store, pipeline, to)
    ends = reachable(store, pipeline, steps) if has_state else {step.ended.epoch: step.ended for step in steps}
    at_us = None if to.isdigit() else _time_us(to)
    found = ends.get(int(to)) if at_us is None else _at(at_us, ends, steps)
    if found is None:
        raise _out_of_reach(pipeline, to, ends, has_state=has_state)
    restored = _restored(store, pipeline, found, steps, graph) if has_state else None
    if has_state and restored is None:
        raise _out_of_reach(pipeline, to, ends, has_state=has_state)
    return RewindTarget(found, restored)


def reachable(store: Store, pipeline: str, steps: Iterable[EpochSpan]) -> dict[int, EpochEnd]:
    """Return the ends of the epochs up to which a good snapshot, and the records after it, reach; by number.

    An epoch that was evaluated again has two numbers, with one end.
    """
    known = list(steps)
    ends: dict[int, EpochEnd] = {}
    for manifest in good_snapshots(store, lambda key, why: None):
        if manifest.pipeline == pipeline:
            after = {ended.epoch: ended for ended in chain(known, manifest.ended.positions)}
            ends = {**after, manifest.ended.epoch: manifest.ended, **ends}
    there = [end.positions for end in ends.values()]
    others = (step.ended for step in known if step.ended.epoch not in ends)
    again = {ended.epoch: ended for ended in others if ended.positions in there}
    return {**again, **ends}


def known_steps(store: Store, logged: Iterable[EpochSpan]) -> list[EpochSpan]:
    """Return all epochs whose ends are known and that stand: from progress records, and Spark's log.

    A rewind removes Spark's older directories last: dead before that, they tell of epochs that it has withdrawn.

    Parameters
    ----------
    store : Store
        The checkpoint.
    logged : iterable of EpochSpan
        Those in Spark's own log.
    """
    rewinds = _rewinds(store)
    steps = {step.ended.epoch: step for step in (*logged, *progress.read(store))}
    ends = ((epoch, steps[epoch].ended.positions) for epoch in sorted(steps))
    return [steps[epoch] for epoch, positions in ends if _withdrawn_by(rewinds, epoch, positions) is None]


def pts_of(store: Store, ended: EpochEnd) -> int | None:
    """Return the minimum timestamp over the inputs at the end of an epoch, as far as it was recorded."""
    for entry in survey(store):
        record = None if entry.content is None else entry.content.record
        if record is not None and record.epoch == ended.epoch and record.positions == ended.positions:
            return record.pts
    return ended.pts


def unfinished(store: Store, directory: Path) -> Decided | Done | None:
    """Return the rewind that was decided, and after which no directory was begun yet; None when there is none.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    """
    newest: Decided | Done | None = None
    for entry in survey(store):
        if entry.content is not None and entry.standing in (Standing.OPEN, Standing.DONE):
            newest = entry.content
    if newest is None or newest.record.rewound_to is None:
        return None
    number = newest_directory(store)
    try:
        base = read_origin(directory / f"spark/{number}" / FILE_NAME).base if number else 0
    except Corrupt:
        return None  # a start leaves such a directory, for one that begins where the sinks are
    return newest if base <= newest.record.epoch else None


def check_finished(store: Store, directory: Path, pipeline: str, what: str) -> None:
    """Refuse to answer, or to change a sink, while a rewind is unfinished: it changes what there is.

    Parameters
    ----------
    store, directory
        As for :func:`unfinished`.
    pipeline : str
        Its name.
    what : str
        What cannot be told now.

    Raises
    ------
    InvalidPipeline
        Says that ``what`` is not known before it is finished.
    """
    rewind = unfinished(store, directory)
    if rewind is not None:
        interrupted = rewind.record
        raise InvalidPipeline(
            f"the rewind to epoch {interrupted.rewound_to} was interrupted, and is not finished.",
            why=f"{what} is not known before that.",
            do=f"finish it: holdfast rewind --to {interrupted.rewound_to}. Every start does so first, too.",
            pipeline=pipeline,
        )


def check_none_was_resolved(store: Store, directory: Path, pipeline: str, resolved: Collection[int]) -> None:
    """Refuse to go on with the old directory if recovery has published a rewind since it was chosen.

    Parameters
    ----------
    store, directory, pipeline
        As for :func:`check_finished`.
    resolved : collection of int
        The epochs that recovery has published.

    Raises
    ------
    Unavailable
        If it has.
    """
    rewind = unfinished(store, directory)
    if rewind is not None and rewind.record.epoch in resolved:
        record = rewind.record
        raise Unavailable(
            f"pipeline {pipeline!r} was taken back to epoch {record.rewound_to} just now.",
            why="the rewind was decided while this run started, and Spark's directory is that of before.",
            do="start again: the rewind is finished first.",
            pipeline=pipeline,
            epoch=record.epoch,
        )


def take_back(store: Store, to: Positions, generation: int, steps: Iterable[EpochSpan]) -> None:
    """Remove snapshots and ends of epochs that a rewind has made untrue; keep the ends of those that stay.

    Parameters
    ----------
    store : Store
        The checkpoint.
    to : Positions
        What the rewind went back to, with the sources that had left the graph by then.
    generation : int
        Of the rewind.
    steps : iterable of EpochSpan
        The ends that Spark's logs have.

    Notes
    -----
    Durable writes, each of which may be repeated: 1. one progress record with the ends that stay, which Spark's log
    may be alone to have; 2. the snapshots go; 3. the records that speak of anything else go.
    """

    def stays(ended: EpochEnd) -> bool:
        """Tell whether an end lies at or before the target: by positions, as numbers of replays are higher."""
        return covers_all(to, ended.positions)

    progress.add(store, [step for step in known_steps(store, steps) if stays(step.ended)], generation)
    for key in snapshot_keys(store):
        try:
            ended = read_manifest(store, key).ended
        except Corrupt:
            continue  # never used; pruned once all that stay are newer
        if not stays(ended):
            store.delete(key.path)
    progress.keep_only(store, stays)


def note_rewind(store: Store, epoch: int, to: Positions) -> None:
    """Note that a rewind has happened: names stay, and one that was given after its target no longer has a checkpoint.

    Parameters
    ----------
    store : Store
        The checkpoint.
    epoch : int
        Of the rewind.
    to : Positions
        As for :func:`take_back`.
    """
    rewinds = [each for each in _rewinds(store) if each[0] != epoch]
    last = rewinds[-1][0] if rewinds else 0
    invariant(epoch > last, f"a rewind is epoch {epoch}, and the one before it is epoch {last}.", epoch=epoch)
    store.put(REWINDS, sealed.dump({"rewinds": [*rewinds, (epoch, to)]}))


def _rewinds(store: Store) -> list[tuple[int, Positions]]:
    data = store.get(REWINDS)
    if data is None:
        return []
    try:
        return [(int(epoch), positions) for epoch, positions in sealed.load(data)["rewinds"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{REWINDS} of the checkpoint cannot be read.",
            why=f"{error}; it says what rewinds have taken back, for names and for sinks that none has reached.",
            do=f"restore {REWINDS} from a copy; or remove it, and then rewind to no name that an earlier rewind took "
            "back, and put no sink back that was out of the graph during one.",
            participant=REWINDS,
        ) from error


def withdrawn_by(store: Store, epoch: int, positions: Positions) -> int | None:
    """Return the rewind that has withdrawn an epoch which ended at some positions; None where it stands."""
    return _withdrawn_by(_rewinds(store), epoch, positions)


def _withdrawn_by(rewinds: Iterable[tuple[int, Positions]], epoch: int, positions: Positions) -> int | None:
    later = (number for number, to in rewinds if epoch < number and not covers_all(to, positions))
    return next(later, None)


def check_none_holds_withdrawn(store: Store, pipeline: str, sinks: Collection[str], held: Mapping[str, Held]) -> None:
    """Refuse a sink that no rewind has reached: it went back to before one, or was not in the graph then.

    By its positions it holds everything up to them, and would be left out of the epochs that came instead of what
    was withdrawn.

    Parameters
    ----------
    store : Store
        The checkpoint.
    pipeline : str
        Its name.
    sinks : collection of str
        Those to look at; they remember what they hold.
    held : mapping of str to Held
        What each sink holds.

    Raises
    ------
    Diverged
        If there is one.
    """
    for name in sorted(name for name in sinks if held[name].epoch):
        epoch = held[name].epoch
        # Some rows of later epochs, too: a sink of segments that has lost its journal holds what is sealed.
        reached = [held[name].positions, *held[name].stops]
        number = next((each for to in reached if (each := withdrawn_by(store, epoch, to)) is not None), None)
        if number is not None:
            raise Diverged(
                f"sink {name!r} holds epoch {epoch}, which epoch {number}, a rewind, has withdrawn.",
                why="it was not in the graph when that was rewound; or it failed over to a copy that lagged, or "
                "was restored from a backup of before the rewind. What came instead of the withdrawn rows is not "
                "in it, and its ledger says that it has everything up to there.",
                do="holdfast rewind once more, to where that one went or further back: it takes all sinks there; "
                f"or restore sink {name!r} to a state after the rewind; or, where it cannot withdraw rows, "
                "empty it with its ledger and let backfill=True fill it from the beginning; or give it another name: "
                "it then begins at the present, and what is made again is in its target twice.",
                pipeline=pipeline,
                participant=name,
                epoch=number,
            )


def _at(at_us: int, ends: Mapping[int, EpochEnd], steps: Iterable[EpochSpan]) -> EpochEnd | None:
    """Return the last epoch that was planned up to a time; None where that is unknown.

    Where ends are missing after the last one that is known, the epoch that was asked for may be one of them.
    """
    found = max((end for end in ends.values() if end.batch_us <= at_us), key=lambda end: end.epoch, default=None)
    following = min((epoch for epoch in ends if found is not None and epoch > found.epoch), default=None)
    if found is None or following is None:
        return found
    is_next = any(step.ended.epoch == following and _goes_on(found.positions, step.start) for step in steps)
    return found if is_next else None


def _goes_on(end: Positions, start: Positions) -> bool:
    """Tell whether an epoch begins where another one ended; sources may have come and gone between them."""
    return all(start[name] == of for name, of in end.items() if name in start)


def _named(store: Store, pipeline: str, name: str) -> RewindTarget:
    manifest = named.read_named(store, name)
    taken_back = withdrawn_by(store, manifest.ended.epoch, manifest.ended.positions)
    if taken_back is not None:
        raise InvalidPipeline(
            f"checkpoint {name!r} stands for what was taken back.",
            why=f"it is of epoch {manifest.ended.epoch}, which epoch {taken_back}, a rewind, has withdrawn: its state "
            "is not that of the rows which the sinks hold.",
            do="choose a checkpoint of before that rewind's target, or of after the rewind; or begin another pipeline "
            "with it (--from-checkpoint).",
            pipeline=pipeline,
        )
    if manifest.pipeline != pipeline:
        raise InvalidPipeline(
            f"checkpoint {name!r} is of pipeline {manifest.pipeline!r}.",
            why=f"the sinks of {pipeline!r} never held what it stands for.",
            do="name one of its own: holdfast checkpoint list.",
            pipeline=pipeline,
        )
    restored = Restoration(manifest, (), ()) if manifest.operators else None
    return RewindTarget(manifest.ended, restored, manifest)


def _restored(
    store: Store, pipeline: str, ended: EpochEnd, steps: Iterable[EpochSpan], graph: str
) -> Restoration | None:
    """Return the snapshot and the epochs after it that lead to exactly the end of an epoch."""
    held = [Held(ended.epoch, 0, ended.positions)]
    found = restoration(store, pipeline, held, steps, until=ended.positions, graph=graph)
    return None if found is None or found.stops else found


def _out_of_reach(pipeline: str, to: str, ends: dict[int, EpochEnd], *, has_state: bool) -> InvalidPipeline:
    keeps = "snapshots are pruned, and with them the ends of older epochs" if has_state else "older ends are not kept"
    reach = f"it can go back to epoch {_spans(ends)}" if ends else "no end of an epoch is known"
    return InvalidPipeline(
        f"pipeline {pipeline!r} cannot go back to {to}.",
        why=f"{reach}: {keeps}.",
        do="choose one of these; a named checkpoint (holdfast checkpoint create) is kept as long as you want.",
        pipeline=pipeline,
    )


def _spans(epochs: Iterable[int]) -> str:
    """Return numbers as people read them: those without a gap between them in one.

    Examples
    --------
    >>> _spans([1, 7, 8, 9, 12, 13])
    '1, 7 to 9, 12 to 13'
    """
    spans: list[list[int]] = []
    for epoch in sorted(epochs):
        if spans and epoch == spans[-1][1] + 1:
            spans[-1][1] = epoch
        else:
            spans.append([epoch, epoch])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)


def _time_us(text: str) -> int | None:
    """Return a time in microseconds of Unix time; None where a text is none."""
    try:
        return time_us(text, argument="--to")
    except InvalidPipeline:
        return None
