// Package redisstore is a stampede.Store on Redis: 6.2 or later, or Valkey; standalone, behind Sentinel, or a Cluster.
//
//	store, err := redisstore.New(client, nil)
//
// # URLs
//
// stampede.OpenStore takes redis:, redis+sentinel: and redis+cluster: URLs, and rediss for TLS, as package redislock has them. Of its
// own the Store has the parameter prefix.
//
// # Commands
//
// Get is one round trip: PTTL and GET in a pipeline. Begin and Put are a script each, Set is two, one after the other, so
// that none of its requests can arrive late and undo an invalidation. Invalidate is a DEL and a PUBLISH for each key in one
// pipeline. Watchers have one connection for all keys of a Store, with one channel subscribed to for each key that is waited for.
//
// # What is kept
//
// For a key two records, in one hash slot whatever braces the key has in it:
//
//	<prefix>/cache{/<key>}:e1   the entry, and before it the message of the last failed load: a string, see record.go for its
//	                            layout; expires after TTL and stale window, or with the failure
//	<prefix>/cache{/<key>}:t1   the ticket: a hash of id, turn, and of the last stored result turn, fence domain and token; expires
//	                            some seconds after the load must have ended
//
// The digit is the layout's version. Messages on the channel <prefix>/cache{/<key>} are empty. A user without permission for
// the channel can do everything but be woken, and polls.
//
// # The client
//
// It should have ContextTimeoutEnabled, as those have that [stampede.OpenStore] makes. Without it go-redis does not end a
// command when its context does; each call is then made on a goroutine of its own, so that it can be abandoned, which may take
// longer than the call itself.
//
// # What it rests on
//
// Redis replicates asynchronously. A failover may lose an acknowledged Invalidate with everything after it: the old entry is
// then served for what was left of its TTL. Replicas lag behind in the same way, so clients that read from them are refused
// by [New] where it can see that they do. It cannot see that a Client was connected to a replica by its address: there a load
// cannot begin, and what reads find may be old.
//
// While a slot of a Cluster migrates, a script finds its two keys on two nodes, or neither of them yet, and is told to try
// again. Hits go on; loads of keys in that slot find the store down until it has moved.
package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/rediswire"
	"github.com/paddock-go/paddock/stampede"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix is what the names of all keys and channels begin with: at most 128 bytes of UTF-8 without braces. Defaults to "paddock".
	Prefix string
}

// Store is a stampede.Store. All methods may be called concurrently. They end with their context, whatever the time limits of the
// client; with ContextTimeoutEnabled, where go-redis looks at nothing but deadlines, a cancellation is noticed when the server has answered.
type Store struct {
	client  redis.UniversalClient
	heeds   bool // client ends calls with their context
	prefix  string
	watcher *watcher
	owned   redis.UniversalClient // by a Store that was opened by its URL
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
	if err := rediswire.CheckOptions(s.prefix, 0); err != nil {
		return nil, fmt.Errorf("%w: redisstore: %w", stampede.ErrInvalid, err)
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
	s.client, s.heeds, s.watcher = client, heeds(client), newWatcher(client)
	return s, nil
}

// Close ends the subscription. Watch is refused from then on; all else goes on working, unless the Store was opened by its URL:
// then its connections are closed too.
func (s *Store) Close() error {
	err := s.watcher.close()
	if s.owned != nil {
		err = errors.Join(err, s.owned.Close())
	}
	return err
}

func (s *Store) channel(key string) string { return s.prefix + "/cache{/" + key + "}" }

func (s *Store) entry(key string) string { return s.prefix + "/cache{/" + key + "}:e1" }

func (s *Store) keys(key string) (names []string) {
	base := s.channel(key)
	return []string{base + ":e1", base + ":t1"}
}

// Get is that of stampede.Store.
func (s *Store) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	return call(ctx, s, func() ([]stampede.Entry, error) {
		left, known := make([]*redis.DurationCmd, len(keys)), make([]*redis.StringCmd, len(keys))
		cmds := make([]redis.Cmder, 0, 2*len(keys))
		for i, key := range keys {
			name := s.entry(key)
			left[i] = redis.NewDurationCmd(ctx, time.Millisecond, "pttl", name) // before the value: what comes between is fresher than it seems
			known[i] = redis.NewStringCmd(ctx, "get", name)
			cmds = append(cmds, left[i], known[i])
		}
		pipe := s.client.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...)
		_, _ = pipe.Exec(ctx)
		entries := make([]stampede.Entry, len(keys))
		for i := range keys {
			record, err := known[i].Bytes()
			switch {
			case err == nil && left[i].Err() == nil:
				entries[i] = read(left[i].Val(), record)
			case left[i].Err() != nil:
				return nil, fmt.Errorf("redisstore: get: %w", left[i].Err())
			case redis.HasErrorPrefix(err, "WRONGTYPE"):
				entries[i].Kind = stampede.Foreign
			case !errors.Is(err, redis.Nil):
				return nil, fmt.Errorf("redisstore: get: %w", err)
			}
		}
		return entries, nil
	})
}

// Begin is that of stampede.Store.
func (s *Store) Begin(ctx context.Context, key, id string, keep time.Duration) (e stampede.Entry, t stampede.Ticket, err error) {
	reply, err := call(ctx, s, func() ([]any, error) {
		return beginScript.Run(ctx, s.client, s.keys(key), id, milliseconds(keep)).Slice()
	})
	if err != nil {
		return e, t, fmt.Errorf("redisstore: begin: %w", err)
	}
	if len(reply) != 4 {
		return e, t, errReply
	}
	left, ok1 := reply[0].(int64)
	id, ok2 := reply[2].(string)
	turn, ok3 := reply[3].(int64)
	record, found := reply[1].(string)
	if !ok1 || !ok2 || !ok3 || !found && reply[1] != nil || left < -2 || left > int64(maxMilliseconds) || id == "" || turn < 1 {
		return e, t, errReply
	}
	if found {
		d := time.Duration(left)
		if left >= 0 {
			d *= time.Millisecond
		}
		e = read(d, []byte(record))
	}
	return e, stampede.Ticket{ID: id, Turn: turn}, nil
}

var errReply = errors.New("redisstore: a reply that no script of ours gives")

// Put is that of stampede.Store.
func (s *Store) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	what, body, ttl := "nothing", []byte(nil), time.Duration(0)
	switch e.Kind {
	case stampede.Value, stampede.NotFound:
		what, body, ttl = "entry", encode(e), e.TTL+e.StaleFor
	case stampede.Failed:
		what, body, ttl = "failure", []byte(e.Failure[:min(len(e.Failure), maxFailure)]), e.TTL
	}
	n, err := call(ctx, s, func() (int, error) {
		return putScript.Run(ctx, s.client, s.keys(key), t.ID, t.Turn, e.Fence.Domain,
			fmt.Sprintf("%019d", e.Fence.Token), what, body, milliseconds(ttl), s.channel(key)).Int()
	})
	if err != nil {
		return 0, fmt.Errorf("redisstore: put: %w", err)
	}
	switch o := stampede.Outcome(n); o {
	case stampede.Stored, stampede.Superseded, stampede.Invalidated:
		return o, nil
	}
	return 0, errReply
}

// Set is that of stampede.Store.
func (s *Store) Set(ctx context.Context, key string, e stampede.Entry) error {
	id, err := call(ctx, s, func() (string, error) {
		return setScript.Run(ctx, s.client, s.keys(key), uuid.NewString(), milliseconds(setTime)).Text()
	})
	if err != nil {
		return fmt.Errorf("redisstore: set: %w", err)
	}
	if id == "" {
		return errReply
	}
	switch o, err := s.Put(ctx, key, stampede.Ticket{ID: id, Turn: 1}, e); {
	case err != nil:
		return fmt.Errorf("redisstore: set: %w", err)
	case o == stampede.Invalidated: // by an Invalidate, or by another Set, which may not come to its end
		return s.Invalidate(ctx, key)
	}
	return nil // Superseded: by a load that began after this call
}

// setTime is what the ticket of a Set is kept for: it may be refused after that, as after an invalidation.
const setTime = 10 * time.Second

// Invalidate is that of stampede.Store.
func (s *Store) Invalidate(ctx context.Context, keys ...string) error {
	_, err := call(ctx, s, func() (struct{}, error) {
		pipe := s.client.Pipeline()
		var dels []*redis.IntCmd
		for _, key := range keys {
			dels = append(dels, pipe.Del(ctx, s.keys(key)...))
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
