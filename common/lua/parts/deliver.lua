-- Makes `worker` the owner of an entry under a new epoch and tells it all it must know.
-- {rid kind epoch waited_ms remaining_ms crashes journal journal_from gateways message}; remaining_ms 0: no deadline, -1: passed
local function deliver(lane_name, id, fields, kind)
  local rid, gateway, message = fields[2], fields[4], fields[6]
  local req = c .. "req:" .. rid
  local r = redis.call("HMGET", req, "epoch", "t_submit", "deadline", "crashes", "journal", "journal_from", "gateways", "cancel")
  if not r[1] then
    dead_letter(fields, "no record")
    drop_entry(lane_name, id)
    return { rid, "corrupt", 0, 0, 0, 0, "", "0", gateway, "" }
  end
  local epoch, deadline = tonumber(r[1]), tonumber(r[3])
  if kind ~= "owned" then
    epoch = math.max(epoch + 1, now)
    redis.call("HSET", req, "owner", worker, "epoch", epoch, "state", "running")
  end
  local remaining = deadline == 0 and 0 or (now < deadline and deadline - now or -1)
  return { rid, r[8] and "cancelled" or kind, epoch, now - r[2], remaining, tonumber(r[4]), r[5], r[6], r[7], message }
end
