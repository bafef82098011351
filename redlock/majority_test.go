package redlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// TestMajorityDown has three of five nodes down, in both ways. Everybody is told, in time, and what has failed recovers.
func TestMajorityDown(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		down, up func(*servers.Process)
		says     string
	}{
		"killed":  {(*servers.Process).Kill, (*servers.Process).Restart, "refused"},
		"stopped": {(*servers.Process).Pause, (*servers.Process).Resume, errSilent.Error()},
	}
	var running sync.WaitGroup // they wait, most of the time
	defer running.Wait()
	each := func(name string, run func(t *testing.T)) { running.Go(func() { t.Run(name, run) }) }
	for way, does := range ways {
		for kind, o := range kinds {
			each(way+", "+kind, func(t *testing.T) {
				c := newCluster(t)
				opts := Options{Prefix: newPrefix()}
				o.PoolSize = impatient.PoolSize
				l := c.open(t, o, opts)
				must(t, take(t, l, "warm").Release(t.Context()))
				brief := &paddock.Options{TTL: 2 * time.Second}
				holder, err := l.Acquire(t.Context(), "renewed", brief)
				must(t, err)
				released := take(t, l, "released")
				l.quorum.wait(time.Minute)
				for _, i := range []int{0, 2, 4} {
					does.down(c.nodes[i])
				}
				deadline := holder.Deadline()

				begun := time.Now()
				_, err = l.TryAcquire(t.Context(), "k", brief)
				unavailable(t, "TryAcquire", err, time.Since(begun), 0, brief.TTL)
				for _, i := range []int{0, 2, 4} {
					if !strings.Contains(err.Error(), c.addrs[i]) {
						t.Errorf("the error does not name node %d: %v", i, err)
					}
				}
				says := does.says
				if kind == "default" { // which is still dialling
					says = errSilent.Error()
				}
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the error does not say %q: %v", says, err)
				}

				begun = time.Now()
				err = released.Release(t.Context())
				unavailable(t, "Release", err, time.Since(begun), 0, 5*time.Second)

				begun = time.Now()
				ended, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err = l.Acquire(ended, "k", brief)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 5*time.Second {
					t.Errorf("Acquire whose context ends: %v after %v", err, time.Since(begun))
				}

				begun = time.Now()
				_, err = l.Acquire(t.Context(), "k", brief)
				unavailable(t, "Acquire", err, time.Since(begun), 5*time.Second, 5*time.Second+brief.TTL)

				select {
				case <-holder.Context().Done():
				case <-time.After(20 * time.Second):
					t.Fatal("a holder whose majority is down is not told")
				}
				if late := time.Since(deadline); late < 0 {
					t.Errorf("it is told %v before its Deadline", -late)
				}

				got := make(chan error, 1)
				go func() {
					got <- paddock.Do(context.Background(), l, "k", minute, func(context.Context, *paddock.Lease) error { return nil })
				}()
				until(t, "repeated", func() bool {
					l.quorum.nodes[0].mu.Lock()
					defer l.quorum.nodes[0].mu.Unlock()
					return l.quorum.nodes[0].asked > 0
				})
				for _, i := range []int{0, 2, 4} {
					does.up(c.nodes[i])
				}
				select {
				case err := <-got:
					must(t, err)
				case <-time.After(20 * time.Second):
					t.Fatal("Acquire does not come back with the nodes")
				}
				soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				lease, err := l.Acquire(soon, "released", minute) // when a majority was told of the release
				must(t, err)
				must(t, lease.Release(t.Context()))
				c.empty(t, opts.Prefix)
			})
		}
	}
}

// unavailable checks an error, and that it has come after a time from least to most, with allowance for a slow machine.
func unavailable(t *testing.T, what string, err error, took, least, most time.Duration) {
	t.Helper()
	if !errors.Is(err, paddock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, paddock.ErrHeld) {
		t.Errorf("%s = %v; want ErrUnavailable and nothing else", what, err)
	}
	if took < least || took > most+5*time.Second {
		t.Errorf("%s took %v; want %v to %v", what, took, least, most)
	}
}
