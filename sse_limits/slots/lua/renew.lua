-- renew
-- Extends a batch of leases. A member that is missing or has expired is lost: reported, never revived. So are all of a
-- user's set whose age hash is missing: the server has evicted it.
-- KEYS    per group: a slot set, followed by its age hash if it is a user's set
-- ARGV    1 lease ms · 2 the deadline that this store has acknowledged for all of them (ms; 0: none): before it none can
--         have expired, and nobody is looked for · 3 number of streams · the streams · then per group two positions among the streams (first, last;
--         first negative: a user's set, an age hash follows)
-- Returns {now, position, …}: the positions, from 1, of streams that are lost; one may come more than once
-- Complexity O(members · log set), with four commands for each user and three at most for each other group. Works out of memory:
--         its first write removes (nothing), and a script that has written may go on.

local lease, n = tonumber(ARGV[1]), tonumber(ARGV[3])
local now = now_ms()
local may_have_expired = now >= tonumber(ARGV[2])
local result = {now}
local scores = {}
for i = 1, n do
  scores[2 * i - 1] = now + lease
  scores[2 * i] = ARGV[3 + i]
end

local function lose(first, last)
  for i = first, last do result[#result + 1] = i end
end

redis.call('ZREM', KEYS[1], '')
local key = 1
for at = n + 4, #ARGV, 2 do
  local first, last = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local slots = KEYS[key]
  if first < 0 then
    first = -first
    key = key + 1
    local age = KEYS[key]
    if may_have_expired then purge_user(slots, age, now) end
    local ttl = redis.call('PTTL', age)
    if ttl == -2 then lose(first, last) end
    keep_user(slots, age, ttl, lease)
  else
    if may_have_expired then purge(slots, now) end
    keep(slots, lease)
  end
  local changed = redis.call('ZADD', slots, 'XX', 'CH', unpack(scores, 2 * first - 1, 2 * last))
  if changed < last - first + 1 then -- else each was there; of these, some may just have had this deadline already
    for i = first, last do
      if not redis.call('ZSCORE', slots, ARGV[3 + i]) then lose(i, i) end
    end
  end
  key = key + 1
end
return result
