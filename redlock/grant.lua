-- Takes this node's lock if it is free, and says what the fence record holds.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence record
-- KEYS[3]  the mark of an owner that was undone
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the note
-- ARGV[4]  for how many ms the fence record is kept at least
--
-- Reply: {1, token, clock} when the lock is the owner's: the record's token, or '', and the time in microseconds, as 19 digits
--        {0, ms, owner} when it is another's, for so long
--        {-1} when the owner was undone, or had the lock before and has it no more
--        {-2} when the lock holds a value that is no owner

local lock, fence, mark = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])

local value = redis.call('GET', lock)
local mine = value and value:sub(1, #owner) == owner
if value and not mine then
	local left = redis.call('PTTL', lock)
	if left < 0 or not value:find('^%x+%-%x+%-%x+%-%x+%-%x+') then
		return {-2}
	end
	return {0, left, value:match('^[^#]*')}
end

local record = redis.call('HMGET', fence, 'token', 'owner')
if redis.call('EXISTS', mark) == 1 or (record[2] == owner and not mine) then
	return {-1}
end

local time = redis.call('TIME')
local now = string.format('%013.0f%06.0f', time[1], time[2])
if not mine then
	redis.call('HSET', fence, 'owner', owner, 'since', now, 'note', ARGV[3])
	if redis.call('PTTL', fence) < keep then
		redis.call('PEXPIRE', fence, keep)
	end
	redis.call('SET', lock, owner, 'PX', ttl) -- last: what fails before leaves no lock
elseif redis.call('PTTL', lock) < ttl then
	redis.call('PEXPIRE', lock, ttl)
end
return {1, record[1] or '', now}
