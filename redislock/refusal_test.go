package redislock

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// atOnce is a limit for an Acquire that is refused for good. One that repeats takes the TTL, a minute, to give up.
const atOnce = 20 * time.Second

// refusedForGood checks that Acquire gives up at once, and that the error says why.
func refusedForGood(t *testing.T, l paddock.Locker, key, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), atOnce)
	defer cancel()
	_, err := l.Acquire(ctx, key, patient)
	if !errors.Is(err, paddock.ErrUnavailable) || ctx.Err() != nil {
		t.Fatalf("Acquire(%q) = %v; want ErrUnavailable at once", key, err)
	}
	if !strings.Contains(err.Error(), why) {
		t.Errorf("Acquire(%q) = %q; it does not say %q", key, err, why)
	}
	if _, err := l.TryAcquire(t.Context(), key, patient); !errors.Is(err, paddock.ErrUnavailable) || !strings.Contains(err.Error(), why) {
		t.Errorf("TryAcquire(%q) = %v; want ErrUnavailable with %q", key, err, why)
	}
}

func TestRefusedUsers(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t, "--requirepass", "main").Addr, redis.Options{Password: "main"})
	probe := redis.NewClient(&redis.Options{Addr: f.probe.Options().Addr, Password: "main"})
	t.Cleanup(func() { probe.Close() })
	for user, rules := range map[string][]string{
		"noscripts": {"~*", "&*", "+@all", "-@scripting"},
		"noset":     {"~*", "&*", "+@all", "-set"},
		"nokeys":    {"~other:*", "&*", "+@all"},
	} {
		args := []any{"ACL", "SETUSER", user, "on", ">" + user + "-secret"}
		for _, r := range rules {
			args = append(args, r)
		}
		must(t, probe.Do(t.Context(), args...).Err())
	}
	for _, test := range []struct{ name, user, password, why string }{
		{"without EVALSHA", "noscripts", "noscripts-secret", "NOPERM"},
		{"without SET", "noset", "noset-secret", "can't run this command"},
		{"without the keys", "nokeys", "nokeys-secret", "NOPERM"},
		{"with a wrong password", "noset", "wrong-secret", "WRONGPASS"},
		{"unknown", "nobody", "nobody-secret", "WRONGPASS"},
		{"without a password", "", "", "NOAUTH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := openAt(t, f.probe.Options().Addr, f.prefix, redis.Options{Username: test.user, Password: test.password})
			defer l.Close()
			refusedForGood(t, l, "k", test.why)
			_, err := l.Acquire(t.Context(), "k", patient)
			if test.password != "" && strings.Contains(err.Error(), test.password) {
				t.Errorf("the error %q shows the password", err)
			}
		})
	}
}

// TestNarrowUser has all that the package doc asks for and nothing else.
func TestNarrowUser(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t).Addr, redis.Options{})
	args := []any{"ACL", "SETUSER", "narrow", "on", ">pw", "~" + f.prefix + ":*", "&" + f.prefix + ":*"}
	for command := range strings.FieldsSeq("evalsha eval set get del pttl pexpire hmget hset hlen hgetall hdel time publish subscribe ping") {
		args = append(args, "+"+command)
	}
	must(t, f.probe.Do(t.Context(), args...).Err())
	l := openAt(t, f.probe.Options().Addr, f.prefix, redis.Options{Username: "narrow", Password: "pw"})
	defer l.Close()
	lease := take(t, l, "k", patient)
	_, err := l.Inspect(t.Context(), "k")
	must(t, err)
	waiter := waitFor(t.Context(), l, "k")
	until(t, "subscribed", func() bool { return f.subscribers(t) == 1 })
	must(t, lease.Extend(t.Context(), 30*time.Second))
	must(t, lease.Release(t.Context()))
	comes(t, waiter, "a waiter of a user with few rights")
	for range 600 { // over the bound of marks
		must(t, l.server.Undo(t.Context(), attempt("k", time.Minute)))
	}
	if denied := f.probe.ACLLog(t.Context(), 1).Val(); len(denied) > 0 {
		t.Errorf("denied: %+v", denied[0])
	}
}

// TestWrongClient has a client of the wrong kind for its server.
func TestWrongClient(t *testing.T) {
	t.Parallel()
	c := servers.RedisCluster(t, 0)
	f := onCluster(t, c, 0)
	lock, _ := f.server.names("k")
	for _, addr := range c.Addrs {
		if addr != c.Owner(t, lock).Addr {
			l := openAt(t, addr, f.prefix, redis.Options{})
			defer l.Close()
			refusedForGood(t, l, "k", "takes a redis.ClusterClient")
			break
		}
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers.SharedRedis(t)}})
	defer client.Close()
	l, err := New(client, nil)
	must(t, err)
	defer l.Close()
	refusedForGood(t, l, "k", "cluster support disabled")
}

func TestForeignValues(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	for name, test := range map[string]struct {
		put func(ctx context.Context, lock, fence string) error
		why string
	}{
		"lock of another type":    {func(ctx context.Context, lock, _ string) error { return f.probe.LPush(ctx, lock, "x").Err() }, "WRONGTYPE"},
		"record of another type":  {func(ctx context.Context, _, fence string) error { return f.probe.Set(ctx, fence, "x", 0).Err() }, "WRONGTYPE"},
		"lock that never expires": {func(ctx context.Context, lock, _ string) error { return f.probe.Set(ctx, lock, "x", 0).Err() }, "did not write"},
		"lock without an owner":   {func(ctx context.Context, lock, _ string) error { return f.probe.Set(ctx, lock, "x", time.Hour).Err() }, "did not write"},
		"record without a number": {func(ctx context.Context, _, fence string) error { return f.probe.HSet(ctx, fence, "token", "x").Err() }, "no token"},
		"record beyond the last": {func(ctx context.Context, _, fence string) error {
			return f.probe.HSet(ctx, fence, "token", "9999999999999999999").Err()
		}, "no token"},
		"record with a short one": {func(ctx context.Context, _, fence string) error { return f.probe.HSet(ctx, fence, "token", "12").Err() }, "no token"},
	} {
		t.Run(name, func(t *testing.T) {
			lock, fence := f.server.names(name)
			must(t, test.put(t.Context(), lock, fence))
			before := f.probe.Dump(t.Context(), lock).Val() + f.probe.Dump(t.Context(), fence).Val()
			refusedForGood(t, f, name, test.why)
			if _, err := f.Inspect(t.Context(), name); strings.HasPrefix(name, "lock") && !errors.Is(err, paddock.ErrUnavailable) {
				t.Errorf("Inspect = %v; want ErrUnavailable", err)
			}
			if after := f.probe.Dump(t.Context(), lock).Val() + f.probe.Dump(t.Context(), fence).Val(); after != before {
				t.Error("somebody else's value was changed")
			}
			must(t, f.probe.Del(t.Context(), lock, fence).Err())
		})
	}
}

// TestOutOfMemory has a server that takes no writes for a while: that may pass, so Acquire repeats, and a release works.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t).Addr, redis.Options{})
	limit := func(bytes string) { must(t, f.probe.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
	lease := take(t, f, "held", patient)
	limit("1")
	if _, err := f.TryAcquire(t.Context(), "k", patient); !errors.Is(err, paddock.ErrUnavailable) || !redis.IsOOMError(err) {
		t.Errorf("TryAcquire = %v; want ErrUnavailable and the server's OOM", err)
	}
	must(t, lease.Extend(t.Context(), 2*time.Minute))
	must(t, lease.Extend(t.Context(), 30*time.Second)) // which leaves a number in the lock
	if left := f.left(t, "held"); left > 30*time.Second {
		t.Errorf("after an Extend to 30 s on a full server %v are left", left)
	}
	must(t, lease.Err())
	must(t, lease.Release(t.Context()))
	repeatedUntil(t, f, func() { limit("0") })
}

// TestReadOnly begins on a replica, which a failover makes the primary.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	replica := servers.RedisReplica(t, servers.Redis(t).Addr)
	f := at(t, replica.Addr, redis.Options{})
	if _, err := f.TryAcquire(t.Context(), "k", patient); !errors.Is(err, paddock.ErrUnavailable) || !redis.IsReadOnlyError(err) {
		t.Errorf("TryAcquire = %v; want ErrUnavailable and the server's READONLY", err)
	}
	repeatedUntil(t, f, func() { servers.Promote(t, replica) })
}

// repeatedUntil checks that an Acquire which fails goes on until it works.
func repeatedUntil(t *testing.T, f fixture, works func()) {
	t.Helper()
	before := servers.Sent(t, f.probe)
	got := make(chan error, 1)
	go func() {
		lease, err := f.Acquire(context.Background(), "k", patient)
		if err == nil {
			err = lease.Release(context.Background())
		}
		got <- err
	}()
	until(t, "repeated", func() bool { return servers.Sent(t, f.probe) > before+1 })
	works()
	select {
	case err := <-got:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("Acquire does not come back")
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redis.sock")
	servers.Redis(t, "--unixsocket", path)
	f := at(t, path, redis.Options{Network: "unix"})
	must(t, take(t, f, "k", patient).Release(t.Context()))
}

func TestNewRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{ReadTimeout: time.Second})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, test := range map[string]struct {
		client redis.UniversalClient
		o      Options
	}{
		"no client":                 {nil, Options{}},
		"a ring":                    {ring, Options{}},
		"braces":                    {client, Options{Prefix: "a{b}"}},
		"a prefix that is not text": {client, Options{Prefix: "\xff"}},
		"a long prefix":             {client, Options{Prefix: strings.Repeat("a", 129)}},
		"a negative CloseWait":      {client, Options{CloseWait: -1}},
		"negative MinReplicas":      {client, Options{MinReplicas: -1}},
		"a tiny ReplicaWait":        {client, Options{MinReplicas: 1, ReplicaWait: time.Microsecond}},
		"a long ReplicaWait":        {client, Options{MinReplicas: 1, ReplicaWait: time.Second}},
		"replicas it cannot reach":  {struct{ redis.UniversalClient }{client}, Options{MinReplicas: 1}},
	} {
		if _, err := New(test.client, &test.o); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", name, err)
		}
	}
	l, err := New(client, nil)
	must(t, err)
	must(t, l.Close())
	if g := l.Guarantees(); g.Backend != "redis" || g.Exclusion != paddock.SingleServer || g.Assumes == "" {
		t.Errorf("Guarantees are %+v", g)
	}
}
