#!lua flags=allow-oom
-- Hands back all that a worker runs, in O(1): others take it over from its journal, which is final from here on.
-- KEYS  cell tag
-- ARGV  worker how blamed_rid...      how: crashed | clean. Only blamed requests count a crash.
-- Reply 1 | 0       0: the worker was not registered any more
local c, worker = KEYS[1], ARGV[1]
if redis.call("ZREM", c .. "workers", worker) == 0 then return 0 end
redis.call("HSET", c .. "orphans", worker, ARGV[2])
for i = 3, #ARGV do
  local req = c .. "req:" .. ARGV[i]
  if redis.call("HGET", req, "owner") == worker then redis.call("HINCRBY", req, "crashes", 1) end
end
redis.call("XADD", c .. "bell", "MAXLEN", "~", "16", "*", "orphan", worker)
return 1
