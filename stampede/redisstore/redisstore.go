// Package redisstore is a stampede.Store on Redis: 6.2 or later, or Valkey; standalone, behind Sentinel, or a Cluster.
//
//	store, err := redisstore.New(client, nil)
//
// # Commands
//
// Get is one round trip: PTTL and MGET in a pipeline. Begin, Put and Set are a script each, Invalidate is a DEL and a
// PUBLISH for each key in one pipeline. Watchers have one connection for all keys of a Store, with one channel subscribed to for each key
// that is waited for.
//
// # What is kept
//
// For a key three records, in one hash slot whatever braces the key has in it:
//
//	<prefix>/cache{/<key>}:e1   the entry: a string, see record.go for its layout; expires after TTL and stale window
//	<prefix>/cache{/<key>}:f1   the message of the last failed load: a string; expires after its TTL
//	<prefix>/cache{/<key>}:t1   the ticket: a hash of id, turn, and of the last stored result turn, fence domain and token; expires
//	                            some seconds after the load must have ended
//
// The digit is the layout's version. Messages on the channel <prefix>/cache{/<key>} are empty. A user without permission for
// the channel can do everything but be woken, and polls.
//
// # What it rests on
//
// A Cluster client should have ContextTimeoutEnabled: without it each call needs a goroutine, so that it can be abandoned when its
// context ends.
//
// Redis replicates asynchronously. A failover may lose an acknowledged Invalidate with everything after it: the old entry is then served for what was left
// of its TTL. Replicas lag behind in the same way, so clients that read from them are refused by [New] where it can see
// that they do. It cannot see where a Client was connected to a replica by its address: there a load cannot begin, and what reads find may be old.
package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/stampede"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix is what the names of all keys and channels begin with. It has no braces. Defaults to "paddock".
	Prefix string
}

// Store is a stampede.Store. All methods may be called concurrently. They end soon after the deadline of their context, whatever
// the time limits of the client; the end of a context without a deadline may be noticed only when the server has answered.
type Store struct {
	bound   bound
	prefix  string
	watcher *watcher
}

var (
	//go:embed begin.lua
	beginSource string
	//go:embed put.lua
	putSource string
	//go:embed set.lua
	setSource string

	beginScript = redis.NewScript(beginSource)
	putScript   = redis.NewScript(putSource)
	setScript   = redis.NewScript(setSource)
)

// New returns a Store on what client is connected to. It sends nothing. The client remains the caller's to close, after the
// Store.
func New(client redis.UniversalClient, opts *Options) (*Store, error) {
	s := &Store{prefix: "paddock"}
	if opts != nil && opts.Prefix != "" {
		s.prefix = opts.Prefix
	}
	if client == nil || reflect.ValueOf(client).IsNil() {
		return nil, fmt.Errorf("%w: redisstore: no client", stampede.ErrInvalid)
	}
	if strings.ContainsAny(s.prefix, "{}") {
		return nil, fmt.Errorf("%w: redisstore: Prefix %q has braces, which would decide the hash slot", stampede.ErrInvalid, s.prefix)
	}
	switch c := client.(type) {
	case *redis.ClusterClient:
		if o := c.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, fmt.Errorf("%w: redisstore: the client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), which "+
				"lag behind: what was invalidated would be served", stampede.ErrInvalid)
		}
	case *redis.Ring:
		return nil, fmt.Errorf("%w: redisstore: a Ring moves keys to other shards and back when one fails, which brings back what was "+
			"invalidated", stampede.ErrInvalid)
	}
	s.bound, s.watcher = newBound(client), newWatcher(client)
	return s, nil
}

// Close ends the subscription. Watch is refused from then on; all else goes on working.
func (s *Store) Close() error { return s.watcher.close() }

func (s *Store) channel(key string) string { return s.prefix + "/cache{/" + key + "}" }

func (s *Store) keys(key string) (entry, failure, ticket string) {
	base := s.channel(key)
	return base + ":e1", base + ":f1", base + ":t1"
}

// Get is that of stampede.Store.
func (s *Store) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	return call(ctx, &s.bound, func(client redis.UniversalClient) ([]stampede.Entry, error) {
		pipe := client.Pipeline()
		left, known := make([]*redis.DurationCmd, len(keys)), make([]*redis.SliceCmd, len(keys))
		for i, key := range keys {
			entry, failure, _ := s.keys(key)
			left[i] = pipe.PTTL(ctx, entry) // before the value: what comes between is fresher than it seems
			known[i] = pipe.MGet(ctx, entry, failure)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("redisstore: get: %w", err)
		}
		entries := make([]stampede.Entry, len(keys))
		for i := range keys {
			v := known[i].Val()
			entries[i] = read(left[i].Val(), v[0], v[1])
		}
		return entries, nil
	})
}

// read makes an entry of what was found. A left below zero is redis.Nil's in go-redis: -1 never expires, -2 was not there.
func read(left time.Duration, record, failure any) stampede.Entry {
	var e stampede.Entry
	switch r, ok := record.(string); {
	case ok && left == -1, ok && !decode(r, &e):
		e = stampede.Entry{Kind: stampede.Foreign}
	case ok && left == -2: // written between the two commands
		e.Left = e.TTL
	case ok:
		e.Left = min(e.TTL, left-e.StaleFor)
	case left == -1: // of another type
		e.Kind = stampede.Foreign
	}
	e.Failure, _ = failure.(string)
	return e
}

// Begin is that of stampede.Store.
func (s *Store) Begin(ctx context.Context, key, id string, keep time.Duration) (stampede.Entry, stampede.Ticket, error) {
	var t stampede.Ticket
	var e stampede.Entry
	entry, failure, ticket := s.keys(key)
	reply, err := call(ctx, &s.bound, func(client redis.UniversalClient) ([]any, error) {
		return beginScript.Run(ctx, client, []string{entry, failure, ticket}, id, milliseconds(keep)).Slice()
	})
	if err != nil {
		return e, t, fmt.Errorf("redisstore: begin: %w", err)
	}
	if len(reply) != 5 {
		return e, t, errReply
	}
	pttl, ok1 := reply[0].(int64)
	t.ID, _ = reply[3].(string)
	var ok2 bool
	if t.Turn, ok2 = reply[4].(int64); !ok1 || !ok2 {
		return e, t, errReply
	}
	left := time.Duration(pttl)
	if pttl >= 0 {
		left *= time.Millisecond
	}
	return read(left, reply[1], reply[2]), t, nil
}

var errReply = errors.New("redisstore: a reply that no script of ours gives")

// Put is that of stampede.Store.
func (s *Store) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	what, body, ttl := "nothing", []byte(nil), time.Duration(0)
	switch e.Kind {
	case stampede.Value, stampede.NotFound:
		what, body, ttl = "entry", encode(e), e.TTL+e.StaleFor
	case stampede.Failed:
		what, body, ttl = "failure", []byte(e.Failure), e.TTL
	}
	entry, failure, ticket := s.keys(key)
	n, err := call(ctx, &s.bound, func(client redis.UniversalClient) (int, error) {
		return putScript.Run(ctx, client, []string{entry, failure, ticket}, t.ID, t.Turn, e.Fence.Domain,
			fmt.Sprintf("%019d", e.Fence.Token), what, body, milliseconds(ttl), s.channel(key)).Int()
	})
	if err != nil {
		return 0, fmt.Errorf("redisstore: put: %w", err)
	}
	return stampede.Outcome(n), nil
}

// Set is that of stampede.Store.
func (s *Store) Set(ctx context.Context, key string, e stampede.Entry) error {
	entry, failure, ticket := s.keys(key)
	_, err := call(ctx, &s.bound, func(client redis.UniversalClient) (int, error) {
		return setScript.Run(ctx, client, []string{entry, failure, ticket}, encode(e), milliseconds(e.TTL+e.StaleFor),
			s.channel(key)).Int()
	})
	if err != nil {
		return fmt.Errorf("redisstore: set: %w", err)
	}
	return nil
}

// Invalidate is that of stampede.Store.
func (s *Store) Invalidate(ctx context.Context, keys ...string) error {
	_, err := call(ctx, &s.bound, func(client redis.UniversalClient) (struct{}, error) {
		pipe := client.Pipeline()
		var dels []*redis.IntCmd
		for _, key := range keys {
			entry, failure, ticket := s.keys(key)
			dels = append(dels, pipe.Del(ctx, ticket, entry, failure))
			pipe.Publish(ctx, s.channel(key), "") // may not be permitted
		}
		_, _ = pipe.Exec(ctx)
		var errs []error
		for _, d := range dels {
			errs = append(errs, d.Err())
		}
		return struct{}{}, errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("redisstore: invalidate: %w", err)
	}
	return nil
}

// Watch is that of stampede.Store.
func (s *Store) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return s.watcher.watch(ctx, s.channel(key))
}

// milliseconds rounds up: what is to live for less than one would not be stored.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
