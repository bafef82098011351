-- Writes an entry, whatever loads are under way.
-- KEYS: entry, ticket
-- ARGV: record, its ms to live, channel
-- Reply: 1

redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.pcall('PUBLISH', ARGV[3], '')
return 1
