"""Planning of file epochs: which blocks follow, and what must be logged before they are returned.

Lives in the planning process.  The log decides; everything else here may be lost with the process.

Pure arithmetic of planning: how many blocks an epoch takes, and how they are distributed to tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.connectors.files.source import discovery
from holdfast.connectors.files.source.discovery import Discovery, Found, Place, what_is_gone
from holdfast.connectors.files.source.division import SEGMENT, BlockIndex, low_of, segment_of
from holdfast.connectors.files.source.index import TimeIndex
from holdfast.connectors.files.source.listing import NOT_THERE, named
from holdfast.connectors.files.source.log import Block, FileLog, LoggedFile, log_end, whole
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats.access import FilePart, check, is_as_found, shown
from holdfast.connectors.formats.identity import FileIdentity, of_status
from holdfast.connectors.reading.until import check_timestamp
from holdfast.errors import Corrupt, Unavailable
from holdfast.limits import EpochRoom, ReadLimit
from holdfast.positions import SourcePositions

_CHECKED_AGAIN = 64
"""Files that are checked again after they were taken."""
_MISSES = 3
"""Looks of one epoch in which a bounded source finds a file that changes before it is taken."""


class FilePlanner:
    """Log, discovery, and what was found but not logged yet.

    Parameters
    ----------
    spec : FilesSelection
        The declaration.
    name, workspace : str
        The source's name and its directory below the checkpoint.
    """

    def __init__(self, spec: FilesSelection, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.where = discovery.settled(spec.where)
        self.log = FileLog.of_source(workspace, name, spec.identity(self.where))
        self.log.merge()
        self._discovery = self._new_discovery()
        self._waiting: list[Found] = []
        self._is_frozen = False
        self._recent = _last_taken(self.log.blocks)
        self._index = TimeIndex(spec)
        self._own = BlockIndex(self.log.blocks, spec.division, spec.reads)
        self._read_to: tuple[dict[str, int], int | None] = {}, None
        """Positions, and the highest time before them."""
        if self.log.owed:
            check_timestamp(spec, name, self.log.owed_by)
        if self.log.is_new and spec.start == "latest":
            self._skip_what_is_there()

    def newest(self) -> dict[str, int]:
        """Return the position after every file seen so far; one that is not split yet counts as one block."""
        to_come = len(self._waiting) + self._index.due_count(self.log.owed)
        if self.spec.division is None:
            return {SEGMENT: self.log.end + to_come}
        waiting = {segment_of(self.spec.division, each.name) for each in self._waiting if self._own.is_own(each.name)}
        return {**self._own.ends(), **dict.fromkeys(waiting, self.log.end + to_come)}

    def has_more(self, start: SourcePositions) -> bool:
        """Return whether files were seen that follow positions."""
        return any(at > low_of(start, segment) for segment, at in self.newest().items())

    def has_ended(self, start: SourcePositions) -> bool:
        """Return whether nothing follows positions: all of a bounded source is logged, and before them."""
        return self.log.is_complete and not self._own.after(start) and not self.log.owed

    def has_passed(self, start: SourcePositions) -> bool:
        """Return whether no row below the time where reading ends follows positions: neither of what is there, nor, by
        what the source has reached, of what may come.
        """
        log, before = self.log, self.spec.before
        if before is None or self._own.after(start) or self.has_more(start):
            return False
        return log.is_complete or (log.reached is not None and log.reached >= before)

    def bound_after(self, start: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no row follows positions; None where that is not known.

        What was found, and is not read yet, has the times of its blocks.  What arrives later is at most ``disorder``
        ticks below the newest that was read; nothing does where the source is bounded, and all of it is logged.
        """
        log = self.log
        if self._waiting:
            return None
        left = (log.blocks[ordinal] for ordinal in self._own.after(start))
        bounds = [lowest_of(block) for block in (*left, *log.owed.values())]
        if not log.is_complete:
            highest = self._highest(start)
            bounds.append(None if highest is None else highest - disorder)
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known and len(known) == len(bounds) else None

    def _highest(self, end: SourcePositions) -> int | None:
        """Return the highest time that was read before positions; None without any."""
        begin, highest = self._read_to
        if any(int(end.get(segment, 0)) < at for segment, at in begin.items()):
            begin, highest = {}, None
        for ordinal in self._own.between(begin, {**self._own_lows(end), **end}):
            block = self.log.blocks[ordinal]
            if block.times is not None:
                high = (
                    block.times.high if block.before is None else block.times.low
                )  # of what was read not more is known
                highest = high if highest is None else max(highest, high)
        self._read_to = {segment: int(at) for segment, at in end.items()}, highest
        return highest

    def _own_lows(self, start: SourcePositions) -> dict[str, int]:
        """Return where each segment is read next that has something."""
        return {segment: low_of(start, segment) for segment in self._own.ends()}

    def blocks(self, start: SourcePositions, end: SourcePositions) -> Sequence[Block]:
        """Return the blocks between two positions."""
        self._check_known(end)
        return [self.log.blocks[ordinal] for ordinal in self._own.between(start, end)]

    def part(self, block: Block) -> FilePart:
        """Return what a reader of a block needs."""
        return part_of(self.spec, self.where, block, follows_links=self._discovery.follows_links)

    def freeze(self) -> None:
        """Record which files are there now."""
        self._read_on()
        if not self.log.is_complete:
            self._check_recent()
            known = self.log.names.union(found.name for found in self._waiting)
            self._waiting += self._discovery.new_files(known)
        self._is_frozen = True

    def end_of_epoch(self, start: SourcePositions, *, frozen: bool, limit: ReadLimit | None = None) -> dict[str, int]:
        """Return the end of the epoch that begins at ``start``: logged blocks first, then new files, within the limits.

        With ``frozen`` no file that arrived after :meth:`freeze`.  A part of the source logs what it finds of the
        others, too: each file is in the log once, whoever finds it.
        """
        self._check_known(start)
        if not frozen:
            self._read_on()
        elif not self._is_frozen:
            self.freeze()
        taken, is_full = self._taken_within(start, limit)
        while not is_full and (owed := self._owed_rows(self._room(limit, taken))):
            self.log.append(owed)  # lost to another planner: what it took is not owed any more
            taken, is_full = self._taken_within(start, limit)
        if is_full:
            return self._own.positions_after(start, taken)
        if not frozen:
            self._discover()
        misses = 0
        self._index.begin_epoch()
        while self._waiting and not is_full and not (self._index.has_spent_much and taken):
            again = self._log_more(self._room(limit, taken))
            misses += bool(again)
            if misses == _MISSES:  # what is found again is some of what was missed before
                raise self._still_changing(again)
            taken, is_full = self._taken_within(start, limit)
        if self._is_at_its_end and not self.log.is_complete:
            self.log.append([], is_complete=True)  # lost to another planner: asked again in the next epoch
        return self._own.positions_after(start, taken)

    def _room(self, limit: ReadLimit | None, taken: Sequence[int] = ()) -> EpochRoom:
        room = EpochRoom(self.spec.max_files_per_epoch, self.spec.max_rows_per_epoch, limit)
        for ordinal in taken:
            room.take(self.log.blocks[ordinal])
        return room

    def _taken_within(self, start: SourcePositions, limit: ReadLimit | None) -> tuple[list[int], bool]:
        """Return the ordinals of the logged blocks that an epoch takes, and whether a limit ended it."""
        ordinals = self._own.after(start)
        count, is_full = within_limits([self.log.blocks[ordinal] for ordinal in ordinals], 0, self._room(limit))
        return ordinals[:count], is_full

    @property
    def _is_at_its_end(self) -> bool:
        """Whether a bounded source has nothing to log any more: also one that found no file at all."""
        return self.spec.bounded and not self._waiting and self._discovery.has_seen_all

    def _discover(self) -> None:
        if self.log.is_complete:
            return
        self._check_recent()
        if not self._waiting:
            # What waits is taken first: files are ordered within one discovery.
            self._waiting = self._discovery.new_files(self.log.names)

    def _read_on(self) -> None:
        """Read what others have logged, where others do all the time: what they found need not be cut again."""
        if not self.spec.reads.is_all:
            self.log.refresh()
            self._waiting = [found for found in self._waiting if found.name not in self.log.names]

    def _owed_rows(self, room: EpochRoom) -> list[LoggedFile]:
        """Return as much as the epoch still takes of what earlier runs have left, and this one reads."""
        files: dict[str, LoggedFile] = {}
        for block in self._index.due(self.log.owed.values()):
            if files and not room.fits(block):
                break
            room.take(block)
            file = files.get(block.name) or LoggedFile(block.name, block.file_size, (), block.identity)
            files[block.name] = file._replace(blocks=(*file.blocks, block))
        return list(files.values())

    def _log_more(self, room: EpochRoom) -> Sequence[Found]:
        """Cut as many waiting files as the epoch still takes, and log them in one increment.

        Returns
        -------
        sequence of Found
            Files that changed meanwhile, and wait again.
        """
        spec = self.spec
        logged: list[LoggedFile] = []
        skipped: set[str] = set()
        looked_at = read_count = 0
        for found in self._waiting:
            # What gives bounds is logged ahead: the times of all that was found hold them back.
            is_full = (room.is_full and not spec.has_bounds) or (self._index.has_spent_much and read_count > 0)
            if is_full and not spec.bounded:  # a bounded source is logged completely: later files are not part of it
                break
            looked_at += 1
            cut = self._cut(found)
            if cut is None:
                skipped.add(found.name)
                continue
            logged.append(cut)
            read_count += bool(cut.blocks)  # what is passed over fills no epoch
            for block in cut.blocks if self._own.is_own(cut.name) else ():
                room.take(block)
        again: list[Found] = []
        if skipped:
            # Its time of change is the file's, not the directory's: only a discovery that knows nothing finds it again.
            self._discovery = self._new_discovery()
            if spec.bounded:  # taken in this very epoch: what was found first is all that a bounded source is
                again = [found for found in self._discovery.new_files(self.log.names) if found.name in skipped]
        rest = self._waiting[looked_at:] + again
        if not logged:
            self._waiting = rest
        elif self.log.append(logged, is_complete=spec.bounded and not skipped and self._discovery.has_seen_all):
            self._waiting = rest
            self._remember(logged)
        else:
            # Another planner was faster: what it took is known now.
            self._waiting = [] if self.log.is_complete else [f for f in self._waiting if f.name not in self.log.names]
        return again

    def _still_changing(self, found: Sequence[Found]) -> Unavailable:
        path = shown(self.where.path(found[0].name))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return Unavailable(
            f"{path}{more} changed {_MISSES} times between being found and being taken by source {self.name!r}.",
            why="it is still being written to, or its file system gives it other times; a bounded source is whole only "
            "with it.",
            do='write files under another name and rename them when complete, or give min_age="1 min"; where sizes '
            'stay and times do not, write compare="size".',
            participant=self.name,
        )

    def _cut(self, found: Found) -> LoggedFile | None:
        """Cut a file; None when it changed or went after it was found: it is found again if it is there."""
        identity = found.identity
        if self.spec.compare == "size":
            found = found._replace(identity=FileIdentity())
        try:
            cut = self.spec.layout.cut(self.where, found, self.spec.max_rows_per_epoch)
            cut = self._index.divided(cut, self.where.path(found.name), found.identity)
        except Corrupt:
            if not is_as_found(FilePart(self.where.path(found.name), found.size, 0, -1, found.identity)):
                return None
            cut = whole(found.name, found.size)  # damaged: the reader reports it
        if self.where.is_local and not self._is_still(found):  # a small file is logged unopened
            return None
        return cut._replace(identity=identity)

    def _is_still(self, found: Found) -> bool:
        """Whether a local file is the one that was found."""
        try:
            now = os.stat(self.where.path(found.name))
        except NOT_THERE:
            return False
        except OSError:
            return True  # the reader reports it
        return now.st_size == found.size and found.identity.is_of(of_status(now))

    def _skip_what_is_there(self) -> None:
        """Log files that are there as known and never read."""
        while self.log.is_new:
            self.log.append([LoggedFile(found.name, found.size, ()) for found in self._discovery.new_files(())])

    def _remember(self, logged: Sequence[LoggedFile]) -> None:
        for file in logged:
            self._recent.pop(file.name, None)
            self._recent[file.name] = (file.size, file.identity)
        for name in list(self._recent)[:-_CHECKED_AGAIN]:
            del self._recent[name]

    def _check_recent(self) -> None:
        """Notice files that grow, or are replaced, after they were taken: their new rows would be silently lost."""
        if not self.where.is_local:
            return
        compares_size = self.spec.compare == "size"
        misfits: dict[str, Corrupt] = {}
        for name, (size, identity) in self._recent.items():
            part = FilePart(self.where.path(name), size, 0, -1, None if compares_size else identity)
            try:
                self._check_taken(part)
            except Corrupt as error:
                misfits[part.shown] = error
        if len(misfits) == 1:
            raise next(iter(misfits.values()))
        if misfits:
            proof = '; where each has its size and its rows, and only its time differs, write compare="size"'
            raise Corrupt(
                f"{len(misfits)} of the last {len(self._recent)} files that source {self.name!r} took are not as they "
                f"were: {named(list(misfits))}.",
                why="they were written to, touched or replaced after they had been taken, and new rows in them would "
                "never be read.",
                do=f"restore them, and put new rows into new files{'' if compares_size else proof}.",
                participant=self.name,
            )

    def _check_taken(self, part: FilePart) -> None:
        try:
            now = os.stat(part.path)
        except OSError:
            return  # it may go once its rows are in every sink, and reading notices when it went too early
        if now.st_size != part.file_size:
            raise Corrupt(
                f"{part.shown} has {now.st_size} bytes, and had {part.file_size} when source {self.name!r} took it.",
                why="it was written to after it had arrived; what was added would never be read.",
                do='write files under another name and rename them when complete, or give min_age="1 min"; '
                "put the added lines into a new file and restore this one.",
                participant=self.name,
            )
        check(part, now.st_size, of_status(now))

    def _new_discovery(self) -> Discovery:
        return Discovery(self.where, self.spec.min_age_us, follow_links=self.spec.follow_links)

    def _check_known(self, positions: SourcePositions) -> None:
        position = max(map(int, positions.values()), default=0)
        if position > self.log.end:
            self.log.refresh()
        if position > self.log.end:
            raise Corrupt(
                f"source {self.name!r} is to be read from position {position}, and its log ends at {self.log.end}.",
                why=f"the log {self.log.directory} was removed or replaced by an older one.",
                do="restore the checkpoint directory as a whole.",
                participant=self.name,
            )


def segments_there(spec: FilesSelection, workspace: str) -> list[str]:
    """Return the segments of a source: by hash all of them, of groups those of files that are logged, or there."""
    if spec.division is None:
        return [SEGMENT]
    found = {f"{at}/{spec.parts}" for at in range(spec.parts)}
    if not found:
        log = FileLog(os.path.join(workspace, "log"), is_read_only=True)
        looked = Discovery(discovery.settled(spec.where), spec.min_age_us, follow_links=spec.follow_links)
        names = (*log.names, *(file.name for file in looked.new_files(log.names)))
        found = {segment_of(spec.division, name) for name in names}
    return sorted(segment for segment in found if segment in spec.reads)


def gone_between(spec: FilesSelection, workspace: str, start: SourcePositions, end: SourcePositions) -> str:
    """Return which files between two positions are not there as they were taken; empty where all of them are."""
    where = discovery.settled(spec.where)
    log = FileLog(os.path.join(workspace, "log"), is_read_only=True)
    follows = Discovery(where, spec.min_age_us, follow_links=spec.follow_links).follows_links
    wanted = BlockIndex(log.blocks, spec.division, spec.reads).between(start, end)
    return what_is_gone(log.blocks, wanted, lambda block: part_of(spec, where, block, follows_links=follows))


def ends_there(spec: FilesSelection, workspace: str) -> dict[str, int]:
    """Return where the log of a source ends, and its segments.

    By hash they may end before; all of the log is not read for that, since each start asks.
    """
    log = os.path.join(workspace, "log")
    if spec.division is None or spec.parts:
        return dict.fromkeys((SEGMENT, *segments_there(spec, workspace)), log_end(log))
    found = FileLog(log, is_read_only=True)
    return {SEGMENT: found.end, **BlockIndex(found.blocks, spec.division, spec.reads).ends()}


def lowest_of(block: Block) -> int | None:
    """Return a time that no row of a block is below; None where it is not known."""
    known = [time for time in (block.since, block.times and block.times.low) if time is not None]
    return max(known, default=None)


def part_of(spec: FilesSelection, where: Place, block: Block, *, follows_links: bool) -> FilePart:
    """Return what a reader of a logged block needs."""
    identity = None if spec.compare == "size" else block.identity
    # An older log, without identities, may contain links: they were then followed.
    has_links = follows_links or block.identity is None
    return FilePart(where.path(block.name), block.file_size, block.start, block.end, identity, has_links)


def _last_taken(blocks: Sequence[Block]) -> dict[str, tuple[int, FileIdentity | None]]:
    """Return the files that were taken last, the newest at the end: a file may grow between two runs."""
    taken: dict[str, tuple[int, FileIdentity | None]] = {}
    for block in reversed(blocks):
        taken.setdefault(block.name, (block.file_size, block.identity))
        if len(taken) == _CHECKED_AGAIN:
            break
    return dict(reversed(taken.items()))


_SPANS_PER_CORE = 4
_SPAN_SIZE_MIN = 2_000_000
_COST_OF_OPENING = 64_000  # bytes that could be read while a file is opened


def within_limits(blocks: Sequence[Block], start: int, room: EpochRoom) -> tuple[int, bool]:
    """Return the end of an epoch from ``start``, and whether a limit (not the end of the log) ended it.

    An epoch takes at least one block, even one that is larger than the limit.

    Examples
    --------
    >>> blocks = [Block("a", 9, 0, 4, 2, 4), Block("a", 9, 4, 9, 2, 5), Block("b", 5, 0, -1, 1, 5)]
    >>> [within_limits(blocks, 0, EpochRoom(*most, None)) for most in ((1, None), (None, 5), (None, 4), (None, None))]
    [(2, True), (3, True), (2, True), (3, False)]
    """
    if room.is_limited:
        for at in range(start, len(blocks)):
            if not room.fits(blocks[at]):
                return at, True
            room.take(blocks[at])
    return len(blocks), len(blocks) > start and room.is_full


def grouped(blocks: Sequence[Block], parallelism: int) -> list[Sequence[Block]]:
    """Deal neighbouring blocks to at most a few tasks per core, of about equal cost; tiny epochs to one task.

    Examples
    --------
    >>> block = Block("a", 9_000_000, 0, -1, None, 9_000_000)
    >>> [len(group) for group in grouped([block] * 5, 1)], [len(group) for group in grouped([block] * 2, 2)]
    ([2, 1, 1, 1], [1, 1])
    """
    if not blocks:
        return []
    costs = [block.size_bytes + _COST_OF_OPENING for block in blocks]
    total = sum(costs)
    wanted = min(len(blocks), _SPANS_PER_CORE * max(1, parallelism), max(1, total // _SPAN_SIZE_MIN))
    groups: list[Sequence[Block]] = []
    first, done = 0, 0
    for at, cost in enumerate(costs):
        done += cost
        if done * wanted >= total * (len(groups) + 1) or len(blocks) - at - 1 <= wanted - len(groups) - 1:
            groups.append(blocks[first : at + 1])
            first = at + 1
    if first < len(blocks):
        groups.append(blocks[first:])
    return groups
