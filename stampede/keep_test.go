package stampede_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// TestKeep: a kept key is always fresh, and is loaded once per period by all processes that keep it.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, Jitter: -1}
		var caches []*stampede.Cache[string]
		for range 4 {
			c := f.process(p, nil)
			caches = append(caches, c)
			if _, err := c.Keep("k", f.load(time.Second), &stampede.KeepOptions{Idle: -1}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Keep("k", f.load(0), nil); !errors.Is(err, stampede.ErrInvalid) {
				t.Errorf("kept twice: %v, want ErrInvalid", err)
			}
		}
		time.Sleep(2 * time.Second)
		before := f.commands.Load()
		for range 600 {
			r, err := caches[0].Lookup(t.Context(), "k", f.load(0))
			if err != nil || r.Status != stampede.Fresh {
				t.Errorf("%+v, %v; want it fresh at all times", r, err)
			}
			time.Sleep(time.Second)
		}
		// Each period is between 43.2 s (0.9 * 0.8 * TTL) and 60 s.
		if n := f.loads.Load(); n < 10 || n > 15 {
			t.Errorf("%d loads in ten minutes, want one in 43 to 60 s", n)
		}
		if n := f.commands.Load() - before - 600; n > 15*4*10 {
			t.Errorf("%d commands in ten minutes by four processes that keep one key", n)
		}
	})
}

func TestKeepIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		stop, err := c.Keep("k", f.load(0), &stampede.KeepOptions{Idle: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		idle := f.loads.Load()
		if idle < 4 || idle > 8 {
			t.Errorf("%d loads of a key that nobody has read for an hour, want those of five minutes", idle)
		}
		commands := f.commands.Load()
		time.Sleep(time.Hour)
		if n := f.commands.Load(); n != commands {
			t.Errorf("an idle key costs %d commands an hour", n-commands)
		}
		if _, err := c.Get(t.Context(), "k", f.load(0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if n := f.loads.Load() - idle; n < 4 {
			t.Errorf("%d loads in four minutes after a read, want it kept again", n)
		}
		stop()
		stop()
		n := f.loads.Load()
		time.Sleep(time.Hour)
		if f.loads.Load() != n {
			t.Error("it is kept after stop")
		}
	})
}

func TestKeepBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		if _, err := c.Keep("k", f.failing(0), &stampede.KeepOptions{Idle: -1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		early := f.loads.Load()
		if early < 2 || early > 6 {
			t.Errorf("%d loads that failed in half a minute, want pauses that double", early)
		}
		time.Sleep(time.Hour)
		if n := f.loads.Load() - early; n > 70 {
			t.Errorf("%d loads that failed in an hour, want one per TTL at most", n)
		}
		f.unlocked("k")
	})
}

// TestKeepPool: many kept keys share a few workers.
func TestKeepPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Hour}, &stampede.Options[string]{Workers: 3})
		for i := range 30 {
			if _, err := c.Keep(string(rune('a'+i)), f.load(time.Second), nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(11 * time.Second)
		if n, most := f.loads.Load(), f.most.Load(); n != 30 || most != 3 {
			t.Errorf("%d loads, %d at a time; want 30, 3 at a time", n, most)
		}
		begun := time.Now()
		if err := c.Close(); err != nil || time.Since(begun) > time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(begun))
		}
		if _, err := c.Keep("z", f.load(0), nil); !errors.Is(err, stampede.ErrClosed) {
			t.Errorf("Keep after Close: %v", err)
		}
	})
}

func TestKeepClosesDuringLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Hour}, nil)
		if _, err := c.Keep("k", func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		f.unlocked("k")
	})
}
