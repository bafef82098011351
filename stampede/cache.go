package stampede

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/fencing"
)

// The errors of this package, for errors.Is.
var (
	ErrInvalid     = errors.New("stampede: invalid")                             // what can never work
	ErrClosed      = errors.New("stampede: cache closed")                        // by its Close
	ErrNotFound    = errors.New("stampede: not found")                           // from a load: there is no such thing, which is an answer
	ErrContended   = errors.New("stampede: being loaded elsewhere")              // where OnContention is Fail
	ErrWaitTimeout = errors.New("stampede: waited too long for another load")    // where AfterMaxWait is Fail
	ErrLoadTimeout = errors.New("stampede: the load took too long")              // longer than LoadTimeout
	ErrStoreDown   = errors.New("stampede: store unavailable")                   // where OnStoreDown is Fail; the store's error is in the chain
	ErrLockerDown  = errors.New("stampede: locker unavailable")                  // where OnLockerDown is Fail; the Locker's error is in the chain
	ErrLeaseLost   = errors.New("stampede: the lease was lost during a load")    // of a harmful key
	errOwnKey      = errors.New("a load asks for the key that it is to load")    // an ErrInvalid
	errAbandoned   = errors.New("stampede: nobody waits for this load any more") // cause of a load's context
)

// Options of New; nil is the zero Options.
type Options[V any] struct {
	// Name keeps caches apart that share a Store or a Locker: it is part of the keys of both. Caches of several processes that are to
	// share their entries have the same Name. It has no slash. Defaults to "default".
	Name string
	// Codec turns values into bytes. Defaults to JSON.
	Codec Codec[V]
	// Observer defaults to none.
	Observer *Observer
	// StoreTimeout bounds each call of the Store. Defaults to 1 s.
	StoreTimeout time.Duration
	// CloseWait is how long Close waits for loads to end that were told to. Defaults to 5 s.
	CloseWait time.Duration
	// Workers is how many keys are replaced at a time by Keep. Defaults to 4.
	Workers int

	rand func() float64 // for tests; defaults to math/rand/v2
}

// Cache is a cache of values of type V. All methods may be called concurrently.
//
// Values that several calls share, since one load or one read served them all, are the same value: do not modify what a
// Cache returns, where V has pointers, slices or maps in it.
type Cache[V any] struct {
	store Store
	rules []*rule
	o     Options[V]
	obs   Observer
	rand  func() float64 // in [0, 1)

	maxKey  int
	limit   limit // of calls of the store
	silence silence

	mu      sync.Mutex
	closed  bool
	reads   map[string]*reading[V] // reads under way
	spare   *reading[V]            // for the next one; may be nil
	flights map[string]*flight[V]  // loads under way that can be joined
	running map[*flight[V]]struct{}
	held    map[string]time.Time // keys known to be held elsewhere: when to try again
	kept    map[string]*kept[V]
	due     []*kept[V]    // wait for a worker
	workers int           // at work
	closing chan struct{} // closed by Close
	idle    chan struct{} // closed when a closed cache has neither flight nor worker any more
}

// New returns a Cache of what store keeps, by the first of policies that matches a key. It refuses, as ErrInvalid, what cannot
// work, with an error that names the policy, its pattern and what is wrong. The Cache does not close the Store or the Lockers.
func New[V any](store Store, policies Policies, opts *Options[V]) (*Cache[V], error) {
	c := &Cache[V]{
		store: store, rand: rand.Float64,
		reads: map[string]*reading[V]{}, flights: map[string]*flight[V]{}, running: map[*flight[V]]struct{}{},
		held: map[string]time.Time{}, kept: map[string]*kept[V]{}, closing: make(chan struct{}), idle: make(chan struct{}),
	}
	if opts != nil {
		c.o = *opts
	}
	if store == nil {
		return nil, fmt.Errorf("%w: no store", ErrInvalid)
	}
	if c.o.Name == "" {
		c.o.Name = "default"
	}
	if strings.Contains(c.o.Name, "/") || !utf8.ValidString(c.o.Name) || len(c.o.Name) > 256 {
		return nil, fmt.Errorf("%w: Name %q; it has no slash and at most 256 bytes of UTF-8", ErrInvalid, c.o.Name)
	}
	if c.o.StoreTimeout < 0 || c.o.CloseWait < 0 || c.o.Workers < 0 {
		return nil, fmt.Errorf("%w: StoreTimeout is %v, CloseWait %v and Workers %d; none can be negative",
			ErrInvalid, c.o.StoreTimeout, c.o.CloseWait, c.o.Workers)
	}
	if c.o.Workers == 0 {
		c.o.Workers = 4
	}
	if c.o.rand != nil {
		c.rand = c.o.rand
	}
	if c.o.StoreTimeout == 0 {
		c.o.StoreTimeout = time.Second
	}
	c.limit.wait, c.silence.since = c.o.StoreTimeout, time.Now().Add(-1)
	if c.o.CloseWait == 0 {
		c.o.CloseWait = 5 * time.Second
	}
	c.maxKey = maxLockKey - len(c.lockKey(""))
	if c.o.Codec == nil {
		c.o.Codec = JSON[V]{}
	}
	if c.o.Observer != nil {
		c.obs = *c.o.Observer
	}
	var err error
	c.rules, err = policies.compile()
	return c, err
}

// Status is how a call was served.
type Status int

// The statuses.
const (
	Fresh    Status = iota + 1 // from the store, within its TTL
	Early                      // from the store, within its TTL; this call began to replace it before it expires
	Stale                      // from the store, after its TTL
	Loaded                     // by this call's own load
	Waited                     // by a load that this call waited for
	Bypassed                   // by a load without its lock or without the store, because one was down or MaxWait was over
)

// String returns the status's name, in lower case.
func (s Status) String() string {
	return name(int(s), "none", "fresh", "early", "stale", "loaded", "waited", "bypassed")
}

// Result is what Lookup returns.
type Result[V any] struct {
	Value   V
	Status  Status
	Age     time.Duration // since it was stored, by the store's clock; zero for what was just loaded
	Fence   fencing.Fence // that it was loaded under; zero when without a lock
	Backend string        // of the key's Locker; "" without one
	// Cause is why there is nothing better: set when what was served is stale because a load failed or took longer than MaxWait, or
	// was loaded while bypassing something that is down.
	Cause error

	writer string // of the entry
}

// Get returns the value of key, from the store or by load: see the package comment for which, and Lookup for how to learn
// it. load runs on a context of its own. An error that is ErrNotFound says that there is no such thing, which is remembered
// for the policy's NotFoundTTL.
//
// The error is load's own, or that of the load that this call waited for; a *RemoteError for one that failed a moment ago, here or
// elsewhere; a *PanicError; ctx's error, joined with its cause; or one of this package's.
func (c *Cache[V]) Get(ctx context.Context, key string, load func(ctx context.Context) (V, error)) (V, error) {
	r, err := c.Lookup(ctx, key, load)
	return r.Value, err
}

// Lookup is Get with all that is known about the value.
func (c *Cache[V]) Lookup(ctx context.Context, key string, load func(ctx context.Context) (V, error)) (Result[V], error) {
	return c.observed(ctx, key, func(v *visit[V]) (Result[V], error) {
		v.load = load
		return v.serve(v.begun)
	})
}

// observed makes a call for key, and tells the observer what it came to.
func (c *Cache[V]) observed(ctx context.Context, key string, serve func(*visit[V]) (Result[V], error)) (r Result[V], err error) {
	begun := time.Now()
	p, err := c.check(ctx, key, true)
	if err == nil && loads(ctx, c, key) {
		err = fmt.Errorf("%w: %q: %w", ErrInvalid, key, errOwnKey)
	}
	if err == nil {
		r, err = serve(&visit[V]{c: c, ctx: ctx, key: key, p: p, begun: begun})
		r.Backend = p.backend
	}
	c.observe(key, begun, r, err)
	return r, err
}

func (c *Cache[V]) observe(key string, begun time.Time, r Result[V], err error) {
	switch {
	case err != nil && c.obs.Failed != nil:
		c.obs.Failed(key, time.Since(begun), err)
	case err == nil && c.obs.Served != nil:
		c.obs.Served(key, r.Status, r.Age, time.Since(begun))
	}
}

// Set stores value as if it had been loaded now. Loads that are under way do not replace it.
func (c *Cache[V]) Set(ctx context.Context, key string, value V) error {
	p, err := c.check(ctx, key, false)
	if err != nil {
		return err
	}
	b, err := c.encode(value)
	if err != nil {
		return fmt.Errorf("stampede: set %q: %w", key, err)
	}
	e := Entry{Kind: Value, Value: b, TTL: c.jittered(p, p.TTL), StaleFor: p.StaleFor, Writer: uuid.NewString()}
	return c.ask(ctx, key, func(ctx context.Context) error { return c.store.Set(ctx, c.storeKey(key), e) })
}

// Invalidate forgets the keys. When it has returned nil, no call that begins later is served a value from before, nor one
// that a load reads which is under way: not here and not in any other process, as far as the Store keeps what it acknowledged. After an error
// that may be so or not: repeat it.
func (c *Cache[V]) Invalidate(ctx context.Context, keys ...string) error {
	names := make([]string, len(keys))
	for i, key := range keys {
		if _, err := c.check(ctx, key, false); err != nil {
			return err
		}
		names[i] = c.storeKey(key)
	}
	if len(keys) == 0 {
		return nil
	}
	return c.ask(ctx, keys[0], func(ctx context.Context) error { return c.store.Invalidate(ctx, names...) })
}

// Close ends what the cache does: calls get ErrClosed, contexts of loads end, locks are released. It waits for that, at most for
// CloseWait, and then returns an error that says how many loads go on in spite of it.
func (c *Cache[V]) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
		for _, k := range c.kept {
			k.timer.Stop()
		}
		for f := range c.running {
			f.cancel(ErrClosed)
		}
		c.settle()
	}
	c.mu.Unlock()
	limit := time.NewTimer(c.o.CloseWait)
	defer limit.Stop()
	select {
	case <-c.idle:
		return nil
	case <-limit.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("stampede: closed, but after %v %d loads are still running", c.o.CloseWait, len(c.running))
	}
}

// settle closes idle when a closed cache has come to rest. The caller holds mu.
func (c *Cache[V]) settle() {
	if c.closed && len(c.running) == 0 && c.workers == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

// Policy returns the policy of key, with what zero means filled in.
func (c *Cache[V]) Policy(key string) (Policy, bool) {
	if p := c.rule(key); p != nil {
		return p.Policy, true
	}
	return Policy{}, false
}

func (c *Cache[V]) rule(key string) *rule {
	for _, r := range c.rules {
		if match(r.items, key) {
			return r
		}
	}
	return nil
}

const maxLockKey = 1024 // of a paddock.Locker

// check is for every call: it refuses what cannot work before anything is sent.
func (c *Cache[V]) check(ctx context.Context, key string, reads bool) (*rule, error) {
	c.mu.Lock()
	closed := c.closed
	if reads {
		c.noteRead(key)
	}
	c.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("%w: %q", ErrClosed, key)
	}
	if key == "" || !utf8.ValidString(key) || len(key) > c.maxKey {
		return nil, fmt.Errorf("%w: key %.64q: a key is valid UTF-8 of 1 to %d bytes", ErrInvalid, key, c.maxKey)
	}
	p := c.rule(key)
	if p == nil {
		return nil, fmt.Errorf("%w: no policy matches the key %q", ErrInvalid, key)
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, key)
	}
	return p, nil
}

func (c *Cache[V]) lockKey(key string) string  { return "cache/" + c.o.Name + "/" + key }
func (c *Cache[V]) storeKey(key string) string { return c.o.Name + "/" + key }

// ask makes a call of the store, about key or it and others, on the caller's goroutine. What ends with ctx is not the store's fault.
func (c *Cache[V]) ask(ctx context.Context, key string, call func(context.Context) error) error {
	within, cancel := c.limit.within(ctx)
	defer cancel()
	switch err := call(within); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ended(ctx, key), err)
	default:
		return fmt.Errorf("%w: %w", ErrStoreDown, err)
	}
}

// jittered is the TTL of an entry that is written now.
func (c *Cache[V]) jittered(p *rule, ttl time.Duration) time.Duration {
	if p.Jitter <= 0 {
		return ttl
	}
	return ttl + time.Duration(float64(ttl)*p.Jitter*c.rand())
}

// ended is the error of a call whose context has.
func ended(ctx context.Context, key string) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("stampede: %q: %w: %w", key, ctx.Err(), cause)
	}
	return fmt.Errorf("stampede: %q: %w", key, ctx.Err())
}
