package stampede_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// TestRefreshOfWhatCannotBeStored: what was loaded anew is an answer also when the codec or the policy keeps it out of the store.
func TestRefreshOfWhatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, &stampede.Options[string]{Codec: fussy{}})
		load := func(context.Context) (string, error) {
			f.loads.Add(1)
			time.Sleep(100 * time.Millisecond)
			return unencodable, nil
		}
		r, err := c.Refresh(t.Context(), "k", load)
		if n := f.loads.Load(); err != nil || r.Value != unencodable || r.Status != stampede.Loaded || n != 1 {
			t.Errorf("%+v, %v after %d loads; want it after one", r, err, n)
		}
	})
}

// TestKeepStopped: a key that is kept no longer is left alone, also when it was waiting for a worker.
func TestKeepStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, &stampede.Options[string]{Workers: 1})
		stop1, err := c.Keep("a", f.load(time.Second), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stop1()
		time.Sleep(100 * time.Millisecond) // it has the worker
		stop2, err := c.Keep("b", f.load(time.Second), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // it waits for it
		stop2()
		time.Sleep(5 * time.Second)
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads, want that of a alone", n)
		}
	})
}
