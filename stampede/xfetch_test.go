package stampede_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// seeded returns a source that several goroutines can draw from.
func seeded(seed uint64) func() float64 {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 1))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64()
	}
}

// earlyLoads has a fleet read one key through many expiries, and returns how many loads there were per expiry.
func earlyLoads(t *testing.T, beta float64, takes time.Duration, expiries int, locked bool) (perExpiry float64) {
	const (
		processes = 50
		rate      = 100 // reads in the time of a load, by all processes in turn
	)
	ttl := 100 * takes
	ahead := time.Duration(12 * beta * float64(takes)) // nobody is drawn before
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(nil)
		lock := memlock.New(nil)
		defer lock.Close()
		var loads atomic.Int64
		load := func(context.Context) (string, error) {
			loads.Add(1)
			time.Sleep(takes)
			return "v", nil
		}
		random := seeded(uint64(beta*1000) + uint64(takes))
		var caches []*stampede.Cache[string]
		for range processes {
			p := stampede.Policy{Pattern: "*", TTL: ttl, Jitter: -1, EarlyBeta: beta}
			if locked {
				p.Locker = lock
			}
			opts := &stampede.Options[string]{}
			stampede.SetRand(opts, random)
			c, err := stampede.New(store, stampede.Policies{p}, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			caches = append(caches, c)
		}
		if _, err := caches[0].Get(t.Context(), "k", load); err != nil {
			t.Fatal(err)
		}
		loads.Store(0)
		for range expiries {
			time.Sleep(ttl - ahead)
			for i, last := 0, time.Duration(0); ; i++ {
				r, err := caches[i%processes].Lookup(t.Context(), "k", load)
				if err != nil || r.Status != stampede.Fresh && r.Status != stampede.Early {
					t.Fatalf("%+v, %v", r, err)
				}
				if r.Age < last { // replaced; others may be at it still
					break
				}
				last = r.Age
				time.Sleep(takes / rate)
			}
			time.Sleep(takes)
		}
		perExpiry = float64(loads.Load()) / float64(expiries)
	})
	return perExpiry
}

// TestXFetch compares with the closed form. One expiry has a variance of about (m - 1) m loads where m is their mean, so the tolerance is
// between three and four standard deviations.
func TestXFetch(t *testing.T) {
	for _, c := range []struct {
		beta  float64
		takes time.Duration
	}{{1, 100 * time.Millisecond}, {2, 400 * time.Microsecond}} {
		t.Run(fmt.Sprintf("beta %v, load %v", c.beta, c.takes), func(t *testing.T) {
			const expiries = 100
			want := math.Exp(1 / c.beta)
			tolerance := 3.5 * math.Sqrt((want-1)*want/expiries)
			if got := earlyLoads(t, c.beta, c.takes, expiries, false); math.Abs(got-want) > tolerance {
				t.Errorf("%.2f loads per expiry without a lock, want e^(1/beta) = %.2f +- %.2f", got, want, tolerance)
			} else {
				t.Logf("%.2f loads per expiry, closed form %.2f", got, want)
			}
			if got := earlyLoads(t, c.beta, c.takes, expiries/4, true); got != 1 {
				t.Errorf("%.2f loads per expiry with a lock, want 1", got)
			}
		})
	}
}

func TestEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		opts := &stampede.Options[string]{}
		var draw atomic.Value
		draw.Store(0.0)
		stampede.SetRand(opts, func() float64 { return draw.Load().(float64) })
		c := f.process(stampede.Policy{TTL: time.Minute, EarlyBeta: 1}, opts)
		if _, err := c.Get(t.Context(), "k", f.load(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Fresh {
			t.Errorf("not drawn: %+v, %v", r, err)
		}
		draw.Store(1 - math.Exp(-11)) // 11 load times ahead
		release := f.elsewhere(nil)
		for range 3 {
			begun := time.Now()
			r, err := c.Lookup(t.Context(), "k", f.load(0))
			if err != nil || r.Value != "value 1" || r.Status != stampede.Early && r.Status != stampede.Fresh || time.Since(begun) > 2*rtt {
				t.Errorf("drawn while the key is held: %+v, %v after %v; want what there is", r, err, time.Since(begun))
			}
		}
		synctest.Wait()
		release()
		time.Sleep(200 * time.Millisecond)
		if n := f.loads.Load(); n != 1 {
			t.Errorf("who was drawn while the key was held has waited and loaded: %d loads", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r, err := c.Lookup(ctx, "k", f.load(time.Second))
		if err != nil || r.Value != "value 1" || r.Status != stampede.Early {
			t.Errorf("drawn: %+v, %v; want what there is, early", r, err)
		}
		cancel()
		time.Sleep(2 * time.Second)
		draw.Store(0.0)
		if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Value != "value 2" || r.Status != stampede.Fresh {
			t.Errorf("afterwards: %+v, %v; want what was loaded early", r, err)
		}
		f.unlocked("k")
	})
}

// TestEarlyFailure: a failed early refresh leaves the entry as it is, and is not repeated within ErrorTTL.
func TestEarlyFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		opts := &stampede.Options[string]{}
		stampede.SetRand(opts, func() float64 { return 1 - math.Exp(-1000) })
		c := f.process(stampede.Policy{TTL: time.Hour, EarlyBeta: 1, ErrorTTL: 10 * time.Second}, opts)
		if _, err := c.Get(t.Context(), "k", f.load(10*time.Second)); err != nil {
			t.Fatal(err)
		}
		f.loads.Store(0)
		for range 50 {
			if r, err := c.Lookup(t.Context(), "k", f.failing(0)); err != nil || r.Value != "value 1" {
				t.Errorf("%+v, %v", r, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d failed loads in 5 s, want 1 per ErrorTTL of 10 s", n)
		}
	})
}
