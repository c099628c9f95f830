-- Answers what acquire.lua would, and takes nothing: for HEAD. Writes nothing.
-- KEYS    as in acquire.lua
-- ARGV    1 "1" if the user's oldest may be evicted · then per slot set: limit (-1 none), own
-- Returns {1, now} there is room, or would be by eviction · {0, now, position, in use} full
-- Complexity as acquire.lua

local n = (#ARGV - 1) / 2
local now = now_ms()
local full, held, oldest = judge(2, n, KEYS[n + 1], ARGV[1] == '1', now)
if full and not oldest then return {0, now, full, held} end
return {1, now}
