"""What runs on the Redis server: two scripts, each atomic.

Invariant: a script changes nothing unless the ledger is as its caller has read it, so one that is sent again, or that
comes from a run that has lost the sink, is without effect.
"""

from __future__ import annotations

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

local function write(chunk)
  local rows, columns, at = struct.unpack('<I4I4', chunk)
  local names, lengths, values, size = {}, {}, {}, 0
  for c = 1, columns do
    size, at = struct.unpack('<I4', chunk, at)
    names[c] = string.sub(chunk, at, at + size - 1)
    size, at = struct.unpack('<I4', chunk, at + size)
    lengths[c], values[c] = at, at + 4 * rows
    at = values[c] + size
  end
  local first = how.kind == 'stream' and 1 or 2
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
