-- Says who has this node's lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence record
--
-- Reply: what the lock holds, what is left of its TTL in ms, and the record's owner, time of the grant in microseconds, note,
-- writer and token; nil for what is not there

local record = redis.call('HMGET', KEYS[2], 'owner', 'since', 'note', 'writer', 'token')
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), unpack(record)}
