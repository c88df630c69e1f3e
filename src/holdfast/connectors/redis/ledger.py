"""The ledger of a Redis sink: a hash beside the target, moved by the script that writes the rows.

Keys, most of them below ``holdfast:<pipeline>/<sink>``: ``:ledger`` (a hash), ``:sources`` (a set) and
``:sources:<source>`` (lists: what its positions mean), ``:staged`` (a set: names of hashes) and
``:staged:<generation>.<epoch>.<task>.<attempt>.<token>`` (hashes: number -> chunk).  And ``holdfast:ids:<stream>`` (a
set): the ids of the entries of a stream, whoever wrote them.  :mod:`holdfast.connectors.redis.targets` has what all
sinks
of a server write.

What runs on the Redis server: two scripts, each atomic.

Invariant: a script changes nothing unless the ledger is as its caller has read it, so one that is sent again, or that
comes from a run that has lost the sink, is without effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.connectors.kit.sql import LedgerRow, positions_text
from holdfast.connectors.redis.session import RedisSession
from holdfast.errors import Corrupt
from holdfast.ports import EpochRecord, Explanation, Held, SinkLedger, Task

DONE, CHANGED, WRONG_TYPE, GONE = 1, 0, -1, -2
"""Answers: done; nothing was done because the ledger has moved; ... the key holds something else; ... staged rows are
not there."""

GUARDED = ("generation", "epoch", "positions", "next")
"""Fields of the ledger that must be as the caller has read them; the first arguments of each script."""

# KEYS: the ledger, the target, the ids of a stream, the sources with explanations, the names of what is staged.
_COMMON = """
local how = cjson.decode(ARGV[5])

local function is_as_read()
  local now = redis.call('HMGET', KEYS[1], 'generation', 'epoch', 'positions', 'next')
  for i = 1, 4 do
    if (now[i] or '') ~= ARGV[i] then return false end
  end
  return true
end

local function has_type()
  if how.type == '' then return true end
  local kind = redis.call('TYPE', KEYS[2]).ok
  return kind == 'none' or kind == how.type
end

local function trim(rows)
  local length = redis.call('XLEN', KEYS[2])
  local excess = math.min(length - how.max_length, 2 * rows)
  if excess <= 0 then return end
  if how.id then
    local gone = {}
    for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', excess)) do
      for i = 1, #entry[2], 2 do
        if entry[2][i] == how.id then gone[#gone + 1] = entry[2][i + 1] end
      end
    end
    if #gone > 0 then redis.call('SREM', KEYS[3], unpack(gone)) end
  end
  redis.call('XTRIM', KEYS[2], 'MAXLEN', '=', string.format('%.0f', length - excess))
end

local function walked(chunk, rows, columns, at, is_named, is_checked)
  local names, lengths, values, size = {}, {}, {}, 0
  local first, behind = how.kind == 'stream' and 1 or 2, #chunk + 1
  for c = 1, columns do
    names[c] = how.fields[c - first + 1]
    if is_named then
      if at + 4 > behind then return nil end
      size, at = struct.unpack('<I4', chunk, at)
      names[c] = string.sub(chunk, at, at + size - 1)
      at = at + size
    end
    if at + 4 > behind then return nil end
    size, at = struct.unpack('<I4', chunk, at)
    lengths[c], values[c] = at, at + 4 * rows
    at = values[c] + size
    if at > behind then return nil end
    if is_checked then
      for row = 0, rows - 1 do size = size - math.max(0, (struct.unpack('<i4', chunk, lengths[c] + 4 * row))) end
      if size ~= 0 then return nil end
    end
  end
  if at ~= behind then return nil end
  return names, lengths, values
end

local function write(chunk)
  local rows, columns, at = struct.unpack('<I4I4', chunk)
  local first = how.kind == 'stream' and 1 or 2
  local names, lengths, values
  if columns >= how.named then
    columns = columns - how.named
    names, lengths, values = walked(chunk, rows, columns, at, true, false)
  else -- of an earlier version: without names, or with names and no sign of it
    names, lengths, values = walked(chunk, rows, columns, at, false, true)
    if not names then names, lengths, values = walked(chunk, rows, columns, at, true, true) end
  end
  if not names then error('a chunk of staged rows cannot be read') end
  for row = 0, rows - 1 do
    local found, fields, id = {}, {}, nil
    for c = 1, columns do
      local length = struct.unpack('<i4', chunk, lengths[c] + 4 * row)
      if length >= 0 then
        local value = string.sub(chunk, values[c], values[c] + length - 1)
        values[c] = values[c] + length
        found[c] = value
        if c >= first then
          fields[#fields + 1] = names[c]
          fields[#fields + 1] = value
          if names[c] == how.id then id = value end
        end
      end
    end
    if how.kind == 'stream' then
      if not how.id or redis.call('SADD', KEYS[3], id) == 1 then
        redis.call('XADD', KEYS[2], '*', unpack(fields))
      end
    elseif how.kind == 'hash' then
      local key = KEYS[2] .. ':' .. found[1]
      redis.call('DEL', key)
      redis.call('HSET', key, unpack(fields))
      if how.expire_ms then redis.call('PEXPIRE', key, how.expire_ms) end
    else
      redis.call('HSET', KEYS[2], found[1], found[2])
    end
  end
  if how.max_length then trim(rows) end
end
"""

# ARGV: guarded fields, form, what changes (set, forgets, explained, staged, pieces, unset), chunks.
COMMIT = (
    _COMMON
    + """
local what = cjson.decode(ARGV[6])
if not is_as_read() then return 0 end
if not has_type() then return -1 end
for _, piece in ipairs(what.staged) do
  if redis.call('HLEN', piece[1]) ~= piece[2] then return -2 end
end
for _, piece in ipairs(what.pieces) do
  if piece[1] == '' then
    write(ARGV[piece[2]])
  else
    for i = 0, piece[2] - 1 do write(redis.call('HGET', piece[1], string.format('%.0f', i))) end
    redis.call('UNLINK', piece[1])
    redis.call('SREM', KEYS[5], piece[1])
  end
end
if what.forgets then
  for _, source in ipairs(redis.call('SMEMBERS', KEYS[4])) do redis.call('DEL', KEYS[4] .. ':' .. source) end
  redis.call('DEL', KEYS[4])
end
for _, each in ipairs(what.explained) do
  local key = KEYS[4] .. ':' .. each[1]
  if redis.call('LLEN', key) == each[2] - 1 then
    redis.call('RPUSH', key, each[3])
    redis.call('SADD', KEYS[4], each[1])
  end
end
for i = 1, #what.unset do redis.call('HDEL', KEYS[1], what.unset[i]) end
redis.call('HSET', KEYS[1], unpack(what.set))
return 1
"""
)

# ARGV: guarded fields, form, key and field of the chunk, whether it is the last of its key, and of all.
SHOW = (
    _COMMON
    + """
if not is_as_read() then return 0 end
if not has_type() then return -1 end
local chunk = redis.call('HGET', ARGV[6], ARGV[7])
if not chunk then return -2 end
write(chunk)
redis.call('HDEL', ARGV[6], ARGV[7])
if ARGV[8] == '1' then
  redis.call('SREM', KEYS[5], ARGV[6])
end
if ARGV[9] == '1' then
  redis.call('HDEL', KEYS[1], 'in_progress', 'next')
else
  redis.call('HSET', KEYS[1], 'next', string.format('%.0f', tonumber(ARGV[4]) + 1))
end
return 1
"""
)


@dataclass(frozen=True)
class SinkKeys:
    """Names of what a sink keeps for itself."""

    pipeline: str
    sink: str

    @property
    def name(self) -> str:
        """Of the sink, among those of all pipelines."""
        return f"{self.pipeline}/{self.sink}"

    @property
    def base(self) -> str:
        """What they all begin with."""
        return f"holdfast:{self.name}"

    @property
    def ledger(self) -> str:
        """The ledger."""
        return f"{self.base}:ledger"

    @property
    def sources(self) -> str:
        """Sources whose positions are explained."""
        return f"{self.base}:sources"

    @property
    def staged(self) -> str:
        """Names of everything staged."""
        return f"{self.base}:staged"

    def all_for(self, target: str) -> list[str]:
        """Return the keys of a script, in their order."""
        return [self.ledger, target, f"holdfast:ids:{target}", self.sources, self.staged]

    def staged_by(self, task: Task, token: str) -> str:
        """Return the name under which a task stages."""
        return f"{self.staged}:{task.generation}.{task.epoch}.{task.task}.{task.attempt}.{token}"

    def task_of(self, staged: str) -> Task | None:
        """Return whose rows are staged under a name; None where it is no such name."""
        parts = staged.removeprefix(f"{self.staged}:").split(".")
        if len(parts) != 5 or not all(part.isdecimal() for part in parts[:4]):
            return None
        generation, epoch, task, attempt = map(int, parts[:4])
        return Task(self.pipeline, generation, epoch, task, attempt)


@dataclass(frozen=True)
class RedisLedger:
    """What the ledger says, and as which bytes: a script compares these.

    Parameters
    ----------
    row : LedgerRow
        What it says.
    guard : tuple of bytes
        The fields of ``GUARDED``, as they are stored.
    recent_ends : str
        As in :class:`~holdfast.ports.EpochRecord`, of the epoch.
    in_progress : tuple of (str, int)
        Keys whose chunks become visible, and how many each has; empty where nothing is in progress.
    next : int
        How many of these chunks are visible.
    owner : str
        Drawn by the runtime that opened the sink last.
    """

    row: LedgerRow
    guard: tuple[bytes, ...]
    recent_ends: str = ""
    in_progress: tuple[tuple[str, int], ...] = ()
    next: int = 0
    owner: str = ""

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return replace(self.row.held(), recent_ends=self.recent_ends)


ABSENT = RedisLedger(LedgerRow(0, 0, "{}", None), (b"",) * len(GUARDED))
"""Where there is no ledger yet."""


def read(session: RedisSession, keys: SinkKeys) -> RedisLedger | None:
    """Return what the ledger says; None where there is none."""
    found: Mapping[bytes, bytes] = session.ask(lambda client: client.hgetall(keys.ledger))
    if not found:
        return None
    guard = tuple(found.get(name.encode(), b"") for name in GUARDED)
    try:
        said = {name.decode(): value.decode() for name, value in found.items()}
        pts = said.get("pts", "")
        parts = json.loads(said["in_progress"]) if "in_progress" in said else []
        row = LedgerRow(int(said["epoch"]), int(said["generation"]), said["positions"], int(pts) if pts else None)
        row.held()
        return RedisLedger(
            row,
            guard,
            said.get("recent_ends", ""),
            tuple((key, count) for key, count in parts),
            int(said.get("next", 0)),
            said.get("owner", ""),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(
            f"sink {keys.sink!r}: its ledger {keys.ledger} cannot be read.",
            why=f"{type(error).__name__}: {error}.",
            do="restore the server from a backup; or start over with another name= and an empty target.",
            participant=keys.sink,
        ) from error


def moved_to(record: EpochRecord) -> list[str]:
    """Return fields and values of an epoch that is held."""
    pts = "" if record.pts is None else str(record.pts)
    values = {
        "epoch": str(record.epoch),
        "positions": positions_text(record.positions),
        "pts": pts,
        "recent_ends": record.recent_ends,
    }
    return [text for pair in values.items() for text in pair]


def explained(session: RedisSession, keys: SinkKeys) -> dict[str, int]:
    """Return source -> how many explanations are kept."""

    def asked(client: Any) -> dict[str, int]:
        sources = sorted(source.decode() for source in client.smembers(keys.sources))
        return {source: int(client.llen(f"{keys.sources}:{source}")) for source in sources}

    return dict(session.ask(asked))


def explanations(session: RedisSession, keys: SinkKeys) -> list[Explanation]:
    """Return all of them, for each source in order."""

    def asked(client: Any) -> list[Explanation]:
        sources = sorted(source.decode() for source in client.smembers(keys.sources))
        return [
            Explanation(source, number, text.decode())
            for source in sources
            for number, text in enumerate(client.lrange(f"{keys.sources}:{source}", 0, -1), 1)
        ]

    return list(session.ask(asked))


def staged(session: RedisSession, keys: SinkKeys) -> list[str]:
    """Return the name of everything staged."""
    found: Sequence[bytes] = session.ask(lambda client: list(client.smembers(keys.staged)))
    return sorted(name.decode() for name in found)


def asked(session: RedisSession, keys: SinkKeys) -> SinkLedger | None:
    """Return what the ledger says of a sink; None where there is none."""
    found = read(session, keys)
    if found is None:
        return None
    told = explanations(session, keys) if found.row.epoch else []
    return SinkLedger(found.held(), tuple(told))
