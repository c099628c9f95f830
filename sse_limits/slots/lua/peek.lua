-- Answers what acquire.lua would, and takes nothing: for HEAD. Writes nothing.
-- KEYS    slot sets as in acquire.lua, without the age hash
-- ARGV    per slot set: limit (-1 none), own
-- Returns {1, now} there is room · {0, now, position, in use} full
-- Complexity O(scopes · log members)

local now = now_ms()
local full, held = first_full(1, #KEYS, nil, now)
if full then return {0, now, full, held} end
return {1, now}
