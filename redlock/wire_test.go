package redlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// sentTo counts, for each node, what do makes the Lockers send, until they have come to rest.
func (c *cluster) sentTo(tb testing.TB, do func(), lockers ...*Locker) (n [5]int64) {
	tb.Helper()
	count := func() (n [5]int64) {
		for _, l := range lockers {
			l.quorum.wait(time.Minute)
		}
		c.each(func(i int) { n[i] = servers.Sent(tb, c.probes[i]) })
		return n
	}
	before := count()
	do()
	for i, after := range count() {
		n[i] = after - before[i]
	}
	return n
}

func TestWireCost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, o := range map[string]Options{"with a fence": {}, "without": {NoFence: true}} {
		o.Prefix = newPrefix()
		a, b := c.open(t, impatient, o), c.open(t, impatient, o)
		rounds := int64(2)
		if o.NoFence {
			rounds = 1
		}
		var lease *paddock.Lease
		for warm := range 2 { // the first time scripts are sent whole
			for _, step := range []struct {
				what string
				do   func()
				want int64
			}{
				{"an acquisition", func() { lease = take(t, a, "k") }, rounds},
				{"a refused try", func() { refusedTry(t, b, "k") }, 1},
				{"an Extend", func() { must(t, lease.Extend(t.Context(), 2*time.Minute)) }, 1},
				{"a release", func() { must(t, lease.Release(t.Context())) }, 1},
			} {
				got := c.sentTo(t, step.do, a, b)
				if want := [5]int64{step.want, step.want, step.want, step.want, step.want}; warm > 0 && got != want {
					t.Errorf("%s: %s costs %v commands on the nodes; want %d on each", name, step.what, got, step.want)
				}
			}
		}
	}
}

// TestWhatStays looks at all that is on the nodes after a release, and how long it is kept.
func TestWhatStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for keep, o := range map[time.Duration]Options{keepFence: {}, keepMark: {NoFence: true}} {
		o.Prefix = newPrefix()
		l := c.open(t, impatient, o)
		must(t, take(t, l, "k").Release(t.Context()))
		l.quorum.wait(time.Minute)
		c.each(func(i int) {
			keys := c.probes[i].Keys(t.Context(), o.Prefix+"*").Val()
			if len(keys) != 1 || keys[0] != l.quorum.names("k").fence {
				t.Errorf("node %d has %q; want the fence record alone", i, keys)
			} else if left := c.probes[i].PTTL(t.Context(), keys[0]).Val(); left > keep || left < keep-time.Minute {
				t.Errorf("node %d keeps the record for %v; want %v", i, left, keep)
			}
		})
	}
}

// TestOneSubscription has several waiters, of which a node sees one subscriber, and none after Close.
func TestOneSubscription(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	o := Options{Prefix: newPrefix()}
	a, b := c.open(t, impatient, o), c.open(t, impatient, o)
	x, y := take(t, a, "x"), take(t, a, "y")
	got := make(chan error, 4)
	for _, key := range []string{"x", "x", "y", "y"} {
		go func() {
			got <- paddock.Do(context.Background(), b, key, minute, func(context.Context, *paddock.Lease) error { return nil })
		}()
	}
	subscribers := func(want int64) func() bool {
		return func() bool {
			for _, p := range c.probes {
				if p.PubSubNumSub(t.Context(), b.quorum.channel).Val()[b.quorum.channel] != want {
					return false
				}
			}
			return true
		}
	}
	until(t, "one subscriber on each node", subscribers(1))
	must(t, x.Release(t.Context()))
	must(t, y.Release(t.Context()))
	for range 4 {
		select {
		case err := <-got:
			must(t, err)
		case <-time.After(20 * time.Second): // the TTL is a minute
			t.Fatal("a waiter was not woken")
		}
	}
	must(t, b.Close())
	until(t, "no subscriber", subscribers(0))
}

// TestHints has nodes tell of releases, one by one.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		woken, all := 0, 0
		nodes := make([]*node, 5)
		h := &hints{
			quorum: &quorum{nodes: nodes, majority: 3, process: "us"},
			wake: func(string) {
				mu.Lock()
				defer mu.Unlock()
				woken++
			},
			wakeAll: func() { all++ },
			waiting: map[string]int{"a:b": 1}, heard: map[release]*retelling{}, live: make([]bool, 5),
		}
		expect := func(after string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if woken != want {
				t.Errorf("after %s the waiter was woken %d times; want %d", after, woken, want)
			}
		}
		h.told(0, "us:o:a:b")
		h.told(1, "us:o:a:b")
		h.told(2, "us:o:a:b")
		h.told(0, "others:o:another")
		time.Sleep(time.Second)
		expect("our own releases, and another key's", 0)
		h.told(0, "others:o1:a:b")
		h.told(0, "others:o1:a:b")
		h.told(4, "others:o1:a:b")
		expect("word from two nodes, one of them twice", 0)
		h.told(3, "others:o1:a:b")
		expect("word from three", 1)
		h.told(1, "others:o1:a:b")
		time.Sleep(time.Second)
		expect("word from a fourth", 1)
		h.told(2, "others:o2:a:b")
		expect("one node's word", 1)
		time.Sleep(straggling)
		expect("a while without a second's", 2)
		if len(h.heard) != 0 {
			t.Errorf("%d releases are not forgotten", len(h.heard))
		}
		for i, want := range []int{0, 0, 1, 1, 1} {
			if h.listening(t.Context(), i, true); all != want {
				t.Errorf("hearing %d nodes has woken everybody %d times; want %d", i+1, all, want)
			}
		}
		h.listening(t.Context(), 0, false)
		h.listening(t.Context(), 0, true) // a majority was heard all the time
		for _, i := range []int{1, 2, 3} {
			h.listening(t.Context(), i, false)
		}
		if h.listening(t.Context(), 3, true); all != 2 {
			t.Errorf("hearing a majority again has woken everybody %d times; want 2", all)
		}
		h.told(1, "others:o3:a:b")
		h.close()
		time.Sleep(time.Second)
		expect("the end", 2)
	})
}

// TestSubscriptionsOutliveTheLastWaiter for 30 s, and a new one that comes before then keeps them.
func TestSubscriptionsOutliveTheLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &hints{quorum: &quorum{majority: 3}, waiting: map[string]int{}, heard: map[release]*retelling{}, cancel: cancel}
		stop := h.watch("k")
		h.watch("k")()
		stop()
		time.Sleep(keepSubscribed - time.Second)
		stop = h.watch("another")
		time.Sleep(time.Minute)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("subscriptions have ended under a waiter")
		}
		stop()
		time.Sleep(keepSubscribed - time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("subscriptions have ended at once with the last waiter")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("nobody needs subscriptions, and they go on")
		}
	})
}

// TestTwins has a client that repeats what had no answer. Its twin may arrive at any time, so that node, and none else, is left a mark.
func TestTwins(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	addrs, links := c.behind(t, []int{2})
	o := Options{Prefix: newPrefix()}
	l := openAt(t, addrs, redis.Options{}, &o)
	marks := func(lease *paddock.Lease) (on []int) {
		l.quorum.wait(time.Minute)
		for i, p := range c.probes {
			if p.Exists(t.Context(), l.quorum.names("k").mark(lease.Owner())).Val() > 0 {
				on = append(on, i)
			}
		}
		return on
	}
	lease := take(t, l, "k")
	links[0].DelayReplies(50 * time.Millisecond)
	must(t, lease.Release(t.Context()))
	if on := marks(lease); len(on) > 0 {
		t.Errorf("marks are left on %v of a lease whose requests were sent once", on)
	}
	links[0].DelayReplies(0)
	links[0].LoseReplies()
	before := servers.Sent(t, c.probes[2])
	asked := func(times int64) func() bool {
		return func() bool { return servers.Sent(t, c.probes[2]) >= before+times }
	}
	lease = take(t, l, "k")
	until(t, "asked", asked(1))
	until(t, "lost", links[0].Lost)
	links[0].Pass() // which breaks the connection
	until(t, "asked again", asked(2))
	must(t, lease.Release(t.Context()))
	if on := marks(lease); len(on) != 1 || on[0] != 2 {
		t.Errorf("marks are left on %v; the client has repeated what it sent to node 2", on)
	}
	left, err := c.left(t.Context(), o.Prefix)
	if must(t, err); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	must(t, l.Close())
}
