-- Says who has the lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence record; left out when it is not on the same node
--
-- Reply: what the lock holds, what is left of its TTL in ms, and the record's owner, token, time of the grant in
-- microseconds, and note; nil for what is not there.

local reply = {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), false, false, false, false}
if KEYS[2] then
	local record = redis.call('HMGET', KEYS[2], 'owner', 'token', 'since', 'note')
	for i = 1, 4 do
		reply[2 + i] = record[i]
	end
end
return reply
