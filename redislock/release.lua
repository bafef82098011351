-- Deletes the lock if it is the owner's, and tells those who wait.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner
-- ARGV[2]  the channel
-- ARGV[3]  the message
--
-- Reply: 1; or 0 when the lock was not the owner's.

local value = redis.call('GET', KEYS[1])
if not value or value:sub(1, #ARGV[1]) ~= ARGV[1] then
	return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], ARGV[3]) -- not every user may
return 1
