package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// subscribers are the connections that listen to f's channel.
func (f fixture) subscribers(tb testing.TB) int64 {
	tb.Helper()
	n, err := f.probe.PubSubNumSub(tb.Context(), f.server.channel).Result()
	must(tb, err)
	return n[f.server.channel]
}

// waitFor begins an Acquire that has to wait.
func waitFor(ctx context.Context, l paddock.Locker, key string) <-chan error {
	got := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(ctx, key, patient)
		if err == nil {
			err = lease.Release(context.Background())
		}
		got <- err
	}()
	return got
}

// comes checks that a waiter is served, sooner than its timer would.
func comes(tb testing.TB, got <-chan error, what string) {
	tb.Helper()
	select {
	case err := <-got:
		if err != nil {
			tb.Fatalf("%s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		tb.Fatalf("%s: not served", what)
	}
}

func TestOneSubscription(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	f.waiting.keep = 50 * time.Millisecond
	other := openAt(t, servers.SharedRedis(t), f.prefix, redis.Options{})
	defer other.Close()
	var leases []*paddock.Lease
	var waiters []<-chan error
	for i := range 10 {
		key := fmt.Sprint("k", i)
		leases = append(leases, take(t, other, key, patient))
		waiters = append(waiters, waitFor(t.Context(), f, key))
	}
	until(t, "subscribed", func() bool { return f.subscribers(t) > 0 })
	for i, lease := range leases {
		must(t, lease.Release(t.Context()))
		comes(t, waiters[i], "a waiter after a release")
		if n := f.subscribers(t); i < len(leases)-1 && n != 1 {
			t.Errorf("%d connections listen for one Locker; want 1", n)
		}
	}
	until(t, "unsubscribed", func() bool { return f.subscribers(t) == 0 })

	// And once more.
	lease := take(t, other, "k", patient)
	waiter := waitFor(t.Context(), f, "k")
	until(t, "subscribed again", func() bool { return f.subscribers(t) == 1 })
	must(t, lease.Release(t.Context()))
	comes(t, waiter, "a waiter of the second subscription")
}

func TestSubscriptionEndsWithClose(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	lease := take(t, f, "k", patient)
	l := openAt(t, servers.SharedRedis(t), f.prefix, redis.Options{})
	waiter := waitFor(t.Context(), l, "k")
	until(t, "subscribed", func() bool { return f.subscribers(t) == 1 })
	must(t, l.Close())
	if err := <-waiter; !errors.Is(err, paddock.ErrClosed) {
		t.Errorf("a waiter of a closed Locker: %v; want ErrClosed", err)
	}
	until(t, "unsubscribed", func() bool { return f.subscribers(t) == 0 })
	must(t, lease.Release(t.Context()))
}

// TestBrokenSubscription releases while the connection that should hear of it is broken.
func TestBrokenSubscription(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	f := at(t, server.Addr, redis.Options{})
	lease := take(t, f, "k", patient)
	l := openAt(t, server.Addr, f.prefix, redis.Options{})
	defer l.Close()
	waiter := waitFor(t.Context(), l, "k")
	until(t, "subscribed", func() bool { return f.subscribers(t) == 1 })
	pipe := f.probe.TxPipeline()
	killed := pipe.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
	lock, _ := f.server.names("k")
	pipe.Del(t.Context(), lock) // nobody says so
	_, err := pipe.Exec(t.Context())
	must(t, err)
	if killed.Val() != 1 {
		t.Fatalf("%d subscriptions were killed; want 1", killed.Val())
	}
	begun := time.Now()
	comes(t, waiter, "a waiter whose subscription broke")
	t.Logf("served %v after", time.Since(begun)) // the timer would take up to 5 s
	if err := lease.Release(t.Context()); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Release of a lock that was deleted: %v", err)
	}
}

// TestNoChannelPermission has a user who may neither publish nor subscribe: locks work, and waiting goes by the timers.
func TestNoChannelPermission(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	f := at(t, server.Addr, redis.Options{})
	must(t, f.probe.Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels").Err())
	mute := redis.Options{Username: "mute", Password: "pw"}
	a, b := openAt(t, server.Addr, f.prefix, mute), openAt(t, server.Addr, f.prefix, mute)
	defer a.Close()
	defer b.Close()
	lease := take(t, a, "k", patient)
	local, remote := waitFor(t.Context(), a, "k"), waitFor(t.Context(), b, "k")
	until(t, "asked for a subscription", func() bool {
		return f.probe.ACLLog(t.Context(), 10).Val() != nil
	})
	must(t, lease.Release(t.Context()))
	comes(t, local, "a waiter in the holder's process, without a channel")
	comes(t, remote, "a waiter in another process, without a channel")
	lease = take(t, a, "k", patient)
	lock, _ := f.server.names("k")
	if owner := f.probe.Get(t.Context(), lock).Val(); owner != lease.Owner() {
		t.Errorf("the lock is %q's; want %q", owner, lease.Owner())
	}
	must(t, lease.Release(t.Context()))
	if n := f.probe.Exists(t.Context(), lock).Val(); n != 0 {
		t.Error("the release of a user who may not publish left the lock")
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	if _, err := paddock.Inspect(t.Context(), f, "k"); !errors.Is(err, paddock.ErrFree) {
		t.Errorf("Inspect of a free key: %v; want ErrFree", err)
	}
	if _, err := f.Inspect(t.Context(), ""); !errors.Is(err, paddock.ErrInvalid) {
		t.Errorf("Inspect of no key: %v; want ErrInvalid", err)
	}
	before := f.probe.Time(t.Context()).Val()
	lease := take(t, f, "k", &paddock.Options{TTL: time.Minute, Note: "the note"})
	must(t, lease.Extend(t.Context(), 30*time.Second)) // which leaves a number in the lock
	h, err := paddock.Inspect(t.Context(), f, "k")
	must(t, err)
	if h.Owner != lease.Owner() || h.Token != lease.Token() || h.Note != "the note" {
		t.Errorf("Inspect says %+v of the lease %v", h, lease.Fence())
	}
	if h.Since.Before(before) || h.Since.After(before.Add(20*time.Second)) {
		t.Errorf("Inspect says held since %v; it was taken at %v", h.Since, before)
	}
	if h.ExpiresIn > 30*time.Second || h.ExpiresIn < 10*time.Second {
		t.Errorf("Inspect says it expires in %v", h.ExpiresIn)
	}
	_, fence := f.server.names("k")
	must(t, f.probe.Del(t.Context(), fence).Err())
	if h, err := f.Inspect(t.Context(), "k"); err != nil || h.Owner != lease.Owner() || h.Token != 0 {
		t.Errorf("Inspect without a fence record: %+v, %v", h, err)
	}
	must(t, lease.Release(t.Context()))
	must(t, f.Close())
	if _, err := f.Inspect(t.Context(), "k"); !errors.Is(err, paddock.ErrClosed) {
		t.Errorf("Inspect after Close: %v; want ErrClosed", err)
	}
}

func TestInspectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.SharedRedis(t))
	l := openAt(t, proxy.Addr, newPrefix(), redis.Options{ReadTimeout: time.Minute})
	defer l.Close()
	if _, err := l.Inspect(t.Context(), "k"); !errors.Is(err, paddock.ErrFree) {
		t.Fatal(err)
	}
	proxy.Hold()
	cause := errors.New("the caller's cause")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	begun := time.Now()
	if _, err := l.Inspect(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cause) {
		t.Errorf("Inspect of a silent server: %v; want the context's error and its cause", err)
	}
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("Inspect came back %v after its context's end", d)
	}
	proxy.Cut()
	if _, err := l.Inspect(t.Context(), "k"); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("Inspect of a server that refuses: %v; want ErrUnavailable", err)
	}
}
