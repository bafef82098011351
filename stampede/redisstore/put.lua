-- Offers the result of a load.
-- KEYS: entry, failure, ticket
-- ARGV: id of the ticket, turn, domain of the fence or '', token in 19 digits, what: 'entry', 'failure' or 'nothing',
--       record or message, its ms to live, channel
-- Reply: 1 stored, 2 superseded, 3 invalidated

local id, turn, domain, token, what = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local function ended(outcome)
  redis.pcall('PUBLISH', ARGV[8], '') -- a user may have no right to the channel
  return outcome
end

local have = redis.pcall('HMGET', KEYS[3], 'id', 'stored', 'domain', 'token')
if have.err or have[1] ~= id then
  return ended(3)
end
local stored = tonumber(have[2] or 0)
if domain ~= '' and have[3] == domain then
  if token < have[4] then -- digits of one length: Lua's numbers are too short for tokens
    return ended(2)
  end
elseif turn < stored then
  return ended(2)
end
if what == 'entry' then
  redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[7])
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[3], 'stored', string.format('%.0f', math.max(turn, stored)), 'domain', domain, 'token', token)
elseif what == 'failure' then
  redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[7])
end
return ended(1)
