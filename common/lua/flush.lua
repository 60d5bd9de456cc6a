#!lua flags=allow-oom
-- Writes one step: journal first, then a frame per gateway. Renews the lease and hands over the mail.
-- KEYS  cell tag
-- ARGV  worker lease_ms step last_step min_step events n_mail record n_adopted rid... n_progressed rid... (gateway frame)...
--       adopted: requests whose journal is this one from now on. progressed: reached further than at adoption.
--       last_step: the last one that was acknowledged. n_mail: items handled since. min_step: older entries go.
--       record "": as before. It lives as long as the lease.
-- Reply {"fenced"} | {"short"} | {"ok", mail...}      "short": the server lost entries, nothing was written
local c, worker, step = KEYS[1], ARGV[1], tonumber(ARGV[3])
if not redis.call("ZSCORE", c .. "workers", worker) then return { "fenced" } end
--@include now
local journal, mail = c .. "journal:" .. worker, c .. "mail:" .. worker

local newest = redis.call("XREVRANGE", journal, "+", "-", "COUNT", 1)[1]
local written = newest and tonumber(string.match(newest[1], "^%d+")) or 0
if written < tonumber(ARGV[4]) then return { "short" } end

if written < step then
  redis.call("XADD", journal, step .. "-0", "events", ARGV[6])
  redis.call("XTRIM", journal, "MINID", "~", ARGV[5])
  if ARGV[7] ~= "0" then redis.call("LTRIM", mail, ARGV[7], -1) end
  if ARGV[8] ~= "" then redis.call("SET", c .. "worker:" .. worker, ARGV[8], "PX", math.max(ARGV[2], 5000)) end
  local at = 9
  for i = at + 1, at + ARGV[at] do
    local req = c .. "req:" .. ARGV[i]
    if redis.call("HGET", req, "owner") == worker then redis.call("HSET", req, "journal", worker, "journal_from", step) end
  end
  at = at + ARGV[at] + 1
  for i = at + 1, at + ARGV[at] do
    local req = c .. "req:" .. ARGV[i]
    if redis.call("HGET", req, "owner") == worker then redis.call("HSET", req, "crashes", 0) end
  end
  at = at + ARGV[at] + 1
  for i = at, #ARGV, 2 do redis.call("PUBLISH", c .. "ev:" .. ARGV[i], ARGV[i + 1]) end
end
redis.call("ZADD", c .. "workers", "XX", now + ARGV[2], worker)
return { "ok", unpack(redis.call("LRANGE", mail, 0, 99)) }
