-- Entries of dead workers, in the lanes that `serves` names; a dead worker that owns nothing more is forgotten.
local function owned_by(consumer, lane_name)
  if redis.call("EXISTS", c .. "lane:" .. lane_name) == 0 then return {} end
  return redis.call("XPENDING", c .. "lane:" .. lane_name, "farm", "-", "+", 100000, consumer)
end

-- A worker that compiles while it serves may outlast any lease: then it is as if it had left, nobody's crash.
local function expire_leases()
  for _, dead in ipairs(redis.call("ZRANGEBYSCORE", c .. "workers", "-inf", "(" .. now)) do
    if dead ~= worker then
      redis.call("ZREM", c .. "workers", dead)
      redis.call("HSET", c .. "orphans", dead, redis.call("HGET", c .. "cold", dead) and "clean" or "expired")
    end
  end
end

local function forget(dead, lanes)
  for _, lane_name in ipairs(lanes) do redis.call("XGROUP", "DELCONSUMER", c .. "lane:" .. lane_name, "farm", dead) end
  redis.call("HDEL", c .. "orphans", dead)
  redis.call("HDEL", c .. "cold", dead)
  redis.call("DEL", c .. "mail:" .. dead, c .. "worker:" .. dead)
  redis.call("EXPIRE", c .. "journal:" .. dead, 3600)
end

local function take_over(dead, how, lanes, serves, room, taken)
  local left = 0
  for _, lane_name in ipairs(lanes) do
    for _, pending in ipairs(owned_by(dead, lane_name)) do
      local entry = serves[lane_name] and #taken < room and redis.call("XCLAIM", c .. "lane:" .. lane_name, "farm", worker, 0, pending[1])[1]
      local req = entry and c .. "req:" .. entry[2][2]
      local crashes = entry and tonumber(redis.call("HGET", req, "crashes") or 0)
      if entry and how == "expired" and redis.call("EXISTS", req) == 1 then crashes = redis.call("HINCRBY", req, "crashes", 1) end
      if not entry then
        left = left + 1
      elseif crashes >= SUSPECT and crashes < GUILTY then
        to_solo(lane_name, entry[1], entry[2])
      else
        taken[#taken + 1] = deliver(lane_name, entry[1], entry[2], crashes >= GUILTY and "guilty" or "taken")
        if crashes >= GUILTY then dead_letter(entry[2], "died alone") end
      end
    end
  end
  if left == 0 then forget(dead, redis.call("SMEMBERS", c .. "lanes")) end
end
