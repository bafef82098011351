-- Takes the lock if it is free, without its fence record: while a Cluster slot migrates, the two may be on two nodes.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
--
-- Reply: 'OK' when the lock is the owner's; otherwise for how many ms it is another's; or
--   -2  the lock holds a value that is no owner

local lock, owner, ttl = KEYS[1], ARGV[1], ARGV[2]

if redis.call('SET', lock, owner, 'NX', 'PX', ttl) then
	return 'OK'
end
local value, left = redis.call('GET', lock), redis.call('PTTL', lock)
if value:sub(1, #owner) == owner then
	if left < tonumber(ttl) then
		redis.call('PEXPIRE', lock, ttl)
	end
	return 'OK'
end
if left < 0 or not value:find('^%x+%-%x+%-%x+%-%x+%-%x+') then
	return -2
end
return left
