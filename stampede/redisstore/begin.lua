-- Begins a load: makes the key's ticket or finds it.
-- KEYS: entry, failure, ticket
-- ARGV: id of a new ticket, ms to keep the ticket for
-- Reply: PTTL of the entry, entry or nil, failure or nil, id of the ticket, its turn

local id = redis.pcall('HGET', KEYS[3], 'id')
if type(id) == 'table' then -- an error: what is there is no ticket
  redis.call('DEL', KEYS[3])
  id = false
end
if not id then
  id = ARGV[1]
  redis.call('HSET', KEYS[3], 'id', id)
end
local turn = redis.call('HINCRBY', KEYS[3], 'turn', 1)
if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
end
local known = redis.call('MGET', KEYS[1], KEYS[2])
return {redis.call('PTTL', KEYS[1]), known[1], known[2], id, turn}
