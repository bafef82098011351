package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/servers"
)

// far is above the clock of every node, which therefore has no part in tokens that begin with it.
const far = fencing.MaxToken / 2

// begin writes a token into all records of key, as an acquisition long ago would have.
func (c *cluster) begin(t *testing.T, l *Locker, key string, token fencing.Token) {
	t.Helper()
	for _, p := range c.probes {
		must(t, p.HSet(t.Context(), l.quorum.names(key).fence, "token", digits(token), "writer", uuid.NewString()).Err())
	}
}

// TestTokensWithNodesWiped loses the memory of two nodes again and again, and reaches different nodes each time. The fence quorum of four
// is made for that: tokens rise by what the others remember.
func TestTokensWithNodesWiped(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for kind, o := range kinds {
		t.Run(kind, func(t *testing.T) {
			o.PoolSize = impatient.PoolSize
			l, links := c.behindProxies(t, all, o, Options{Prefix: newPrefix(), FenceQuorum: 4})
			c.begin(t, l, "k", far)
			last, wiped := far, rand.Perm(5)[:2]
			for round := range 25 {
				away := links[rand.IntN(5)]
				away.Cut()
				must(t, c.probes[wiped[rand.IntN(2)]].FlushAll(t.Context()).Err())
				lease, err := l.Acquire(t.Context(), "k", minute)
				must(t, err)
				if lease.Token() <= last {
					t.Fatalf("round %d: token %d was followed by %d; %v were wiped", round, last, lease.Token(), wiped)
				}
				last = lease.Token()
				must(t, lease.Release(t.Context()))
				away.Pass()
			}
			if last < far || last > far+1000 {
				t.Errorf("the last token is %d; want a little more than %d", last, far)
			}
		})
	}
}

// TestTokensAfterAllWereWiped has nothing but the clocks.
func TestTokensAfterAllWereWiped(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.open(t, impatient, Options{Prefix: newPrefix()})
	before := fencing.Token(time.Now().Add(-time.Minute).UnixMicro())
	last := before
	for range 5 {
		lease := take(t, l, "k")
		if lease.Token() <= last || lease.Token() > fencing.Token(time.Now().Add(time.Minute).UnixMicro()) {
			t.Errorf("token %d was followed by %d; the time is %d", last, lease.Token(), time.Now().UnixMicro())
		}
		last = lease.Token()
		must(t, lease.Release(t.Context()))
		l.quorum.wait(time.Minute)
		c.each(func(i int) { must(t, c.probes[i].FlushAll(t.Context()).Err()) })
	}
}

// TestTokensOfLocksThatEndEarly deletes locks under their holders: those then have company, and never the same token.
func TestTokensOfLocksThatEndEarly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	a, b := c.open(t, impatient, opts), c.open(t, impatient, opts)
	c.begin(t, a, "k", far)
	ended, stop := context.WithCancel(t.Context())
	deleting := make(chan struct{})
	go func() {
		defer close(deleting)
		for ended.Err() == nil {
			_ = c.probes[rand.IntN(5)].Del(ended, a.quorum.names("k").lock) // whose end comes with the test's
		}
	}()
	tokens := make(chan fencing.Token, 1000)
	done := make(chan struct{})
	for _, l := range []*Locker{a, b} {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 100 {
				lease, err := l.TryAcquire(context.Background(), "k", minute)
				if errors.Is(err, paddock.ErrHeld) || errors.Is(err, paddock.ErrUnavailable) {
					continue
				} else if err != nil {
					t.Errorf("TryAcquire: %v", err)
					return
				}
				tokens <- lease.Token()
				_ = lease.Release(context.Background()) // it is lost, as a rule
			}
		}()
	}
	<-done
	<-done
	stop()
	<-deleting
	close(tokens)
	seen := map[fencing.Token]bool{}
	for token := range tokens {
		if seen[token] || token <= far {
			t.Errorf("the token %d was given twice, or is old", token)
		}
		seen[token] = true
	}
	if len(seen) == 0 {
		t.Error("nobody was granted anything")
	}
}

// TestFenceQuorum has fewer nodes than the fence needs, and more than the lock does.
func TestFenceQuorum(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix(), FenceQuorum: 4}
	l, links := c.behindProxies(t, []int{0, 1}, impatient, opts)
	must(t, take(t, l, "k").Release(t.Context()))
	l.quorum.wait(time.Minute)
	links.each((*servers.Proxy).Cut)
	if _, err := l.TryAcquire(t.Context(), "k", minute); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("TryAcquire with three nodes = %v; the token has to be written by four", err)
	}
	c.empty(t, opts.Prefix)
	links[0].Pass()
	lease := take(t, l, "k")
	l.quorum.wait(time.Minute)
	written := 0
	for _, p := range c.probes {
		if token, _ := p.HGet(t.Context(), l.quorum.names("k").fence, "token").Result(); token == digits(lease.Token()) {
			written++
		}
	}
	if written < 4 {
		t.Errorf("%d nodes have written the token; want 4", written)
	}
	must(t, lease.Release(t.Context()))
	links[1].Pass()
}
