-- Entries of a lane that nobody has taken; makes the group where it is missing, never the lane.
local function count_waiting(lane)
  if redis.call("EXISTS", lane) == 0 then return 0 end
  local group = redis.call("XINFO", "GROUPS", lane)[1]
  if not group then redis.call("XGROUP", "CREATE", lane, "farm", "0") end
  return redis.call("XLEN", lane) - (group and group[6] or 0)
end
