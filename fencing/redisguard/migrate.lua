-- Moves a mark to another domain.
--
-- KEYS[1]  the mark
-- ARGV[1]  the domain that it is of
-- ARGV[2]  the domain that it is to be of
--
-- Reply: the mark as it is now: domain, token, owner; or nothing when there is none.

local mark = KEYS[1]
local seen = redis.call('HMGET', mark, 'domain', 'token', 'owner')
if not (seen[1] or seen[2] or seen[3]) then
	return {}
elseif seen[1] == ARGV[1] then
	seen = {ARGV[2], string.rep('0', 19), ''} -- below all tokens
	redis.call('HSET', mark, 'domain', seen[1], 'token', seen[2], 'owner', seen[3])
end
return seen
