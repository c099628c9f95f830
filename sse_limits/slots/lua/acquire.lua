-- Takes a slot in every scope, or none and says which is full. Check, then add: a rejected attempt writes nothing.
-- KEYS    slot sets in the order user, class, tenant, address, fleet (those that apply); last, with a user, its age hash
-- ARGV    1 stream id · 2 lease ms · 3 node · 4 "1" if the user's oldest may be evicted · then per slot set: limit
--         (-1 none), own (streams that the asking node holds there)
-- Returns {1, now, 0, in use of each slot set} admitted · {0, now, position, in use} full · {0, now, position, in use, victim, victim's node}
-- Complexity O(scopes · log members); at the user's limit with eviction O(streams of that user)

local stream, lease, node = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local n = (#ARGV - 4) / 2
local age = KEYS[n + 1]
local now = now_ms()

local counted = {}
local full, held, oldest, owner = judge(5, n, age, ARGV[4] == '1', now, counted)
if full then return {0, now, full, held, oldest, owner} end
add(n, age, stream, node, lease, now)
return admitted(n, age, lease, now, 0, counted)
