-- Suspects run alone: a request that died too often waits in the lane `solo` for a worker that is empty (design §7).
local SUSPECT, GUILTY, PATIENCE_MS, TURN_MS = 3, 5, 5000, 15000

local function to_solo(lane_name, id, fields)
  local req = c .. "req:" .. fields[2]
  drop_entry(lane_name, id)
  local entry = redis.call("XADD", c .. "lane:solo", "*", unpack(fields))
  if redis.call("XLEN", c .. "lane:solo") == 1 then redis.pcall("XGROUP", "CREATE", c .. "lane:solo", "farm", "0") end
  redis.call("SADD", c .. "lanes", "solo")
  redis.call("HSET", req, "lane", "solo", "entry", entry, "owner", "", "state", "queued")
end

-- A suspect for an empty worker; a busy one gets the turn to become empty once the suspect has waited long enough.
local function next_suspect(held)
  if count_waiting(c .. "lane:solo") == 0 then return nil, false end
  if held == 0 then
    local got = redis.call("XREADGROUP", "GROUP", "farm", worker, "COUNT", 1, "STREAMS", c .. "lane:solo", ">")
    redis.call("DEL", c .. "solo:turn")
    return deliver("solo", got[1][2][1][1], got[1][2][1][2], "solo"), true
  end
  local group = redis.call("XINFO", "GROUPS", c .. "lane:solo")[1]
  local head = redis.call("XRANGE", c .. "lane:solo", "(" .. group[8], "+", "COUNT", 1)[1]
  local due = head and now - tonumber(string.match(head[1], "^%d+")) > PATIENCE_MS
  if due then redis.call("SET", c .. "solo:turn", worker, "NX", "PX", TURN_MS) end
  return nil, redis.call("GET", c .. "solo:turn") == worker
end
