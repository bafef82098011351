package stampede_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

func TestFirstCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		load := f.load(200 * time.Millisecond)
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Get(ctx, "k", load); !errors.Is(err, context.Canceled) || !errors.Is(err, errGone) {
				t.Errorf("the caller that left got %v, want its context's error and cause", err)
			}
		})
		time.Sleep(50 * time.Millisecond)
		for range 10 {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), "k", load); v != "value 1" || err != nil {
					t.Errorf("who stayed got %q, %v", v, err)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		cancel(errGone)
		wg.Wait()
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}

var errGone = errors.New("gone home")

func TestLastCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		ended := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := c.Get(ctx, "k", func(ctx context.Context) (string, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return "", ctx.Err()
		})
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > 101*time.Millisecond {
			t.Errorf("%v after %v, want the deadline's error after 100 ms", err, took)
		}
		if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the load's context ended with %v, want that nobody waits", err)
		}
		synctest.Wait()
		time.Sleep(2 * rtt)
		f.unlocked("k")
		// It has not failed: the next caller loads at once.
		if v, err := c.Get(t.Context(), "k", f.load(0)); v != "value 1" || err != nil {
			t.Errorf("the next caller got %q, %v", v, err)
		}
	})
}

func TestFollowersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c, other := f.process(stampede.Policy{TTL: time.Minute}, nil), f.process(stampede.Policy{TTL: time.Minute}, nil)
		go c.Get(t.Context(), "k", f.load(time.Second))
		time.Sleep(50 * time.Millisecond)
		for name, c := range map[string]*stampede.Cache[string]{"in the same process": c, "in another": other} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			begun := time.Now()
			_, err := c.Get(ctx, "k", f.load(0))
			if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > 102*time.Millisecond {
				t.Errorf("%s a follower with 100 ms got %v after %v", name, err, took)
			}
		}
		time.Sleep(time.Second)
	})
}

func TestLoadContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, LoadTimeout: 5 * time.Second}, nil)
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "the caller's"), time.Hour)
		defer cancel()
		r, err := c.Lookup(ctx, "k", func(ctx context.Context) (string, error) {
			if ctx.Value(key{}) != "the caller's" {
				t.Error("the load's context does not have the first caller's values")
			}
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > 5*time.Second {
				t.Errorf("the load's deadline is in %v, want LoadTimeout", time.Until(end))
			}
			fence, ok := fencing.FromContext(ctx)
			if f2, ok2 := stampede.FenceOf(ctx, "k"); !ok || !ok2 || f2 != fence || !fence.Token.Valid() {
				t.Errorf("fences in the load's context: %v, %v", fence, f2)
			}
			return "v", nil
		})
		if err != nil || !r.Fence.Token.Valid() {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		begun := time.Now()
		inner := func(ctx context.Context) (string, error) { return c.Get(ctx, "a", f.load(0)) }
		for name, load := range map[string]func(context.Context) (string, error){
			"itself":      inner,
			"by way of b": func(ctx context.Context) (string, error) { return c.Get(ctx, "b", inner) },
			"in a batch": func(ctx context.Context) (string, error) {
				_, err := c.GetMany(ctx, []string{"b", "a"}, nil)
				return "", err
			},
			"by refreshing": func(ctx context.Context) (string, error) {
				_, err := c.Refresh(ctx, "a", f.load(0))
				return "", err
			},
		} {
			if err := c.Invalidate(t.Context(), "a", "b"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Get(t.Context(), "a", load); !errors.Is(err, stampede.ErrInvalid) {
				t.Errorf("a load that asks for its own key %s got %v, want ErrInvalid", name, err)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v: it was waited for", took)
		}
	})
}

// TestEveryExitReleases: after any call no lease is held, whatever way the load went.
func TestEveryExitReleases(t *testing.T) {
	errLoad := errors.New("no database")
	for name, c := range map[string]struct {
		load  func(context.Context) (string, error)
		spoil func(*faults)
		check func(error) bool
	}{
		"value":     {load: func(context.Context) (string, error) { return "v", nil }, check: func(err error) bool { return err == nil }},
		"error":     {load: func(context.Context) (string, error) { return "", errLoad }, check: is(errLoad)},
		"not found": {load: func(context.Context) (string, error) { return "", stampede.ErrNotFound }, check: is(stampede.ErrNotFound)},
		"panic": {load: func(context.Context) (string, error) { panic(errLoad) }, check: func(err error) bool {
			p := (*stampede.PanicError)(nil)
			return errors.As(err, &p) && errors.Is(err, errLoad) && strings.Contains(string(p.Stack), "TestEveryExitReleases")
		}},
		"Goexit": {load: func(context.Context) (string, error) { runtime.Goexit(); return "", nil }, check: func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "Goexit")
		}},
		"timeout": {load: func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }, check: is(stampede.ErrLoadTimeout)},
		"hung":    {load: func(context.Context) (string, error) { time.Sleep(time.Hour); return "", nil }, check: is(stampede.ErrLoadTimeout)},
		"begin fails": {
			load:  func(context.Context) (string, error) { return "v", nil },
			spoil: func(f *faults) { f.begin = errLoad }, check: func(err error) bool { return err == nil },
		},
		"put fails": {
			load:  func(context.Context) (string, error) { return "v", nil },
			spoil: func(f *faults) { f.put = errLoad }, check: func(err error) bool { return err == nil },
		},
		"no value for the codec": {
			load: func(context.Context) (string, error) { return unencodable, nil }, check: func(err error) bool { return err == nil },
		},
		"a codec that panics": {
			load: func(context.Context) (string, error) { return panicking, nil }, check: func(err error) bool { return err == nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				st := &faults{Store: f.store}
				l := &leases{Locker: f.lock}
				cache, err := stampede.New[string](st, stampede.Policies{{
					Pattern: "*", TTL: time.Minute, Locker: l, LoadTimeout: time.Second, ErrorTTL: -1, NotFoundTTL: -1,
				}}, &stampede.Options[string]{Codec: fussy{}})
				if err != nil {
					t.Fatal(err)
				}
				defer cache.Close()
				if c.spoil != nil {
					c.spoil(st)
				}
				for range 2 {
					begun := time.Now()
					if _, err := cache.Get(t.Context(), "k", c.load); !c.check(err) {
						t.Errorf("got %v", err)
					}
					if took := time.Since(begun); took > 1200*time.Millisecond {
						t.Errorf("took %v: the key was not free", took)
					}
					f.unlocked("k")
				}
				if l.granted.Load() == 0 {
					t.Error("there never was a lease")
				}
				time.Sleep(2 * time.Hour) // for the one that hangs
			})
		})
	}
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

// faults is a Store that fails on demand.
type faults struct {
	stampede.Store
	get, begin, put error
	silent          bool // as to Set and Invalidate
}

func (s *faults) Set(ctx context.Context, key string, e stampede.Entry) error {
	if s.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Set(ctx, key, e)
}

func (s *faults) Invalidate(ctx context.Context, keys ...string) error {
	if s.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Invalidate(ctx, keys...)
}

func (s *faults) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	if s.get != nil {
		return nil, s.get
	}
	return s.Store.Get(ctx, keys...)
}

func (s *faults) Begin(ctx context.Context, key, id string, keep time.Duration) (stampede.Entry, stampede.Ticket, error) {
	if s.begin != nil {
		return stampede.Entry{}, stampede.Ticket{}, s.begin
	}
	return s.Store.Begin(ctx, key, id, keep)
}

func (s *faults) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	if s.put != nil {
		return 0, s.put
	}
	return s.Store.Put(ctx, key, t, e)
}

// leases is a Locker that counts, and fails on demand.
type leases struct {
	paddock.Locker
	granted, tried atomic.Int64
	err            error
}

func (l *leases) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	l.tried.Add(1)
	if l.err != nil {
		return nil, l.err
	}
	lease, err := l.Locker.TryAcquire(ctx, key, opts)
	if err == nil {
		l.granted.Add(1)
	}
	return lease, err
}

const (
	unencodable = "cannot be encoded"
	panicking   = "panics when encoded"
)

// fussy is a Codec that does not take everything.
type fussy struct{ stampede.JSON[string] }

func (f fussy) Encode(s string) ([]byte, error) {
	switch s {
	case unencodable:
		return nil, errors.New(s)
	case panicking:
		panic(s)
	}
	return f.JSON.Encode(s)
}
