-- Leaves an order for a node and wakes it. The stream is the truth, the message only the fast path.
-- KEYS    1 the node's stream of orders
-- ARGV    1 channel of the node · 2 the order (JSON) · 3 time to live ms · 4 length at most
-- Returns {now, receivers}: 0 receivers means that no process listens for this node
-- Complexity O(receivers)

redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'order', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {now_ms(), redis.call('PUBLISH', ARGV[1], ARGV[2])}
