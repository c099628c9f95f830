-- Notes that a node lives, and forgets those whose lease has ended.
-- KEYS    1 the living nodes
-- ARGV    1 node id · 2 lease ms
-- Returns {now, living nodes}
-- Complexity O(log nodes)

local now = now_ms()
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
purge(KEYS[1], now)
keep(KEYS[1], tonumber(ARGV[2]))
return {now, redis.call('ZCARD', KEYS[1])}
