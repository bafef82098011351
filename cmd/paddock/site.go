package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
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
	Store  string `json:"store"`  // URL of a Redis server for cached values; "": in this process
	Prefix string `json:"prefix"` // of all keys; of this run alone
}

// site is where the rows run.
type site struct {
	config   siteConfig
	commands commands       // for the rows without paddock
	store    stampede.Store // for paddock's
	locker   func(context.Context) (paddock.Locker, error)

	client redis.UniversalClient   // of the store; nil: it is in this process
	nodes  []redis.UniversalClient // all Redis servers that get keys
	shut   func()
}

func openSite(c siteConfig) (_ *site, err error) {
	s := &site{config: c, commands: newMemory(roundTrip), store: memstore.New(&memstore.Options{Latency: roundTrip}), shut: func() {}}
	defer func() {
		if err != nil {
			closeAll(s.nodes)
		}
	}()
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
		if isRedis(c.Lock) || strings.HasPrefix(schemeOf(c.Lock), "redlock") { // others leave nothing
			if s.nodes, err = connect(c.Lock); err != nil {
				return nil, err
			}
		}
	}
	if c.Store == "" {
		return s, nil
	}
	clients, err := connect(c.Store)
	if err != nil {
		return nil, err
	}
	s.nodes = append(s.nodes, clients...)
	s.client = clients[0]
	s.commands = bareRedis{s.client}
	store, err := redisstore.New(s.client, &redisstore.Options{Prefix: c.Prefix})
	if err != nil {
		return nil, err
	}
	s.store, s.shut = store, func() { _ = store.Close() }
	return s, nil
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

const closeWait = time.Second // for each Locker's clean-up

// guarantees are those of the lock service, which is asked for a sign of life.
func (s *site) guarantees(ctx context.Context) (paddock.Guarantees, error) {
	locker, err := s.locker(ctx)
	if err != nil {
		return paddock.Guarantees{}, err
	}
	defer locker.Close()
	return locker.Guarantees(), reach(ctx, locker)
}

// reach has a Locker connect to its service.
func reach(ctx context.Context, locker paddock.Locker) error {
	_, err := paddock.Inspect(ctx, locker, postsKey)
	if errors.Is(err, paddock.ErrFree) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// warm opens as many connections to the store as there are requests, so that none of them has to wait for one.
func (s *site) warm(ctx context.Context, requests int) error {
	if s.client == nil {
		return nil
	}
	return warm(ctx, s.client, requests)
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
	var errs []error
	for _, client := range s.nodes {
		errs = append(errs, sweep(ctx, client, s.config.Prefix))
	}
	return errors.Join(errs...)
}

func (s *site) close() {
	s.shut()
	closeAll(s.nodes)
}
