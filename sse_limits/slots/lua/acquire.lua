-- Takes a slot in every scope, or none and says which is full. Check, then add: a rejected attempt writes nothing.
-- KEYS    slot sets in the order user, class, tenant, address, fleet (those that apply); last, with a user, its age hash
-- ARGV    1 stream id · 2 lease ms · 3 node · 4 "1" if the user's oldest may be evicted · then per slot set: limit
--         (-1 none), own (streams that the asking node holds there)
-- Returns {1, now} admitted · {0, now, position, in use} full · {0, now, position, in use, victim, victim's node}
-- Complexity O(scopes · log members); at the user's limit with eviction O(streams of that user)

local stream, lease, node = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local n = (#ARGV - 4) / 2
local age = KEYS[n + 1]
local now = now_ms()

-- The user's oldest living stream, unless eviction is damped, or would not make room in every other scope.
local function victim()
  local damper = redis.call('HGET', age, '*')
  if damper and tonumber(string.match(damper, '^%d+')) > now then return end
  local fields = redis.call('HGETALL', age)
  local oldest, owner, since
  for i = 1, #fields, 2 do
    local acquired, holder = string.match(fields[i + 1], '^(%d+)|([^|]*)|')
    acquired = tonumber(acquired)
    if acquired and (not since or acquired < since or (acquired == since and fields[i] < oldest)) then
      if is_alive(KEYS[1], fields[i], now) then oldest, owner, since = fields[i], holder, acquired end
    end
  end
  if oldest and not first_full(5, n, oldest, now) then return oldest, owner end
end

local full, held = first_full(5, n, nil, now)
if full then
  if full == 1 and age and ARGV[4] == '1' then
    local oldest, owner = victim()
    if oldest then return {0, now, full, held, oldest, owner} end
  end
  return {0, now, full, held}
end
add(n, age, stream, node, lease, now)
tidy(n, age, lease, now)
return {1, now}
