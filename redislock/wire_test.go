package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

func TestWireCost(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t).Addr, redis.Options{})
	must(t, take(t, f, "warm", patient).Release(t.Context())) // the scripts are known now
	var lease *paddock.Lease
	for _, step := range []struct {
		what string
		do   func() error
		want int64
	}{
		{"an acquisition", func() error { lease = take(t, f, "k", patient); return nil }, 1},
		{"a refused try", func() error {
			if _, err := f.TryAcquire(t.Context(), "k", patient); !errors.Is(err, paddock.ErrHeld) {
				return fmt.Errorf("want ErrHeld, got %v", err)
			}
			return nil
		}, 1},
		{"a release", func() error { return lease.Release(t.Context()) }, 1},
	} {
		before := servers.Sent(t, f.probe)
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if n := servers.Sent(t, f.probe) - before; n != step.want {
			t.Errorf("%s costs %d commands; want %d", step.what, n, step.want)
		}
	}
}

// TestWireCostOfWaiting has many goroutines wait for one key.
func TestWireCostOfWaiting(t *testing.T) {
	t.Parallel()
	addr := servers.Redis(t).Addr
	for _, waiters := range []int{1, 200} {
		holder := at(t, addr, redis.Options{})
		lease := take(t, holder, "k", patient)
		var contended atomic.Int64
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { client.Close() })
		l, err := New(client, &Options{Prefix: holder.prefix, Observer: &paddock.Observer{
			Contended: func(string, time.Duration) { contended.Add(1) },
		}})
		must(t, err)
		t.Cleanup(func() { l.Close() })

		before := servers.Sent(t, holder.probe)
		var waiting sync.WaitGroup
		wait := func() {
			if err := paddock.Do(t.Context(), l, "k", patient, func(context.Context, *paddock.Lease) error { return nil }); err != nil {
				t.Error(err)
			}
		}
		subscribed := func() bool {
			return holder.probe.PubSubNumSub(t.Context(), l.server.channel).Val()[l.server.channel] == 1
		}
		waiting.Go(wait)
		until(t, "subscribed", subscribed)
		for range waiters - 1 {
			waiting.Go(wait)
		}
		until(t, "waiting", func() bool { return contended.Load() == int64(waiters) })
		// The first asks, once more when it could hear of a release, and again when it is subscribed.
		if n := servers.Sent(t, holder.probe) - before; n > 6 {
			t.Errorf("%d goroutines that wait cost %d commands; that should not depend on how many they are", waiters, n)
		}
		before = servers.Sent(t, holder.probe)
		must(t, lease.Release(t.Context()))
		waiting.Wait()
		if n, want := servers.Sent(t, holder.probe)-before, int64(1+2*waiters+waiters/2+5); n > want {
			t.Errorf("%d hand-offs cost %d commands; want 2 each, some tries in vain and the first release: %d", waiters, n, want)
		}
	}
}

func TestScriptsFlushed(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	f := at(t, server.Addr, redis.Options{})
	flush := func() { must(t, f.probe.ScriptFlush(t.Context()).Err()) }
	flush()
	lease := take(t, f, "k", patient)
	flush()
	must(t, lease.Extend(t.Context(), 2*time.Minute))
	flush()
	_, err := f.Inspect(t.Context(), "k")
	must(t, err)
	flush()
	must(t, f.server.Undo(t.Context(), attempt("k", time.Minute)))
	flush()
	must(t, lease.Release(t.Context()))

	// A batch of renewals, all of which find the script gone.
	var renewed atomic.Int64
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { client.Close() })
	l, err := New(client, &Options{Prefix: f.prefix, Observer: &paddock.Observer{
		Renewed: func(*paddock.Lease, time.Duration) { renewed.Add(1) },
	}})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	leases := make([]*paddock.Lease, 50)
	for i := range leases {
		leases[i] = take(t, l, fmt.Sprint("batch", i), &paddock.Options{TTL: 3 * time.Second})
	}
	flush()
	until(t, "renewed", func() bool { return renewed.Load() >= int64(len(leases)) })
	for _, lease := range leases {
		must(t, lease.Err())
		must(t, lease.Release(t.Context()))
	}
}

func TestDataFlushed(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t).Addr, redis.Options{})
	lease := take(t, f, "k", &paddock.Options{TTL: 3 * time.Second})
	must(t, f.probe.FlushAll(t.Context()).Err())
	select {
	case <-lease.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the holder has not learnt that its lock is gone")
	}
	if err := lease.Err(); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("the lease ended with %v; want ErrLost", err)
	}
	next := take(t, f, "k", patient)
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d: the server's clock should carry the order when the record is gone", next.Token(), lease.Token())
	}
	must(t, next.Release(t.Context()))
}

// TestLostReply loses the reply to a try. go-redis repeats the request behind our back, and the repetition finds its own lock.
func TestLostReply(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy := servers.NewProxy(t, server.Addr)
	f := at(t, server.Addr, redis.Options{})
	l := openAt(t, proxy.Addr, f.prefix, redis.Options{})
	t.Cleanup(func() { l.Close() })
	must(t, take(t, l, "warm", patient).Release(t.Context()))

	before := servers.Sent(t, f.probe)
	proxy.LoseReplies()
	got := make(chan *paddock.Lease, 1)
	go func() {
		lease, err := l.TryAcquire(context.Background(), "k", patient) // once: only the client repeats
		if err != nil {
			t.Errorf("TryAcquire whose first reply was lost: %v", err)
		}
		got <- lease
	}()
	lock, _ := f.server.names("k")
	until(t, "locked", func() bool { return f.probe.Exists(t.Context(), lock).Val() == 1 })
	until(t, "lost", proxy.Lost)
	proxy.Pass() // and the connection breaks
	lease := <-got
	if lease == nil {
		t.FailNow()
	}
	if n := servers.Sent(t, f.probe) - before; n != 2 {
		t.Errorf("the try cost %d commands; this test is about a request that is sent twice", n)
	}
	if owner := f.probe.Get(t.Context(), lock).Val(); owner != lease.Owner() {
		t.Errorf("the lock is %q's, the lease is %q's", owner, lease.Owner())
	}
	must(t, lease.Release(t.Context()))
	_, fence := f.server.names("k")
	if !f.probe.HExists(t.Context(), fence, "undone:"+lease.Owner()).Val() {
		t.Error("the lease was asked for twice, and its release left no mark for the one that may still arrive")
	}
	if fields := f.probe.HKeys(t.Context(), f.prefix+":v1:{warm}:fence").Val(); len(fields) != 4 {
		t.Errorf("an acquisition that was sent once left the fields %q", fields)
	}
}

// TestLostReplyToRelease has go-redis repeat a release, which then finds the lock gone.
func TestLostReplyToRelease(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy := servers.NewProxy(t, server.Addr)
	f := at(t, server.Addr, redis.Options{})
	l := openAt(t, proxy.Addr, f.prefix, redis.Options{})
	t.Cleanup(func() { l.Close() })
	must(t, take(t, l, "warm", patient).Release(t.Context()))
	lease := take(t, l, "k", patient)
	proxy.LoseReplies()
	got := make(chan error, 1)
	go func() { got <- lease.Release(context.Background()) }()
	lock, _ := f.server.names("k")
	until(t, "released", func() bool { return f.probe.Exists(t.Context(), lock).Val() == 0 })
	until(t, "lost", proxy.Lost)
	proxy.Pass()
	if err := <-got; err != nil {
		t.Errorf("Release whose first reply was lost: %v; it did what it should", err)
	}
}

// TestShorterExtendUnanswered has a shorter Extend arrive after a longer one, which has to prove that it will do nothing.
func TestShorterExtendUnanswered(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy := servers.NewProxy(t, server.Addr)
	f := at(t, server.Addr, redis.Options{})
	l := openAt(t, proxy.Addr, f.prefix, redis.Options{MaxRetries: -1})
	t.Cleanup(func() { l.Close() })
	lease := take(t, l, "k", patient)

	proxy.DelayRequests(2 * time.Second)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := lease.Extend(short, 5*time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("an Extend that was delayed: %v", err)
	}
	delayed := time.Now()
	if left := time.Until(lease.Deadline()); left > 5*time.Second {
		t.Errorf("the window is %v after a shorter Extend of unknown outcome", left)
	}
	proxy.DelayRequests(0)
	must(t, lease.Extend(t.Context(), time.Minute))
	if left := time.Until(lease.Deadline()); left < 50*time.Second {
		t.Errorf("the window is %v after an Extend to a minute that overtook the shorter one", left)
	}
	until(t, "past the delay", func() bool { return time.Since(delayed) > 2500*time.Millisecond })
	if left := f.left(t, "k"); left < 50*time.Second {
		t.Errorf("the shorter Extend arrived late and left %v on the server, with a window of %v", left, time.Until(lease.Deadline()))
	}
	must(t, lease.Release(t.Context()))
}
