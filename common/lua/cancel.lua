#!lua flags=allow-oom
-- Ends a request whose client is gone: a queued one at once, a running one by mail to its owner.
-- KEYS  cell tag
-- ARGV  rid
-- Reply "unknown" | "ended" | "queued" | "mailed"       (what it was)
local c, rid = KEYS[1], ARGV[1]
local req = c .. "req:" .. rid
local r = redis.call("HMGET", req, "state", "owner", "lane", "entry", "epoch")
if not r[1] then return "unknown" end
if r[1] == "ended" then return "ended" end
--@include drop
if r[2] == "" then
  drop_entry(r[3], r[4])
  redis.call("HSET", req, "state", "ended")
  redis.call("EXPIRE", req, 60)
  return "queued"
end
redis.call("HSET", req, "cancel", 1)
if redis.call("ZSCORE", c .. "workers", r[2]) then redis.call("RPUSH", c .. "mail:" .. r[2], "cancel " .. rid .. " " .. r[5]) end
return "mailed"
