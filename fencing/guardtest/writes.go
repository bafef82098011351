package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/paddock-go/paddock/fencing"
)

func writes(t *trial) {
	t.write(fence(5, "a"), "one", nil)
	t.write(fence(5, "a"), "one", nil) // which changes nothing, and is not stale
	t.write(fence(5, "a"), "two", nil)
	t.read("two")
	t.write(fence(6, "b"), "three", nil)
	t.write(fence(5, "a"), "four", fencing.ErrStale)
	t.write(fence(6, "c"), "five", fencing.ErrStale)
	t.write(fencing.Fence{Domain: "guardtest/b", Token: 7, Owner: "b"}, "six", fencing.ErrDomain)
	t.write(fence(0, "b"), "seven", fencing.ErrInvalid)
	t.read("three")
}

func advanceThenWrite(t *trial) {
	t.write(fence(5, "a"), "old", nil)
	t.show(t.resource, fence(6, "b"), nil)
	t.write(fence(5, "a"), "late", fencing.ErrStale)
	t.read("old")
	t.write(fence(6, "b"), "new", nil)
	t.read("new")
}

func writeEndedContext(t *trial) {
	t.write(fence(5, "a"), "old", nil)
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := t.suite.Write(ctx, t.guard, t.resource, fence(9, "a"), "late"); !errors.Is(err, context.Canceled) {
		t.Errorf("a write on an ended context: %v, want its error", err)
	}
	t.read("old")
	t.show(t.resource, fence(6, "b"), nil)
}

func concurrentWrites(t *trial) {
	var writers sync.WaitGroup
	const n = 100
	for _, i := range rand.Perm(n) {
		writers.Go(func() {
			f := fence(fencing.Token(i+1), fmt.Sprint("o", i))
			if err := t.suite.Write(t.ctx, t.guard, t.resource, f, fmt.Sprint(i)); err != nil && !errors.Is(err, fencing.ErrStale) {
				t.Errorf("writing with %v: %v", f, err)
			}
		})
	}
	writers.Wait()
	t.read(fmt.Sprint(n - 1))
}

func advanceEndsWrites(t *trial) {
	for round := range fencing.Token(rounds) {
		old, next := fence(2*round+1, "old"), fence(2*round+2, "next")
		t.write(old, fmt.Sprint(round, "/first"), nil)
		var writers sync.WaitGroup
		begun := make(chan struct{}, 4)
		for w := range cap(begun) {
			writers.Go(func() {
				for i := 0; ; i++ {
					if i == 1 { // the first is written
						begun <- struct{}{}
					}
					err := t.suite.Write(t.ctx, t.guard, t.resource, old, fmt.Sprint(round, "/", w, "/", i))
					if errors.Is(err, fencing.ErrStale) {
						return
					}
					if err != nil {
						t.Errorf("writing with %v: %v", old, err)
						return
					}
					breathe()
				}
			})
		}
		for range cap(begun) {
			select {
			case <-begun:
			case <-t.ctx.Done():
				t.Fatal("nothing was written in time")
			}
		}
		t.show(t.resource, next, nil)
		after, err := t.suite.Read(t.ctx, t.guard, t.resource)
		if err != nil {
			t.Errorf("reading: %v", err)
		}
		writers.Wait()
		t.read(after)
	}
}
