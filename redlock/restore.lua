-- Gives a lock back to this node, which has lost it or never had it, while a majority of the others has just confirmed it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence record
-- KEYS[3]  the mark of an owner that was undone
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the note
-- ARGV[4]  for how many ms the fence record is kept at least
-- ARGV[5]  the number of the renewal that found it missing
-- ARGV[6]  the lease's token, as 19 digits, or '' when it has none
--
-- Reply: 1 when the lock is the owner's; 0 when it is another's, or the owner was undone

local lock, fence, mark = KEYS[1], KEYS[2], KEYS[3]
local owner, keep, token = ARGV[1], tonumber(ARGV[4]), ARGV[6]

local value = redis.call('GET', lock)
if value and value:sub(1, #owner) == owner then
	return 1
elseif value or redis.call('EXISTS', mark) == 1 then
	return 0
end
local time = redis.call('TIME')
redis.call('HSET', fence, 'owner', owner, 'since', string.format('%013.0f%06.0f', time[1], time[2]), 'note', ARGV[3])
if token > (redis.call('HGET', fence, 'token') or '') then -- a node that has lost its memory gets back what it needs of it
	redis.call('HSET', fence, 'token', token, 'writer', owner)
end
if redis.call('PTTL', fence) < keep then
	redis.call('PEXPIRE', fence, keep)
end
redis.call('SET', lock, owner .. '#' .. ARGV[5], 'PX', ARGV[2]) -- last: what fails before leaves no lock
return 1
