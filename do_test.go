package paddock_test

import (
	"context"
	"errors"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/memlock"
)

func free(t *testing.T, l paddock.Locker, key string) {
	t.Helper()
	if h, err := paddock.Inspect(t.Context(), l, key); !errors.Is(err, paddock.ErrFree) {
		t.Errorf("%q is held by %+v (%v)", key, h, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlock.New(nil)
		defer l.Close()
		ours := errors.New("ours")
		err := paddock.Do(t.Context(), l, "a", nil, func(ctx context.Context, lease *paddock.Lease) error {
			if f, ok := fencing.FromContext(ctx); !ok || f != lease.Fence() {
				t.Errorf("the context carries the fence %v, %v", f, ok)
			}
			if err := paddock.TryDo(ctx, l, "a", nil, nil); !errors.Is(err, paddock.ErrHeld) {
				t.Errorf("TryDo of a held key: %v", err)
			}
			time.Sleep(time.Minute)
			return ours
		})
		if err != ours {
			t.Errorf("Do: %v, want fn's own error", err)
		}
		free(t, l, "a")
		if err := paddock.TryDo(t.Context(), l, "a", nil, func(context.Context, *paddock.Lease) error { return nil }); err != nil {
			t.Errorf("TryDo: %v", err)
		}
	})
}

func TestDoTellsOfLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlock.New(nil)
		defer l.Close()
		ours := errors.New("ours")
		for _, ret := range []error{nil, ours} {
			err := paddock.Do(t.Context(), l, "a", nil, func(ctx context.Context, lease *paddock.Lease) error {
				l.Expire("a")
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), paddock.ErrLost) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				return ret
			})
			if !errors.Is(err, paddock.ErrLost) || (ret != nil && !errors.Is(err, ret)) {
				t.Errorf("Do: %v, want ErrLost and %v", err, ret)
			}
		}
		if err := paddock.Do(t.Context(), l, "a", nil, func(ctx context.Context, lease *paddock.Lease) error {
			return lease.Release(ctx)
		}); err != nil {
			t.Errorf("Do of an fn that releases: %v", err)
		}
	})
}

func TestDoReleasesOnEveryExit(t *testing.T) {
	l := memlock.New(nil)
	defer l.Close()
	for name, fn := range map[string]func(context.CancelFunc) error{
		"panic":     func(context.CancelFunc) error { panic("fn") },
		"Goexit":    func(context.CancelFunc) error { runtime.Goexit(); return nil },
		"ended ctx": func(cancel context.CancelFunc) error { cancel(); return nil },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			_ = paddock.Do(ctx, l, name, nil, func(ctx context.Context, _ *paddock.Lease) error { return fn(cancel) })
		}()
		if r := <-done; (r != nil) != (name == "panic") {
			t.Errorf("%s: recovered %v", name, r)
		}
		free(t, l, name)
		cancel()
	}
}

func TestDoEndsItsContextWithTheCallers(t *testing.T) {
	l := memlock.New(nil)
	defer l.Close()
	shop := errors.New("shop closes")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := paddock.Do(ctx, l, "a", nil, func(ctx context.Context, lease *paddock.Lease) error {
		cancel(shop)
		<-ctx.Done()
		if lease.Err() != nil {
			t.Errorf("the hold ended with the caller's context: %v", lease.Err())
		}
		return context.Cause(ctx)
	})
	if err != shop {
		t.Errorf("Do: %v", err)
	}
}

// TestGuarded: fn runs with the mark at the lease's fence, or not at all; either way the lease is released.
func TestGuarded(t *testing.T) {
	l := memlock.New(nil)
	defer l.Close()
	var guard fencing.Memory
	for name, do := range map[string]func(context.Context, paddock.Locker, string, *paddock.Options, func(context.Context, *paddock.Lease) error) error{
		"Do": paddock.Do, "TryDo": paddock.TryDo,
	} {
		ours := errors.New("ours")
		var first fencing.Fence
		err := do(t.Context(), l, name, nil, paddock.Guarded(&guard, name, func(ctx context.Context, lease *paddock.Lease) error {
			first = lease.Fence()
			deposed := first
			deposed.Token--
			if err := guard.Advance(ctx, name, deposed); !errors.Is(err, fencing.ErrStale) {
				t.Errorf("%s: an earlier holder while fn runs: %v; want ErrStale", name, err)
			}
			return ours
		}))
		if err != ours {
			t.Errorf("%s of a guarded fn: %v; want its own error", name, err)
		}
		free(t, l, name)

		never := paddock.Guarded(&guard, name, func(context.Context, *paddock.Lease) error {
			t.Errorf("%s: fn runs though the guard refused", name)
			return nil
		})
		later := first
		later.Token += 1e9
		must(t, guard.Advance(t.Context(), name, later))
		var stale *fencing.StaleError
		if err := do(t.Context(), l, name, nil, never); !errors.As(err, &stale) || stale.Seen != later {
			t.Errorf("%s where a later holder was: %v; want a StaleError", name, err)
		}
		free(t, l, name)
		must(t, guard.Migrate(t.Context(), name, first.Domain, "another"))
		if err := do(t.Context(), l, name, nil, never); !errors.Is(err, fencing.ErrDomain) {
			t.Errorf("%s where the mark is of another domain: %v; want ErrDomain", name, err)
		}
		free(t, l, name)
		if err := do(t.Context(), l, name, nil, paddock.Guarded(unreachable{}, name, nil)); !errors.Is(err, errUnreachable) {
			t.Errorf("%s with a guard that cannot be reached: %v", name, err)
		}
		free(t, l, name)
	}
}

// unreachable is a guard that cannot be.
type unreachable struct{}

var errUnreachable = errors.New("unreachable")

func (unreachable) Advance(context.Context, string, fencing.Fence) error { return errUnreachable }

// TestGuardedLoss: a lease that is lost while the guard is asked ends that call, and is told as lost.
func TestGuardedLoss(t *testing.T) {
	l := memlock.New(nil)
	defer l.Close()
	err := paddock.Do(t.Context(), l, "a", nil, paddock.Guarded(slow{l}, "a", func(context.Context, *paddock.Lease) error {
		t.Error("fn runs on a lost lease")
		return nil
	}))
	if !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Do: %v; want ErrLost", err)
	}
}

// slow is a guard that answers when the lease is over.
type slow struct{ l *memlock.Locker }

func (s slow) Advance(ctx context.Context, resource string, _ fencing.Fence) error {
	s.l.Expire(resource)
	<-ctx.Done()
	return ctx.Err()
}

// wrapped is a Locker around another, as users write them.
type wrapped struct{ paddock.Locker }

func (w wrapped) Unwrap() paddock.Locker { return w.Locker }

func TestInspect(t *testing.T) {
	m := memlock.New(nil)
	defer m.Close()
	l := wrapped{wrapped{m}}
	free(t, l, "a")
	lease, err := l.Acquire(t.Context(), "a", &paddock.Options{Note: "nightly"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(t.Context())
	h, err := paddock.Inspect(t.Context(), l, "a")
	if err != nil || h.Owner != lease.Owner() || h.Note != "nightly" || h.Token != lease.Token() ||
		time.Since(h.Since) > time.Minute || h.ExpiresIn <= 0 || h.ExpiresIn > lease.TTL() {
		t.Errorf("Inspect: %+v, %v", h, err)
	}
	if _, err := paddock.Inspect(t.Context(), struct{ paddock.Locker }{m}, "a"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Inspect through a wrapper that hides it: %v", err)
	}
	if _, err := paddock.Inspect(t.Context(), l, ""); !errors.Is(err, paddock.ErrInvalid) {
		t.Errorf("Inspect of no key: %v", err)
	}
}

func TestOpen(t *testing.T) {
	l, err := paddock.Open(t.Context(), "memory:?prefix=billing&close_wait=1s", nil)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer l.Close()
	if b := l.Guarantees().Backend; b != "memory" {
		t.Errorf("opened %q", b)
	}
	for url, says := range map[string]string{
		"":                                 "without a scheme",
		"localhost:6379":                   `scheme "localhost" is not registered`,
		"redis://h:6379":                   `import _ "github.com/paddock-go/paddock/redislock"`,
		"memory:?prefix=":                  "prefix is empty",
		"memory:?prfix=a":                  `unknown URL parameters ["prfix"]`,
		"memory://hunter2@h":               "parameters only",
		"memory://:hunter2/#@host:1":       "percent-encode",
		"memory://u:hunter2%zz@host:1":     "percent-encode",
		"memory://u:hunter2@host:port":     "percent-encode",
		"memory://u:hunter2@a:1,,b:2":      "percent-encode",
		"memory://:1hunter2/x@host:1":      "percent-encode",
		"memory:hunter2":                   "percent-encode",
		"memory:?password=hunter2&prefix=": "prefix is empty",
	} {
		_, err := paddock.Open(t.Context(), url, nil)
		if !errors.Is(err, paddock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("Open(%q): %v, want ErrInvalid that says %s", url, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Open(%q): %v shows the secret", url, err)
		}
	}
}

func TestRegister(t *testing.T) {
	for name, scheme := range map[string]string{"twice": "memory", "upper case": "Memory", "empty": ""} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Register(%q) did not panic", name, scheme)
				}
			}()
			paddock.Register(scheme, func(context.Context, *url.URL, *paddock.OpenOptions) (paddock.Locker, error) { return nil, nil })
		}()
	}
}

var opened *url.URL // by the scheme hosts

func init() {
	paddock.Register("hosts", func(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
		if opts == nil {
			return nil, errors.New("nil OpenOptions reached the Opener")
		}
		opened = u
		return nil, nil
	})
}

func TestHosts(t *testing.T) {
	for _, host := range []string{"a:1,b:2,c:3", "[::1]:2379,h", "127.0.0.1:1", ""} {
		if _, err := paddock.Open(t.Context(), "hosts://u:p%40ss@"+host+"/path?q=1", nil); err != nil {
			t.Errorf("%q: %v", host, err)
			continue
		}
		u := opened
		if pw, _ := u.User.Password(); u.Host != host || pw != "p@ss" || u.Path != "/path" || u.RawQuery != "q=1" {
			t.Errorf("%q: parsed as %#v", host, u)
		}
	}
}
