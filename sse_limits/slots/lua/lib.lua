-- Shared by every slot script: prepended to each when it is loaded (see slots/scripts.py). Declares functions only.
-- A member of a slot set is a stream id, its score the lease deadline in ms of the store's clock; it lives while
-- score > now. The age hash of a user holds stream id -> "<acquired ms>|<node>|<hidden>", and in field "*" the damper
-- "<closed until ms>|<eviction ms>|…".

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function is_alive(key, stream, now)
  local score = redis.call('ZSCORE', key, stream)
  return score and tonumber(score) > now
end

local function living(key, now)
  return redis.call('ZCOUNT', key, '(' .. now, '+inf')
end

-- ARGV[first], ARGV[first + 1] are limit (-1: none) and own of KEYS[1], and so on. With a victim, its place counts as free.
-- What decides is the number of living members, or what the asking node holds when the store has lost its memory.
-- Returns the position of the first full key and its count, or nil; `counted` takes the living of each limited key.
local function first_full(first, n, victim, now, counted)
  for i = 1, n do
    local limit = tonumber(ARGV[first + 2 * i - 2])
    if limit >= 0 then
      local held = living(KEYS[i], now)
      if counted then counted[i] = held end
      held = math.max(held, tonumber(ARGV[first + 2 * i - 1]))
      if victim and is_alive(KEYS[i], victim, now) then held = held - 1 end
      if held >= limit then return i, held end
    end
  end
end

-- The user's oldest living stream, unless eviction is damped, or would not make room in every other scope.
local function victim(first, n, age, now)
  local damper = redis.call('HGET', age, '*')
  if damper and tonumber(string.match(damper, '^%d+')) > now then return end
  local fields = redis.call('HGETALL', age)
  local oldest, owner, since
  for i = 1, #fields, 2 do
    local acquired, holder = string.match(fields[i + 1], '^(%d+)|([^|]*)|')
    acquired = tonumber(acquired)
    if acquired and (not since or acquired < since or (acquired == since and fields[i] < oldest)) then
      if is_alive(KEYS[1], fields[i], now) then oldest, owner, since = fields[i], holder, acquired end
    end
  end
  if oldest and not first_full(first, n, oldest, now) then return oldest, owner end
end

-- The position of the first full key and its count, and who could give way for the user's own newcomer; or nil.
local function judge(first, n, age, evict, now, counted)
  local full, held = first_full(first, n, nil, now, counted)
  if full == 1 and age and evict then return full, held, victim(first, n, age, now) end
  return full, held
end

-- A key never expires under a living lease: its time to live only grows (PEXPIRE GT needs Redis 7).
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

-- The user's set lives as long as its age hash (which the damper may keep longer than a lease): were it to vanish first,
-- the fields of its expired members would be orphaned. `ttl` is that of the hash, now.
local function keep_user(key, age, ttl, lease)
  if ttl < lease then
    ttl = lease
    redis.call('PEXPIRE', age, ttl)
  end
  redis.call('PEXPIRE', key, ttl)
end

local function purge(key, now)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
end

-- A user's set is purged together with its age hash, so that no field is orphaned.
local function purge_user(key, age, now)
  while true do
    local expired = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 1000)
    if #expired == 0 then return end
    redis.call('ZREM', key, unpack(expired))
    redis.call('HDEL', age, unpack(expired))
  end
end

-- Writes the newcomer into KEYS[1..n] and the age hash. The first write is a ZADD: out of memory, nothing is written.
local function add(n, age, stream, node, lease, now)
  for i = 1, n do redis.call('ZADD', KEYS[i], now + lease, stream) end
  if age then redis.call('HSET', age, stream, now .. '|' .. node .. '|0') end
end

-- Purges and keeps what the newcomer was added to, and returns the answer to it. A set that has grown by the newcomer alone
-- since its living were `counted` has nobody to purge.
-- A hash without a time to live was made by this very script. If others were there before, the server has evicted it:
-- it is dropped, so that the next renewal of each finds it missing, and adopts.
local function admitted(n, age, lease, now, swapped, counted)
  local result = {1, now, swapped}
  for i = 1, n do
    local key, own_age = KEYS[i], i == 1 and age
    local held = counted[i] and redis.call('ZCARD', key)
    if not held or held ~= counted[i] + 1 then
      if own_age then purge_user(key, age, now) else purge(key, now) end
      held = redis.call('ZCARD', key)
    end
    local ttl = own_age and redis.call('PTTL', age)
    if ttl == -1 and held > 1 then
      redis.call('DEL', age)
      ttl = nil
    end
    if ttl then keep_user(key, age, ttl, lease) else keep(key, lease) end
    result[3 + i] = held
  end
  return result
end
