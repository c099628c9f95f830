-- Counts the living leases of each slot set. Writes nothing: reads are right also when nobody acquires.
-- KEYS    slot sets
-- ARGV    none
-- Returns {now, count, …}
-- Complexity O(keys · log members)

local now = now_ms()
local result = {now}
for i = 1, #KEYS do result[i + 1] = living(KEYS[i], now) end
return result
