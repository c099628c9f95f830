-- Gives the slots of one stream back; doing it again changes nothing. Works out of memory: it only removes.
-- KEYS    slot sets; last, with a user, its age hash
-- ARGV    1 stream id · 2 number of slot sets
-- Returns {now, members removed}
-- Complexity O(scopes · log members)

local removed = 0
for i = 1, tonumber(ARGV[2]) do removed = removed + redis.call('ZREM', KEYS[i], ARGV[1]) end
if KEYS[ARGV[2] + 1] then redis.call('HDEL', KEYS[ARGV[2] + 1], ARGV[1]) end
return {now_ms(), removed}
