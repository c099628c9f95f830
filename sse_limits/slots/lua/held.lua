-- Reads the living streams of one user with their age; those whose lease ends last come first. Writes nothing.
-- KEYS    1 the user's slot set · 2 its age hash
-- ARGV    1 streams at most
-- Returns {now, in use, stream, acquired ms, …}; acquired 0 where nobody knows
-- Complexity O(log streams + streams at most)

local now = now_ms()
local result = {now, living(KEYS[1], now)}
for _, stream in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '(' .. now, 'LIMIT', 0, ARGV[1])) do
  local age = redis.call('HGET', KEYS[2], stream)
  result[#result + 1] = stream
  result[#result + 1] = age and tonumber(string.match(age, '^%d+')) or 0
end
return result
