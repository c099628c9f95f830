-- Takes the place of a victim of the same user in every scope where it still lives; elsewhere the limit decides.
-- KEYS    as in acquire.lua; without a user, as an address or the fleet alone on a Cluster, nothing is damped
-- ARGV    1 stream id · 2 lease ms · 3 node · 4 victim's stream id · 5 damper: evictions · 6 damper: window ms ·
--         7 damper: hold ms · then per slot set: limit (-1 none), own
-- Returns {1, now, 1, in use of each slot set} the victim's place was taken · {1, now, 0, in use of each} there was room
--         without it · {0, now, position, in use}
-- Complexity O(scopes · log members)

local stream, lease, node, victim = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local evictions, window, hold = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local n = (#ARGV - 7) / 2
local age = KEYS[n + 1]
local now = now_ms()

-- Three evictions of one user within the window close eviction for a while: two clients that evict each other stop.
local function damp()
  local times = {}
  local closed_until = '0'
  local damper = redis.call('HGET', age, '*')
  if damper then
    closed_until = string.match(damper, '^%d+')
    for at in string.gmatch(damper, '|(%d+)') do
      if tonumber(at) > now - window then times[#times + 1] = at end
    end
  end
  times[#times + 1] = now
  while #times > evictions do table.remove(times, 1) end
  if #times == evictions then closed_until = tostring(now + hold) end
  redis.call('HSET', age, '*', closed_until .. '|' .. table.concat(times, '|'))
  keep(age, window + hold)
end

local full, held = first_full(8, n, victim, now)
if full then return {0, now, full, held} end
local swapped = is_alive(KEYS[1], victim, now)
add(n, age, stream, node, lease, now)
for i = 1, n do redis.call('ZREM', KEYS[i], victim) end
if age then
  redis.call('HDEL', age, victim)
  if swapped then damp() end
end
return admitted(n, age, lease, now, swapped and 1 or 0, {})
