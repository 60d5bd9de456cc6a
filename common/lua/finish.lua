#!lua flags=allow-oom
-- Ends requests after their last event was journaled: entry and slot are gone, a result stays when wanted.
-- KEYS  cell tag
-- ARGV  worker (rid epoch result ttl_ms)...      result "": none
-- Reply {"fenced"} | {"ok", n}       n: how many were this worker's to end
local c, worker, n = KEYS[1], ARGV[1], 0
if not redis.call("ZSCORE", c .. "workers", worker) then return { "fenced" } end
--@include drop
for i = 2, #ARGV, 4 do
  local req = c .. "req:" .. ARGV[i]
  local r = redis.call("HMGET", req, "owner", "epoch", "lane", "entry")
  if r[1] == worker and r[2] == ARGV[i + 1] then
    drop_entry(r[3], r[4])
    redis.call("HSET", req, "state", "ended", "owner", "")
    redis.call("EXPIRE", req, 60)
    if ARGV[i + 2] ~= "" then redis.call("SET", c .. "res:" .. ARGV[i], ARGV[i + 2], "PX", ARGV[i + 3]) end
    n = n + 1
  end
end
return { "ok", n }
