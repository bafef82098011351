package stampede_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
)

func TestStoreDown(t *testing.T) {
	for _, on := range []stampede.Recourse{stampede.Load, stampede.Fail} {
		t.Run(on.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				var down atomic.Int64
				p := stampede.Policy{Pattern: "*", TTL: time.Minute, OnStoreDown: on, MaxConcurrentLoads: 3}
				c := f.process(p, &stampede.Options[string]{Observer: &stampede.Observer{StoreDown: func(string, error) { down.Add(1) }}})
				f.store.Cut()
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range 90 {
					wg.Go(func() {
						r, err := c.Lookup(t.Context(), string(rune('a'+i%9)), f.load(100*time.Millisecond))
						if on == stampede.Fail && !errors.Is(err, stampede.ErrStoreDown) {
							t.Errorf("got %v, want ErrStoreDown", err)
						}
						if on == stampede.Load && (err != nil || r.Status != stampede.Bypassed && r.Status != stampede.Waited || !errors.Is(r.Cause, stampede.ErrStoreDown)) {
							t.Errorf("%+v, %v; want it bypassed, with the cause", r, err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(begun); took > 4*time.Second {
					t.Errorf("took %v", took)
				}
				if n := f.most.Load(); n > 3 {
					t.Errorf("%d loads at a time, want MaxConcurrentLoads (3)", n)
				}
				if n := f.loads.Load(); on == stampede.Fail && n != 0 || on == stampede.Load && n > 18 {
					t.Errorf("%d loads of nine keys", n)
				}
				if down.Load() == 0 {
					t.Error("the observer was not told")
				}
				f.store.Restore()
				time.Sleep(time.Second)
				r, err := c.Lookup(t.Context(), "a", f.load(0))
				if err != nil || r.Status != stampede.Loaded {
					t.Errorf("once the store is back: %+v, %v", r, err)
				}
			})
		})
	}
}

func TestLockerDown(t *testing.T) {
	for _, on := range []stampede.Recourse{stampede.Load, stampede.Fail} {
		t.Run(on.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				var down atomic.Int64
				l := &leases{Locker: f.lock, err: paddock.ErrUnavailable}
				c := f.process(stampede.Policy{TTL: time.Minute, OnLockerDown: on, Locker: l, MaxConcurrentLoads: 3},
					&stampede.Options[string]{Observer: &stampede.Observer{LockerDown: func(string, error) { down.Add(1) }}})
				var wg sync.WaitGroup
				for i := range 90 {
					wg.Go(func() {
						r, err := c.Lookup(t.Context(), string(rune('a'+i%9)), f.load(100*time.Millisecond))
						switch {
						case on == stampede.Fail:
							if !errors.Is(err, stampede.ErrLockerDown) || !errors.Is(err, paddock.ErrUnavailable) {
								t.Errorf("got %v, want ErrLockerDown with the locker's error", err)
							}
						case err != nil || r.Status == stampede.Bypassed && !errors.Is(r.Cause, stampede.ErrLockerDown):
							t.Errorf("%+v, %v; want it bypassed, with the cause", r, err)
						}
					})
				}
				wg.Wait()
				if n := f.most.Load(); n > 3 {
					t.Errorf("%d loads at a time, want MaxConcurrentLoads (3)", n)
				}
				if n := f.loads.Load(); on == stampede.Fail && n != 0 || on == stampede.Load && n != 9 {
					t.Errorf("%d loads of nine keys", n)
				}
				if n := down.Load(); n == 0 || n > 9 {
					t.Errorf("the observer was told %d times", n)
				}
				l.err = nil
				time.Sleep(time.Second)
				r, err := c.Lookup(t.Context(), "z", f.load(0))
				if err != nil || r.Status != stampede.Loaded {
					t.Errorf("once the locker is back: %+v, %v", r, err)
				}
			})
		})
	}
}

// silent is a Locker that never answers.
type silent struct {
	*memlock.Locker
	tried *atomic.Int64
}

func (l silent) TryAcquire(ctx context.Context, _ string, _ *paddock.Options) (*paddock.Lease, error) {
	l.tried.Add(1)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestSilentLocker: MaxWait also bounds the wait for a Locker that does not answer, and for a while the other keys do not wait for it,
// whichever policy of that Locker they have.
func TestSilentLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		var down atomic.Int64
		l := silent{f.lock, new(atomic.Int64)}
		p := stampede.Policy{TTL: time.Minute, Locker: l, MaxWait: 2 * time.Second, AfterMaxWait: stampede.Load}
		var ps stampede.Policies
		for _, p.Pattern = range []string{"a*", "b*"} {
			ps = append(ps, p)
		}
		c, err := stampede.New(f.store, ps, &stampede.Options[string]{Observer: &stampede.Observer{LockerDown: func(string, error) { down.Add(1) }}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := time.Now()
		r, err := c.Lookup(t.Context(), "a", f.load(0))
		if took := time.Since(begun); err != nil || r.Status != stampede.Bypassed || !errors.Is(r.Cause, stampede.ErrWaitTimeout) || took > 2100*time.Millisecond {
			t.Errorf("%+v, %v after %v; want it bypassed after MaxWait", r, err, took)
		}
		begun = time.Now()
		for _, key := range []string{"aa", "b"} {
			r, err := c.Lookup(t.Context(), key, f.load(0))
			if err != nil || r.Status != stampede.Bypassed || !errors.Is(r.Cause, stampede.ErrLockerDown) || time.Since(begun) > 100*time.Millisecond {
				t.Errorf("%s: %+v, %v after %v; want it bypassed at once", key, r, err, time.Since(begun))
			}
		}
		if n, m := l.tried.Load(), down.Load(); n != 1 || m != 1 {
			t.Errorf("the Locker was asked %d times, and the observer told %d times that it is down; want one each", n, m)
		}
	})
}

// TestDeadlineBeforeStoreTimeout: a store that does not answer costs a caller no more than its own deadline, also where that comes only
// a little after StoreTimeout.
func TestDeadlineBeforeStoreTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, OnStoreDown: stampede.Fail}, &stampede.Options[string]{StoreTimeout: time.Second})
		f.store.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		if _, err := c.Get(ctx, "k", f.load(0)); err == nil || time.Since(begun) > 1100*time.Millisecond {
			t.Errorf("%v after %v, want an error within 1.1 s", err, time.Since(begun))
		}
	})
}

// exploding is a Store whose first Get panics.
type exploding struct {
	stampede.Store
	once sync.Once
}

func (s *exploding) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	time.Sleep(10 * time.Millisecond)
	s.once.Do(func() { panic("in the store") })
	return s.Store.Get(ctx, keys...)
}

// TestStorePanics: a panic in the store is its caller's, who may survive it; those who wait for the same read make another.
func TestStorePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c, err := stampede.New(&exploding{Store: f.store}, stampede.Policies{{Pattern: "*", TTL: time.Minute}}, (*stampede.Options[string])(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		var survived, served atomic.Int64
		for range 10 {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						survived.Add(1)
					}
				}()
				if v, err := c.Get(ctx, "k", f.load(0)); err != nil || v != "value 1" {
					t.Errorf("%q, %v", v, err)
				}
				served.Add(1)
			})
		}
		wg.Wait()
		if survived.Load() != 1 || served.Load() != 9 {
			t.Errorf("%d panics, %d calls served; want 1 and 9", survived.Load(), served.Load())
		}
	})
}

// TestChangeGivenUp: a Set or an Invalidate that ends with its context says so, with the cause; one that ends with StoreTimeout says
// that the store is down.
func TestChangeGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c, err := stampede.New(&faults{Store: f.store, silent: true}, stampede.Policies{{Pattern: "*", TTL: time.Minute}}, (*stampede.Options[string])(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for what, change := range map[string]func(context.Context) error{
			"Set":        func(ctx context.Context) error { return c.Set(ctx, "k", "v") },
			"Invalidate": func(ctx context.Context) error { return c.Invalidate(ctx, "k") },
		} {
			why := errors.New("why")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, why)
			err := change(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || errors.Is(err, stampede.ErrStoreDown) {
				t.Errorf("%s whose context ends: %v; want that, and its cause", what, err)
			}
			if err := change(t.Context()); !errors.Is(err, stampede.ErrStoreDown) {
				t.Errorf("%s of a store that says nothing: %v; want ErrStoreDown", what, err)
			}
		}
	})
}
