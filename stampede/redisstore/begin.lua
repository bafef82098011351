-- Begins a load: makes the key's ticket or finds it.
-- KEYS: entry, ticket
-- ARGV: a part of the id of a new ticket, ms to keep the ticket for
-- Reply: PTTL of the entry, entry or nil, id of the ticket, its turn

local have = redis.pcall('HMGET', KEYS[2], 'id', 'turn')
local id = have[1]
if have.err or have[2] and (#have[2] > 15 or have[2]:find('%D')) then -- what is there is no ticket
  redis.call('DEL', KEYS[2])
  id = false
end
if not id then
  -- This request may be here for the second time, after an invalidation: that is not to make the ticket again that it dropped.
  local now = redis.call('TIME')
  id = ARGV[1] .. '/' .. now[1] .. '.' .. now[2]
  redis.call('HSET', KEYS[2], 'id', id)
end
local turn = redis.call('HINCRBY', KEYS[2], 'turn', 1)
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
local entry = redis.pcall('GET', KEYS[1])
if type(entry) == 'table' then -- of another type
  entry = ''
end
return {redis.call('PTTL', KEYS[1]), entry, id, turn}
