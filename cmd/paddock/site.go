package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

const roundTrip = 500 * time.Microsecond // simulated, within this process

// siteConfig says where the rows run. The lock service and the store are chosen one by one.
type siteConfig struct {
	Lock   string `json:"lock"`   // URL of a lock service; "": in this process
	Store  string `json:"store"`  // redis: or rediss: URL of a server for cached values; "": in this process
	Prefix string `json:"prefix"` // of all keys; of this run alone
}

// site is where the rows run.
type site struct {
	config   siteConfig
	commands commands       // for the rows without paddock
	store    stampede.Store // for paddock's
	locker   func(context.Context) (paddock.Locker, error)
	client   *redis.Client // of the store; nil: it is in this process
	shut     func()
}

func openSite(c siteConfig) (*site, error) {
	s := &site{config: c, commands: newMemory(roundTrip), store: memstore.New(&memstore.Options{Latency: roundTrip})}
	if c.Lock == "" {
		locks := memlock.New(&memlock.Options{Latency: roundTrip})
		s.locker = func(context.Context) (paddock.Locker, error) {
			return memlock.New(&memlock.Options{Latency: roundTrip, Shared: locks}), nil
		}
	} else {
		lock, err := lockURL(c.Lock, c.Prefix)
		if err != nil {
			return nil, err
		}
		s.locker = func(ctx context.Context) (paddock.Locker, error) { return paddock.Open(ctx, lock, nil) }
	}
	if c.Store == "" {
		return s, nil
	}
	var err error
	if s.client, err = connect(c.Store); err != nil {
		return nil, err
	}
	s.commands = bareRedis{s.client}
	store, err := redisstore.New(s.client, &redisstore.Options{Prefix: c.Prefix})
	if err != nil {
		return nil, err
	}
	s.store = store
	s.shut = func() {
		_ = store.Close()
		_ = s.client.Close()
	}
	return s, nil
}

// warm opens as many connections to the store as there are requests, so that none of them has to wait for one.
func (s *site) warm(ctx context.Context, requests int) error {
	if s.client == nil {
		return nil
	}
	var (
		wg   sync.WaitGroup
		errs = make([]error, requests)
		conn = make([]*redis.Conn, requests)
	)
	for i := range requests {
		conn[i] = s.client.Conn()
		wg.Go(func() { errs[i] = conn[i].Ping(ctx).Err() })
	}
	wg.Wait()
	for i := range requests {
		_ = conn[i].Close() // back to the pool
	}
	return errors.Join(errs...)
}

// ask asks the server, if there is one, for a sign of life.
func (s *site) ask(ctx context.Context) {
	if s.client != nil {
		_ = s.client.Ping(ctx).Err() // how long it takes is the answer
	}
}

// caller makes a request of a row without paddock.
func (s *site) caller(x expiry, load loader, n *notes) *caller {
	key := s.config.Prefix + ":" + x.name() + ":"
	return &caller{commands: s.commands, valueKey: key + postsKey, lockKey: key + "lock", loader: load, notes: n}
}

// seed caches the old edition, and returns when it has expired for all.
func (s *site) seed(ctx context.Context, x expiry) (time.Time, error) {
	var err error
	if x.variant.recipe != nil {
		c := s.caller(x, nil, nil)
		err = c.set(ctx, c.valueKey, encode(edition(oldEdition)), seedTTL)
	} else {
		var cache *stampede.Cache[trending]
		cache, err = stampede.New[trending](s.store, x.variant.seedPolicies(), &stampede.Options[trending]{Name: x.name()})
		if err != nil {
			return time.Time{}, err
		}
		defer cache.Close()
		err = cache.Set(ctx, postsKey, edition(oldEdition))
	}
	return time.Now().Add(seedTTL + expirySlack), err
}

// clean removes all keys of this run.
func (s *site) clean(ctx context.Context) error {
	if s.client == nil {
		return nil
	}
	var cursor uint64
	for {
		keys, next, err := s.client.Scan(ctx, cursor, globEscape.Replace(s.config.Prefix)+"*", 1000).Result()
		if err == nil && len(keys) > 0 {
			err = s.client.Del(ctx, keys...).Err()
		}
		if err != nil {
			return fmt.Errorf("clean-up of the keys that begin with %q: %w", s.config.Prefix, err)
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func (s *site) close() {
	if s.shut != nil {
		s.shut()
	}
}

const closeWait = time.Second // for each Locker's clean-up

// ofLockers are the parameters of a Locker's URL that are not go-redis'.
var ofLockers = []string{"prefix", "domain", "close_wait", "min_replicas", "replica_wait"}

// connect returns a client with a connection for every request.
func connect(rawURL string) (*redis.Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: the store's URL is not like redis://user:password@host:6379/0", paddock.ErrInvalid)
	}
	query := u.Query()
	for _, name := range ofLockers {
		query.Del(name)
	}
	u.RawQuery = query.Encode()
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("%w: the store's URL: %w", paddock.ErrInvalid, err)
	}
	o.PoolSize = max(o.PoolSize, requests+10)
	o.ContextTimeoutEnabled = true
	return redis.NewClient(o), nil
}

// lockURL is a Locker's URL with the prefix of this run, and with little patience at the end.
func lockURL(rawURL, prefix string) (string, error) {
	base, query, _ := strings.Cut(rawURL, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("%w: the query of the URL is malformed", paddock.ErrInvalid)
	}
	values.Set("prefix", prefix)
	values.Set("close_wait", closeWait.String())
	return base + "?" + values.Encode(), nil
}

func isFree(err error) bool {
	return errors.Is(err, paddock.ErrFree) || errors.Is(err, errors.ErrUnsupported)
}
