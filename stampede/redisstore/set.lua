-- Begins to write an entry, whatever loads are under way: makes the key's ticket a new one, which put.lua then writes with. The two are
-- apart because a request may arrive late: it then finds another ticket, or none, and does not undo an invalidation.
-- KEYS: entry, ticket
-- ARGV: a part of the id of the ticket, ms to keep the ticket for
-- Reply: id of the ticket, of which the turn is 1

local now = redis.call('TIME')
local id = ARGV[1] .. '/' .. now[1] .. '.' .. now[2]
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'id', id, 'turn', 1)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return id
