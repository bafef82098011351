package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// commands are what the rows without paddock are made of: bare commands to a key-value server, as people write them.
type commands interface {
	get(ctx context.Context, key string) (value string, found bool, err error)
	set(ctx context.Context, key, value string, ttl time.Duration) error
	setNX(ctx context.Context, key, value string, ttl time.Duration) (set bool, err error)
	exists(ctx context.Context, key string) (bool, error)
	del(ctx context.Context, keys ...string) (deleted bool, err error)
	compareAndDel(ctx context.Context, key, value string) (deleted bool, err error)
}

// memory is such a server within this process. Every command takes a simulated round trip, as those of memlock and memstore do.
type memory struct {
	roundTrip time.Duration

	mu   sync.Mutex
	keys map[string]memoryValue
}

type memoryValue struct {
	value   string
	expires time.Time
}

func newMemory(roundTrip time.Duration) *memory {
	return &memory{roundTrip: roundTrip, keys: map[string]memoryValue{}}
}

// do carries out a command.
func (m *memory) do(ctx context.Context, command func()) error {
	if err := pause(ctx, m.roundTrip); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	command()
	return nil
}

// live returns what key holds now. The lock is held.
func (m *memory) live(key string) (string, bool) {
	v, ok := m.keys[key]
	if ok && !time.Now().Before(v.expires) {
		delete(m.keys, key)
		return "", false
	}
	return v.value, ok
}

func (m *memory) put(key, value string, ttl time.Duration) {
	m.keys[key] = memoryValue{value, time.Now().Add(ttl)}
}

func (m *memory) get(ctx context.Context, key string) (value string, found bool, err error) {
	err = m.do(ctx, func() { value, found = m.live(key) })
	return value, found, err
}

func (m *memory) set(ctx context.Context, key, value string, ttl time.Duration) error {
	return m.do(ctx, func() { m.put(key, value, ttl) })
}

func (m *memory) setNX(ctx context.Context, key, value string, ttl time.Duration) (set bool, err error) {
	err = m.do(ctx, func() {
		if _, taken := m.live(key); !taken {
			m.put(key, value, ttl)
			set = true
		}
	})
	return set, err
}

func (m *memory) exists(ctx context.Context, key string) (found bool, err error) {
	err = m.do(ctx, func() { _, found = m.live(key) })
	return found, err
}

func (m *memory) del(ctx context.Context, keys ...string) (deleted bool, err error) {
	err = m.do(ctx, func() {
		for _, key := range keys {
			if _, found := m.live(key); found {
				delete(m.keys, key)
				deleted = true
			}
		}
	})
	return deleted, err
}

func (m *memory) compareAndDel(ctx context.Context, key, value string) (deleted bool, err error) {
	err = m.do(ctx, func() {
		if was, found := m.live(key); found && was == value {
			delete(m.keys, key)
			deleted = true
		}
	})
	return deleted, err
}

// pause waits for d or for ctx's end, which is an error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// bareRedis is a Redis server.
type bareRedis struct{ client redis.UniversalClient }

func (b bareRedis) get(ctx context.Context, key string) (string, bool, error) {
	value, err := b.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return value, err == nil, err
}

func (b bareRedis) set(ctx context.Context, key, value string, ttl time.Duration) error {
	return b.client.Set(ctx, key, value, ttl).Err()
}

func (b bareRedis) setNX(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	err := b.client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (b bareRedis) exists(ctx context.Context, key string) (bool, error) {
	n, err := b.client.Exists(ctx, key).Result()
	return n > 0, err
}

func (b bareRedis) del(ctx context.Context, keys ...string) (deleted bool, err error) {
	for _, key := range keys { // on a Cluster they need not live together
		n, err := b.client.Del(ctx, key).Result()
		if err != nil {
			return deleted, err
		}
		deleted = deleted || n > 0
	}
	return deleted, nil
}

var compareAndDel = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

func (b bareRedis) compareAndDel(ctx context.Context, key, value string) (bool, error) {
	n, err := compareAndDel.Run(ctx, b.client, []string{key}, value).Int()
	return n > 0, err
}
