#!lua flags=allow-oom
-- Gives a worker requests: those of dead workers first, then new ones. Changes only owner and epoch.
-- KEYS  cell tag
-- ARGV  worker may_expire held min max lane...        (lanes this worker serves, best first)
-- Reply {"fenced"} | {"ok" | "owned", bell, waiting, delivery...}
--       "owned": the worker's count was wrong, so all it owns is named. kinds: new, taken, owned, cancelled,
--       corrupt, solo (runs alone), guilty (died alone)
local c, worker, min, max = KEYS[1], ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
if not redis.call("ZSCORE", c .. "workers", worker) then return { "fenced" } end
--@include now waiting drop deliver solo takeover
local last = redis.call("XREVRANGE", c .. "bell", "+", "-", "COUNT", 1)[1]
local bell, lanes = last and last[1] or "0-0", redis.call("SMEMBERS", c .. "lanes")

local owned = {}
for _, lane_name in ipairs(lanes) do
  for _, pending in ipairs(owned_by(worker, lane_name)) do owned[#owned + 1] = { lane_name, pending[1] } end
end
local reply = { "ok", bell, 0 }
if #owned ~= tonumber(ARGV[3]) then
  reply[1] = "owned"
  for _, at in ipairs(owned) do
    local entry = redis.call("XRANGE", c .. "lane:" .. at[1], at[2], at[2])[1]
    if entry then reply[#reply + 1] = deliver(at[1], entry[1], entry[2], "owned") end
  end
  return reply
end

local serves, taken, waiting = { solo = true }, {}, {}
for i = 6, #ARGV do
  serves[ARGV[i]], waiting[i] = true, count_waiting(c .. "lane:" .. ARGV[i])
  reply[3] = reply[3] + waiting[i]
end
if ARGV[2] == "1" then expire_leases() end
local orphans = redis.call("HGETALL", c .. "orphans")
for i = 1, #orphans, 2 do take_over(orphans[i], orphans[i + 1], lanes, serves, max, taken) end
local suspect, alone = nil, false
if max > 0 and #taken == 0 then suspect, alone = next_suspect(#owned) end
if suspect then taken[1] = suspect end
local admit = not alone and #taken + reply[3] >= min
for i = 6, #ARGV do
  if admit and waiting[i] > 0 and #taken < max then
    local got = redis.call("XREADGROUP", "GROUP", "farm", worker, "COUNT", max - #taken, "STREAMS", c .. "lane:" .. ARGV[i], ">")
    for _, entry in ipairs(got and got[1][2] or {}) do
      reply[3] = reply[3] - 1
      taken[#taken + 1] = deliver(ARGV[i], entry[1], entry[2], "new")
    end
  end
end
for _, delivery in ipairs(taken) do reply[#reply + 1] = delivery end
return reply
