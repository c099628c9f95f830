-- Appends an event to its topic's log and sends it to every process that listens: order in the log is order on the wire.
-- KEYS    1 the topic's log
-- ARGV    1 channel of the topic · 2 the frame · 3 events kept · 4 age kept ms
-- Returns the event's id
-- Complexity O(log events + receivers)

local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local previous = last[1] and last[1][1] or '0-0'
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'frame', ARGV[2])
redis.call('XTRIM', KEYS[1], 'MINID', '~', now_ms() - ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[1], id .. ' ' .. previous .. '\n' .. ARGV[2])
return id
