-- Writes counts into the index of top holders, and sweeps entries that nobody has counted for a lease.
-- KEYS    1 top: subject -> count · 2 topseen: subject -> when it was counted
-- ARGV    1 lease ms · 2 entries swept at most · then pairs: subject, count (0: it holds nothing any more)
-- Returns {now}
-- Complexity O((pairs + swept) · log subjects)

local lease = tonumber(ARGV[1])
local now = now_ms()
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '0' then
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i])
    redis.call('ZADD', KEYS[2], now, ARGV[i])
  end
end
local unseen = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - lease, 'LIMIT', 0, ARGV[2])
if #unseen > 0 then
  redis.call('ZREM', KEYS[1], unpack(unseen))
  redis.call('ZREM', KEYS[2], unpack(unseen))
end
for i = 1, 2 do keep(KEYS[i], lease) end
return {now}
