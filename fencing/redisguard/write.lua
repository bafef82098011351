-- Shows a fence, and runs a command if it may pass.
--
-- KEYS[1]  the mark
-- KEYS[2]  the key to write; left out to move the mark alone
-- ARGV[1]  domain of the fence
-- ARGV[2]  its token, as 19 digits
-- ARGV[3]  its owner
-- ARGV[4]  the command: SET, HSET or DEL; with KEYS[2] only
-- ARGV[5]  and on: what the command takes after the key
--
-- Reply: the mark as it is now: domain, token, owner. The fence passed if it is the mark.
--
-- Lua's numbers are doubles, exact up to 2^53: tokens are digits of a fixed width, which compare as strings.

local mark, key = KEYS[1], KEYS[2]
local domain, token, owner = ARGV[1], ARGV[2], ARGV[3]

local seen = redis.call('HMGET', mark, 'domain', 'token', 'owner')
if seen[1] or seen[2] or seen[3] then
	if not (seen[1] and seen[2] and seen[3]) or #seen[2] ~= 19 or seen[2]:find('%D') or seen[2] > '9223372036854775807' then
		return redis.error_reply('ERR ' .. mark .. ' holds no mark')
	elseif seen[1] ~= domain or seen[2] > token or (seen[2] == token and seen[3] ~= owner) then
		return seen
	end
end

-- Also when nothing changes: a replica refuses to.
redis.call('HSET', mark, 'domain', domain, 'token', token, 'owner', owner)
if key then
	local few = 1000 -- in pairs; all at once would not fit on Lua's stack
	for first = 5, math.max(5, #ARGV), few do
		redis.call(ARGV[4], key, unpack(ARGV, first, math.min(first + few - 1, #ARGV)))
	end
end
return {domain, token, owner}
