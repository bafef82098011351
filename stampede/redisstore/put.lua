-- Offers the result of a load.
-- KEYS: entry, ticket
-- ARGV: id of the ticket, turn, domain of the fence or '', token in 19 digits, what: 'entry', 'failure' or 'nothing',
--       record or message, its ms to live, channel
-- Reply: 1 stored, 2 superseded, 3 invalidated

local id, turn, domain, token, what = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local function ended(outcome)
  redis.pcall('PUBLISH', ARGV[8], '') -- a user may have no right to the channel
  return outcome
end

local have = redis.pcall('HMGET', KEYS[2], 'id', 'stored', 'domain', 'token')
if have.err or have[1] ~= id then
  return ended(3)
end
local stored = tonumber(have[2] or 0) or 0
if domain ~= '' and have[3] == domain and have[4] then
  if token < have[4] then -- digits of one length: Lua's numbers are too short for tokens
    return ended(2)
  end
elseif turn < stored then
  return ended(2)
end

if what == 'entry' then
  redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[7])
  redis.call('HSET', KEYS[2], 'stored', string.format('%.0f', math.max(turn, stored)), 'domain', domain, 'token', token)
elseif what == 'failure' then -- goes before the entry, see record.go; the key lives as long as the longer of the two
  local record, left, late = redis.pcall('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), 0
  if type(record) ~= 'string' then
    record = ''
  elseif string.sub(record, 1, 3) == 'pf1' then
    local after, size = string.match(record, '^pf1' .. string.rep('%d', 13) .. '(' .. string.rep('%d', 13) .. ')(%d%d%d%d%d)')
    late = tonumber(after or 0)
    record = after and string.sub(record, 35 + tonumber(size)) or ''
  end
  left = math.max(0, left - late)
  if left == 0 or string.sub(record, 1, 3) ~= 'pk1' then -- gone, or nothing of ours, which would hide the message
    left = 0
    record = ''
  end
  local ttl = tonumber(ARGV[7])
  local live = math.max(left, ttl)
  record = string.format('pf1%013.0f%013.0f%05.0f', live - ttl, live - left, #ARGV[6]) .. ARGV[6] .. record
  redis.call('SET', KEYS[1], record, 'PX', string.format('%.0f', live))
end
return ended(1)
