-- Writes a token into the fence record, if this node's lock is the owner's and nobody has written since the grant.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence record
-- ARGV[1]  the owner
-- ARGV[2]  the token that the record held at the grant, as 19 digits, or ''
-- ARGV[3]  the token to write, as 19 digits
-- ARGV[4]  for how many ms the record is kept
--
-- Reply: 1 when the record holds the token, now or already; else 0

local lock, fence, owner = KEYS[1], KEYS[2], ARGV[1]

local value = redis.call('GET', lock)
if not value or value:sub(1, #owner) ~= owner then
	return 0
end
local record = redis.call('HMGET', fence, 'token', 'writer')
local token = record[1] or ''
if token ~= ARGV[2] and not (token == ARGV[3] and record[2] == owner) then
	return 0
end
redis.call('HSET', fence, 'token', ARGV[3], 'writer', owner)
redis.call('PEXPIRE', fence, ARGV[4])
return 1
