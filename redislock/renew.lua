-- Raises what is left of the lock's TTL, or sets it, if the lock is the owner's.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
-- ARGV[3]  '1': what is left may be lowered to the TTL; else '0'
-- ARGV[4]  the number of this renewal, or 0. The lock keeps the highest (as "owner#number"), and renewals of a lower one,
--          which were sent earlier, do nothing from then on. Whatever may lower the TTL has a number.
--
-- Reply: 1; 0 when the lock is not the owner's; -1 when a later renewal was here before.

local lock, owner, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local number = tonumber(ARGV[4])

local value = redis.call('GET', lock)
if not value or value:sub(1, #owner) ~= owner then
	return 0
end
local highest = tonumber(value:sub(#owner + 2)) or 0
if number > 0 and number < highest then
	return -1
end
local longer = redis.call('PTTL', lock) < ttl
if number > highest then
	if not longer and ARGV[3] == '0' then
		ttl = redis.call('PTTL', lock)
	end
	redis.call('PEXPIRE', lock, ttl) -- a server without memory refuses SET, but not behind another write
	redis.call('SET', lock, owner .. '#' .. ARGV[4], 'PX', ttl)
elseif longer then -- a repeated one raises too, and does not lower a second time
	redis.call('PEXPIRE', lock, ttl)
end
return 1
