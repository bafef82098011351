-- Deletes this node's lock if it is the owner's, tells those who wait, and marks the owner as undone if asked to.
--
-- KEYS[1]  the lock
-- KEYS[2]  the mark
-- ARGV[1]  the owner
-- ARGV[2]  the channel
-- ARGV[3]  the message
-- ARGV[4]  for how many ms requests of the owner are refused from now on; 0: they are not, since none is under way
--
-- Reply: 1; or 0 when the lock was not the owner's

local lock, owner = KEYS[1], ARGV[1]

local value = redis.call('GET', lock)
local had = value and value:sub(1, #owner) == owner
if had then
	redis.call('DEL', lock) -- first: a node out of memory refuses a SET only to scripts that have written nothing
end
if ARGV[4] ~= '0' then
	redis.call('SET', KEYS[2], '', 'PX', ARGV[4])
end
if not had then
	return 0
end
redis.pcall('PUBLISH', ARGV[2], ARGV[3]) -- not every user may
return 1
