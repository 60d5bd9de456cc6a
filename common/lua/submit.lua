#!lua
-- Queues one request; a request id is accepted once. Refused for memory by the server, unlike the other five.
-- KEYS  cell tag
-- ARGV  rid lane message gateway caller ttl_ms max_waiting epoch_floor how boot digest
--       max_waiting 0: no limit. how "replace": a known request starts again under a higher epoch; "attach": only a known one.
--       A gateway that submits a known request of the same caller gets its events from now on.
-- Reply {"ok" | "known" | "full" | "unknown", boot, waiting, state, caller, digest}
local c, rid, lane_name = KEYS[1], ARGV[1], ARGV[2]
local lane, req = c .. "lane:" .. lane_name, c .. "req:" .. rid
redis.call("SET", c .. "boot", ARGV[10], "NX")
local boot = redis.call("GET", c .. "boot")
--@include now waiting drop
local waiting, epoch, ttl_ms = count_waiting(lane), tonumber(ARGV[8]), tonumber(ARGV[6])
local known = redis.call("HMGET", req, "state", "lane", "entry", "owner", "epoch", "gateways", "caller", "digest")
if known[1] and ARGV[9] ~= "replace" then
  local gateways = known[6] .. "," .. ARGV[4]
  if known[7] == ARGV[5] and not string.find("," .. known[6] .. ",", "," .. ARGV[4] .. ",", 1, true) then
    redis.call("HSET", req, "gateways", gateways)
    if known[4] ~= "" then redis.call("RPUSH", c .. "mail:" .. known[4], "gateways " .. rid .. " " .. gateways) end
  end
  return { "known", boot, waiting, known[1], known[7], known[8] }
end
if ARGV[9] == "attach" then return { "unknown", boot, waiting, "", "", "" } end
if known[1] then
  drop_entry(known[2], known[3])
  if known[4] ~= "" then redis.call("RPUSH", c .. "mail:" .. known[4], "cancel " .. rid .. " " .. known[5]) end
  epoch = math.max(epoch, tonumber(known[5]))
  redis.call("DEL", req)
elseif ARGV[7] ~= "0" and waiting >= tonumber(ARGV[7]) then
  return { "full", boot, waiting, "", "", "" }
end
local entry = redis.call("XADD", lane, "*", "rid", rid, "gateway", ARGV[4], "message", ARGV[3])
redis.call("SADD", c .. "lanes", lane_name)
if redis.call("XLEN", lane) == 1 then redis.pcall("XGROUP", "CREATE", lane, "farm", "0") end
redis.call("HSET", req, "state", "queued", "lane", lane_name, "entry", entry, "epoch", epoch, "owner", "",
  "journal", "", "journal_from", 0, "crashes", 0, "gateways", ARGV[4], "caller", ARGV[5], "digest", ARGV[11], "t_submit", now,
  "deadline", ttl_ms == 0 and 0 or now + ttl_ms)
redis.call("XADD", c .. "bell", "MAXLEN", "~", "16", "*", "lane", lane_name)
return { "ok", boot, waiting, "queued", ARGV[5], ARGV[11] }
