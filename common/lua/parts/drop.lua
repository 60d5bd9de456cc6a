local function dead_letter(fields, why)
  redis.call("XADD", c .. "dead", "MAXLEN", "~", "10000", "*", "rid", fields[2], "why", why, "message", fields[6])
end

-- Takes an entry out of its lane; a lane without entries is gone.
local function drop_entry(lane_name, entry)
  local lane = c .. "lane:" .. lane_name
  if redis.call("EXISTS", lane) == 0 then return end
  redis.call("XACK", lane, "farm", entry)
  redis.call("XDEL", lane, entry)
  if redis.call("XLEN", lane) == 0 then
    redis.call("DEL", lane)
    redis.call("SREM", c .. "lanes", lane_name)
  end
end
