#!lua flags=allow-oom
-- Signs a gateway in, and ends requests whose clients are gone: queued ones at once, running ones by mail to their owners.
-- KEYS  cell tag
-- ARGV  gateway rid...        gateway "": nobody signs in
-- Reply {"unknown" | "ended" | "queued" | "mailed"...}       (what each was)
local c, reply = KEYS[1], {}
--@include now drop
if ARGV[1] ~= "" then
  redis.call("ZADD", c .. "gateways", now, ARGV[1])
  redis.call("ZREMRANGEBYSCORE", c .. "gateways", "-inf", now - 60000)
end
for i = 2, #ARGV do
  local req = c .. "req:" .. ARGV[i]
  local r = redis.call("HMGET", req, "state", "owner", "lane", "entry", "epoch")
  if not r[1] then
    reply[#reply + 1] = "unknown"
  elseif r[1] == "ended" then
    reply[#reply + 1] = "ended"
  elseif r[2] == "" then
    drop_entry(r[3], r[4])
    redis.call("HSET", req, "state", "ended")
    redis.call("EXPIRE", req, 60)
    reply[#reply + 1] = "queued"
  else
    redis.call("HSET", req, "cancel", 1)
    if redis.call("ZSCORE", c .. "workers", r[2]) then redis.call("RPUSH", c .. "mail:" .. r[2], "cancel " .. ARGV[i] .. " " .. r[5]) end
    reply[#reply + 1] = "mailed"
  end
end
return reply
