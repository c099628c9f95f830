-- adopt
-- Adds members without asking for a limit: this store had lost its memory, or was away, and their streams are open.
-- KEYS    as in renew.lua
-- ARGV    1 lease ms · 2 node · then per group: number of members (negative: a user's set), the members; in a user's set
--         each is followed by the epoch ms since which its stream is open
-- Returns {now, in use of each group's slot set, …}
-- Complexity O(members · log set). Out of memory nothing is written: the first write is a ZADD.

local lease, node = tonumber(ARGV[1]), ARGV[2]
local now = now_ms()
local result = {now}
local at, key = 3, 1

while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local slots = KEYS[key]
  at = at + 1
  if count < 0 then
    key = key + 1
    local age = KEYS[key]
    for i = at, at - 2 * count - 1, 2 do
      redis.call('ZADD', slots, now + lease, ARGV[i])
      redis.call('HSET', age, ARGV[i], ARGV[i + 1] .. '|' .. node .. '|0')
    end
    at = at - 2 * count
    purge_user(slots, age, now)
    keep_user(slots, age, redis.call('PTTL', age), lease)
  else
    for i = at, at + count - 1 do redis.call('ZADD', slots, now + lease, ARGV[i]) end
    at = at + count
    purge(slots, now)
    keep(slots, lease)
  end
  key = key + 1
  result[#result + 1] = redis.call('ZCARD', slots)
end
return result
