-- Raises what is left of the lock's TTL, or sets it, if this node's lock is the owner's.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
-- ARGV[3]  '1': what is left may be lowered to the TTL; else '0'
-- ARGV[4]  the number of this renewal. The lock keeps the highest, and those with a lower one, which were sent earlier, do
--          nothing from then on. A repeated one raises, and does not lower a second time.
--
-- Reply: 1; 0 when the lock is free; -1 when a later renewal was here before; -2 when the lock is another's

local lock, owner, ttl, number = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])

local value = redis.call('GET', lock)
if not value then
	return 0
elseif value:sub(1, #owner) ~= owner then
	return -2
end
local highest = tonumber(value:sub(#owner + 2)) or 0
if number < highest then
	return -1
end
if ARGV[3] == '0' or number == highest then
	ttl = math.max(ttl, redis.call('PTTL', lock))
end
redis.call('PEXPIRE', lock, ttl) -- a server without memory refuses SET, but not behind another write
redis.call('SET', lock, owner .. '#' .. ARGV[4], 'PX', ttl)
return 1
