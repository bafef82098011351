package maplock

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/faulty"
)

func TestConformance(t *testing.T) {
	store := NewStore()
	conformance.Run(t, conformance.Backend{
		Open: func(testing.TB) paddock.Locker { return New(store) },
		Left: store.left,
	})
}

// TestConformanceByNetwork has every Locker behind a link within the process that can be spoiled. A server has a proxy before
// it instead.
func TestConformanceByNetwork(t *testing.T) {
	store := NewStore()
	var sent atomic.Int64
	guarantees := New(store).Guarantees()
	open := func() (paddock.Locker, *faulty.Link) {
		link := faulty.New(store, &sent)
		var k *backend.Keeper
		k = backend.NewKeeper(guarantees, link, &backend.KeeperOptions{
			Watch: func(key string) func() { return store.watch(k, key) },
		})
		return k, link
	}
	conformance.Run(t, conformance.Backend{
		Open: func(testing.TB) paddock.Locker {
			l, _ := open()
			return l
		},
		Faults: &conformance.Faults{
			Open: func(testing.TB) (paddock.Locker, conformance.Link) {
				l, k := open()
				return l, conformance.Link{
					DelayRequests: k.DelayRequests, DelayReplies: k.DelayReplies, LoseReplies: k.LoseReplies,
					Silence: k.Silence, Cut: k.Cut, Pass: k.Pass,
				}
			},
			Restart: func(testing.TB) {}, // nothing of it runs
			Forget:  func(testing.TB) { store.forget() },
		},
		Commands: sent.Load,
		Left:     store.left,
	})
}

func (s *Store) left(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.locks)), nil
}

func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.locks {
		k.timer.Stop()
	}
	clear(s.locks)
}
