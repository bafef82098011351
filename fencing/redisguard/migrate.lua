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
elseif not (seen[1] and seen[2] and seen[3]) or #seen[2] ~= 19 or seen[2]:find('%D') or seen[2] > '9223372036854775807' then
	return redis.error_reply('ERR ' .. mark .. ' holds no mark')
elseif seen[1] == ARGV[1] then
	seen = {ARGV[2], string.rep('0', 19), ''} -- below all tokens
	redis.call('HSET', mark, 'domain', seen[1], 'token', seen[2], 'owner', seen[3])
end
return seen
