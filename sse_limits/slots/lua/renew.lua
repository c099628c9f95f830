-- renew
-- Extends a batch of leases. A member that is missing or has expired is lost: reported, never revived. So is one of a
-- user's set whose age is missing: the server has evicted the hash.
-- KEYS    per group: a slot set, followed by its age hash if it is a user's set
-- ARGV    1 lease ms · then per group: number of members (negative: a user's set, an age hash follows), the members
-- Returns {now, position, …}: the positions, from 1 over all members in order, that are lost
-- Complexity O(members · log set). Works out of memory: its first write removes (nothing), and a script that has written
--         may go on.

local lease = tonumber(ARGV[1])
local now = now_ms()
local deadline = now + lease
local result = {now}
local at, key, position = 2, 1, 0

if KEYS[1] then redis.call('ZREM', KEYS[1], '') end
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local slots, age = KEYS[key], nil
  if count < 0 then
    count = -count
    key = key + 1
    age = KEYS[key]
    purge_user(slots, age, now)
    keep_user(slots, age, lease)
  else
    purge(slots, now)
  end
  for i = at + 1, at + count do
    position = position + 1
    local member = ARGV[i]
    if (redis.call('ZADD', slots, 'XX', 'CH', deadline, member) == 0 and not redis.call('ZSCORE', slots, member))
      or (age and redis.call('HEXISTS', age, member) == 0) then
      result[#result + 1] = position
    end
  end
  keep(slots, lease)
  at = at + count + 1
  key = key + 1
end
return result
