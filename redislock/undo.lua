-- Marks an owner as undone, so that acquire.lua refuses it from now on, and deletes the lock if it is the owner's.
--
-- KEYS[1]  the fence record
-- KEYS[2]  the lock; left out when release.lua sees to it
-- ARGV[1]  the owner
-- ARGV[2]  the channel
-- ARGV[3]  the message
--
-- Reply: 1; or 0 when the lock was not the owner's.

local fence, lock, owner = KEYS[1], KEYS[2], ARGV[1]
local hour, many, few = 3600000, 512, 256

local had = 0
if lock then
	local value = redis.call('GET', lock)
	if value and value:sub(1, #owner) == owner then
		redis.call('DEL', lock)
		redis.pcall('PUBLISH', ARGV[2], ARGV[3]) -- not every user may
		had = 1
	end
end

local time = redis.call('TIME')
redis.call('HSET', fence, 'undone:' .. owner, string.format('%013.0f%06.0f', time[1], time[2]))
if redis.call('PTTL', fence) < hour then -- else there was a grant, whose 7 days are longer
	redis.call('PEXPIRE', fence, hour)
end

if redis.call('HLEN', fence) > many then -- the oldest go
	local record, marks = redis.call('HGETALL', fence), {}
	for i = 1, #record, 2 do
		if record[i]:sub(1, 7) == 'undone:' then
			marks[#marks + 1] = {record[i], record[i + 1]}
		end
	end
	table.sort(marks, function(a, b) return a[2] > b[2] end)
	for i = few + 1, #marks do
		redis.call('HDEL', fence, marks[i][1])
	end
end
return had
