package redlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/servers"
)

// nowhere are clients for addresses that nobody listens on: what is refused is refused before anything is sent.
func nowhere(n int) []redis.UniversalClient {
	var addrs []string
	for i := range n {
		addrs = append(addrs, "192.0.2.1:"+string(rune('1'+i)))
	}
	return clientsFor(addrs, redis.Options{})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	five := nowhere(5)
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	with := func(client redis.UniversalClient) []redis.UniversalClient {
		return append(append([]redis.UniversalClient{}, five[:4]...), client)
	}
	for name, test := range map[string]struct {
		clients []redis.UniversalClient
		o       Options
	}{
		"no clients":                 {nil, Options{}},
		"one client":                 {five[:1], Options{}},
		"an even number":             {five[:4], Options{}},
		"a nil client":               {with(nil), Options{}},
		"a nil *redis.Client":        {with((*redis.Client)(nil)), Options{}},
		"a client twice":             {with(five[0]), Options{}},
		"an address twice":           {with(nowhere(1)[0]), Options{}},
		"a ring":                     {with(ring), Options{}},
		"braces":                     {five, Options{Prefix: "a{b}"}},
		"a prefix that is not text":  {five, Options{Prefix: "\xff"}},
		"a long prefix":              {five, Options{Prefix: strings.Repeat("a", 129)}},
		"a negative CloseWait":       {five, Options{CloseWait: -1}},
		"a negative NodeTimeout":     {five, Options{NodeTimeout: -1}},
		"a fence quorum of two":      {five, Options{FenceQuorum: 2}},
		"a fence quorum of six":      {five, Options{FenceQuorum: 6}},
		"a negative fence quorum":    {five, Options{FenceQuorum: -3}},
		"a fence quorum and NoFence": {five, Options{FenceQuorum: 3, NoFence: true}},
	} {
		if _, err := New(test.clients, &test.o); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", name, err)
		}
	}
	for _, c := range five {
		c.Close()
	}
}

func TestGuarantees(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		nodes   int
		o       *Options
		fencing fencing.Strength
		says    string
	}{
		{3, nil, fencing.Volatile, "2 of 3 nodes"},
		{5, &Options{}, fencing.Volatile, "fewer than 1 nodes lose"},
		{5, &Options{FenceQuorum: 4}, fencing.Volatile, "fewer than 3 nodes lose"},
		{7, &Options{NoFence: true}, fencing.None, "4 of 7 nodes"},
	} {
		l, err := New(nowhere(test.nodes), test.o)
		must(t, err)
		g := l.Guarantees()
		if g.Backend != "redlock" || g.Exclusion != paddock.Quorum || g.Fencing != test.fencing || g.Fair || !strings.Contains(g.Assumes, test.says) {
			t.Errorf("of %d nodes with %+v: %+v", test.nodes, test.o, g)
		}
		must(t, l.Close())
	}
}

// TestNodeTimeout is the least of what bounds a call, the most, and the 5 % in between.
func TestNodeTimeout(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		60 * time.Millisecond:   20 * time.Millisecond,
		1500 * time.Millisecond: 500 * time.Millisecond,
		3 * time.Second:         time.Second, 15 * time.Second: time.Second, 20 * time.Second: time.Second,
		time.Minute: 3 * time.Second, 100 * time.Second: 5 * time.Second, time.Hour: 5 * time.Second,
	} {
		if got := (&quorum{}).patience(ttl); got != want {
			t.Errorf("with a TTL of %v a node has %v for an answer; want %v", ttl, got, want)
		}
	}
	if got := (&quorum{timeout: 7 * time.Millisecond}).patience(time.Hour); got != 7*time.Millisecond {
		t.Errorf("NodeTimeout is 7 ms, and a node has %v", got)
	}
}

// TestNodeTimeoutHolds has three silent nodes: an attempt is over soon after two NodeTimeouts.
func TestNodeTimeoutHolds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l, links := c.behindProxies(t, []int{0, 1, 2}, impatient, Options{Prefix: newPrefix(), NodeTimeout: time.Second})
	must(t, take(t, l, "warm").Release(t.Context()))
	l.quorum.wait(time.Minute)
	links.each((*servers.Proxy).Hold)
	begun := time.Now()
	_, err := l.TryAcquire(t.Context(), "k", &paddock.Options{TTL: time.Hour})
	unavailable(t, "TryAcquire", err, time.Since(begun), time.Second, 2*time.Second) // by default it would be 10 s
	links.each((*servers.Proxy).Pass)
}

// permanent has an Acquire refused on the nodes in at by what spoil did there: at once if they are a majority, and not at all if they are not.
func (c *cluster) permanent(t *testing.T, l *Locker, key, why string, spoil func(i int)) {
	t.Helper()
	for _, i := range []int{1, 3} {
		spoil(i)
	}
	must(t, paddock.Do(t.Context(), l, key, minute, func(_ context.Context, lease *paddock.Lease) error {
		return lease.Extend(t.Context(), 2*time.Minute)
	}))
	spoil(4)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the TTL is a minute
	defer cancel()
	_, err := l.Acquire(ctx, key, minute)
	if !errors.Is(err, paddock.ErrUnavailable) || ctx.Err() != nil || !strings.Contains(err.Error(), why) {
		t.Errorf("Acquire = %v; want ErrUnavailable at once, with %q", err, why)
	}
}

func TestPermanentErrors(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.each(func(i int) {
		must(t, c.probes[i].Do(t.Context(), "ACL", "SETUSER", "us", "on", ">secret", "~*", "&*", "+@all").Err())
	})
	acl := func(rule ...any) func(i int) {
		return func(i int) {
			must(t, c.probes[i].Do(t.Context(), append([]any{"ACL", "SETUSER", "us"}, rule...)...).Err())
		}
	}
	set := func(name func(*Locker) string, value string) func(*Locker) func(int) {
		return func(l *Locker) func(int) {
			return func(i int) { must(t, c.probes[i].Set(t.Context(), name(l), value, time.Hour).Err()) }
		}
	}
	lock := func(l *Locker) string { return l.quorum.names("k").lock }
	fence := func(l *Locker) string { return l.quorum.names("k").fence }
	anyway := func(f func(int)) func(*Locker) func(int) { return func(*Locker) func(int) { return f } }
	for _, test := range []struct {
		name, why string
		spoil     func(*Locker) func(i int)
	}{
		{"no scripts", "NOPERM", anyway(acl("-evalsha"))},
		{"no SET", "can't run this command", anyway(acl("-set"))},
		{"no keys", "NOPERM", anyway(acl("resetkeys"))},
		{"another password", "WRONGPASS", anyway(func(i int) {
			acl("resetpass", ">other")(i)
			must(t, c.probes[i].Do(t.Context(), "CLIENT", "KILL", "USER", "us").Err())
		})},
		{"a lock that is not ours", "did not write", set(lock, "somebody's")},
		{"a record that is not ours", "WRONGTYPE", set(fence, "somebody's")},
		{"a record with another token", "did not write", func(l *Locker) func(int) {
			return func(i int) { must(t, c.probes[i].HSet(t.Context(), fence(l), "token", "12").Err()) }
		}},
		{"the largest token", "next to the largest", func(l *Locker) func(int) {
			return func(i int) {
				if i == 4 {
					must(t, c.probes[i].HSet(t.Context(), fence(l), "token", digits(fencing.MaxToken)).Err())
				}
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.each(func(i int) { acl("+@all", "~*", "&*", "resetpass", ">secret")(i) })
			o := impatient
			o.Username, o.Password = "us", "secret"
			opts := Options{Prefix: newPrefix()}
			l := c.open(t, o, opts)
			if test.name == "the largest token" { // one node's word is enough, wherever it counts
				opts.FenceQuorum = 5
				l = c.open(t, o, opts)
			}
			c.permanent(t, l, "k", test.why, test.spoil(l))
			c.each(func(i int) { acl("+@all", "~*", "&*", "resetpass", ">secret")(i) })
			for _, i := range c.up {
				if v, _ := c.probes[i].Get(t.Context(), lock(l)).Result(); v == "somebody's" {
					must(t, c.probes[i].Del(t.Context(), lock(l)).Err())
				}
			}
			c.empty(t, opts.Prefix)
		})
	}
}

// TestNarrowUser has all that the package doc asks for and nothing else.
func TestNarrowUser(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	args := []any{"ACL", "SETUSER", "narrow", "on", ">pw", "~" + opts.Prefix + ":*", "&" + opts.Prefix + ":*"}
	for command := range strings.FieldsSeq("evalsha eval set get del exists pttl pexpire hset hget hmget time publish subscribe ping") {
		args = append(args, "+"+command)
	}
	c.each(func(i int) { must(t, c.probes[i].Do(t.Context(), args...).Err()) })
	o := impatient
	o.Username, o.Password = "narrow", "pw"
	l := c.open(t, o, opts)
	lease := take(t, l, "k")
	_, err := l.Inspect(t.Context(), "k")
	must(t, err)
	got := make(chan error, 1)
	go func() {
		got <- paddock.Do(context.Background(), l, "k", minute, func(context.Context, *paddock.Lease) error { return nil })
	}()
	until(t, "subscribed", func() bool {
		return c.probes[0].PubSubNumSub(t.Context(), l.quorum.channel).Val()[l.quorum.channel] == 1
	})
	l.quorum.wait(time.Minute)
	must(t, c.probes[2].Del(t.Context(), l.quorum.names("k").lock).Err())
	until(t, "restored", func() bool { // unless the waiter's try was there first
		must(t, lease.Extend(t.Context(), 2*time.Minute))
		l.quorum.wait(time.Minute)
		return c.holder(l, "k", 2) == lease.Owner()
	})
	must(t, lease.Release(t.Context()))
	must(t, <-got)
	c.each(func(i int) {
		if denied := c.probes[i].ACLLog(t.Context(), 1).Val(); len(denied) > 0 {
			t.Errorf("denied: %+v", denied[0])
		}
	})
}
