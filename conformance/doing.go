package conformance

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const (
	ruleDo     = "Do runs fn under the lease and releases, also on panic and Goexit, and when ctx has ended."
	ruleDoLost = "Do returns fn's error joined with ErrLost if the lease was lost before fn returned, also when fn returned nil."
)

var doing = []check{
	{name: "Do/Releases", rule: ruleDo, run: doReleases},
	{name: "Do/Lost", rule: ruleDoLost, run: doLost},
	{name: "Do/TryDo", rule: ruleDo, run: tryDo},
}

func doReleases(t *trial) {
	a, b := t.open(), t.open()
	opts := forTTL(t.ttl(long))
	failed := errors.New("fn failed")
	for name, fn := range map[string]func(cancel func()) error{
		"returned nil":      func(func()) error { return nil },
		"returned an error": func(func()) error { return failed },
		"panicked":          func(func()) error { panic(failed) },
		"called Goexit":     func(func()) error { runtime.Goexit(); return nil },
		"outlived its ctx":  func(cancel func()) error { cancel(); return nil },
	} {
		key := t.key()
		ctx, cancel := context.WithCancel(t.ctx)
		done := make(chan error, 1)
		go func() {
			err := errors.New("panic or Goexit")
			defer func() { done <- err }()
			defer func() { _ = recover() }()
			err = paddock.Do(ctx, a, key, opts, func(ctx context.Context, lease *paddock.Lease) error {
				if f, _ := fencing.FromContext(ctx); f != lease.Fence() {
					t.Errorf("fn's context carries the fence %v; want %v", f, lease.Fence())
				}
				if _, err := b.TryAcquire(t.ctx, key, nil); !errors.Is(err, paddock.ErrHeld) {
					t.Errorf("TryAcquire inside of Do: %v; want ErrHeld", err)
				}
				return fn(cancel)
			})
		}()
		err := await(t, done, soon, "Do whose fn "+name)
		cancel()
		if want := map[string]error{"returned an error": failed}[name]; err != want && name != "panicked" && name != "called Goexit" {
			t.Errorf("Do whose fn %s: %v; want %v", name, err, want)
		}
		t.free(b, key)
	}
}

func doLost(t *trial) {
	l := t.open()
	failed := errors.New("fn failed")
	for _, result := range []error{nil, failed} {
		err := paddock.Do(t.ctx, l, t.key(), unrenewed(t.brief()), func(ctx context.Context, lease *paddock.Lease) error {
			await(t, ctx.Done(), lease.TTL()+soon, "the end of fn's context when the lease is lost")
			t.is(context.Cause(ctx), paddock.ErrLost)
			return result
		})
		t.is(err, paddock.ErrLost)
		if result != nil && !errors.Is(err, result) {
			t.Errorf("Do returned %v; fn's error %v is not in it", err, result)
		}
	}
}

func tryDo(t *trial) {
	a, b := t.open(), t.open()
	key, ran := t.key(), 0
	fn := func(ctx context.Context, lease *paddock.Lease) error {
		ran++
		begun := time.Now()
		err := paddock.TryDo(ctx, b, key, nil, func(context.Context, *paddock.Lease) error { ran++; return nil })
		t.is(err, paddock.ErrHeld)
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("TryDo took %v to be refused", took)
		}
		return nil
	}
	if err := paddock.TryDo(t.ctx, a, key, forTTL(t.ttl(long)), fn); err != nil {
		t.Errorf("TryDo of a free key: %v", err)
	}
	if ran != 1 {
		t.Errorf("fn ran %d times; want once, and not while another holds the key", ran)
	}
	t.free(b, key)
}
