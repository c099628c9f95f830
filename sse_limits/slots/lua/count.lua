-- Adds a node's rejections of the last second to their spans, once: a batch that comes again was added before.
-- KEYS    1 number of the node's last batch · 2 span of ten seconds · 3 span of a minute · 4 the minute's tenants
-- ARGV    1 batch number · 2 how long the number is kept, ms · 3, 4 how long the spans are kept, ms · 5 tenants kept ·
--         6 number of causes · then pairs: cause, count · then pairs: tenant and cause, count
-- Returns {now, 1 added or 0 known}
-- Complexity O(pairs · log tenants)

if redis.call('GET', KEYS[1]) == ARGV[1] then return {now_ms(), 0} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local tenants = 7 + 2 * tonumber(ARGV[6])
for i = 7, tenants - 1, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('HINCRBY', KEYS[3], ARGV[i], ARGV[i + 1])
end
for i = tenants, #ARGV, 2 do redis.call('ZINCRBY', KEYS[4], ARGV[i + 1], ARGV[i]) end
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - tonumber(ARGV[5]))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
return {now_ms(), 1}
