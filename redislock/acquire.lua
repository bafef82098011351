-- Takes the lock if it is free, and draws its token.
--
-- KEYS[1]  the fence record
-- KEYS[2]  the lock; left out when claim.lua has taken it
-- ARGV[1]  the owner
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the note
--
-- Reply: the token, as 19 digits, when the lock is the owner's; otherwise for how many ms it is another's; or
--   -1  the owner was undone, or had the lock before and has it no more
--   -2  the lock holds a value that is no owner
--   -3  the fence record holds a token that is none, or the last
--
-- Lua's numbers are doubles, exact up to 2^53, and microseconds come near. So tokens are digits of a fixed width, which
-- compare as strings, and are counted up in two halves.

local fence, lock = KEYS[1], KEYS[2]
local owner, ttl, note = ARGV[1], ARGV[2], ARGV[3]

local function mine(value)
	return value and value:sub(1, #owner) == owner
end

local function raise()
	if redis.call('PTTL', lock) < tonumber(ttl) then
		redis.call('PEXPIRE', lock, ttl)
	end
end

local was = redis.call('HMGET', fence, 'token', 'owner', 'undone:' .. owner)
local last = was[1]
if was[3] then
	return -1
end
if last and (#last ~= 19 or last:find('%D') or last > '9223372036854775807') then
	return -3
end
if was[2] == owner then -- asked again
	if lock and not mine(redis.call('GET', lock)) then
		return -1
	elseif lock then
		raise()
	end
	return last
end

if lock and not redis.call('SET', lock, owner, 'NX', 'PX', ttl) then
	local value, left = redis.call('GET', lock), redis.call('PTTL', lock)
	if mine(value) then -- but not in the record: claim.lua took it, or the record was lost
		raise()
	elseif left < 0 or not value:find('^%x+%-%x+%-%x+%-%x+%-%x+') then
		return -2
	else
		return left
	end
end

local time = redis.call('TIME')
local now = string.format('%013.0f%06.0f', time[1], time[2])
local token = now
if last and last >= now then
	local high, low = tonumber(last:sub(1, 10)), tonumber(last:sub(11)) + 1
	if low == 1e9 then
		high, low = high + 1, 0
	end
	token = string.format('%010.0f%09.0f', high, low)
	if token > '9223372036854775807' then -- the last there is
		if lock then
			redis.call('DEL', lock)
		end
		return -3
	end
end
redis.call('HSET', fence, 'token', token, 'owner', owner, 'since', now, 'note', note)
redis.call('PEXPIRE', fence, 604800000) -- 7 days
return token
