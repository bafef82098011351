package conformance

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleNoKey     = "after Release, and after Close and the last lease, no key is left but what the package documents."
	ruleGoroutine = "after Close and its last lease no goroutine, timer, subscription or connection of a Locker is left."
)

var leaks = []check{
	{name: "Rule19/NoGoroutineIsLeft", rule: ruleGoroutine, alone: true, run: noGoroutine},
}

func isClosed(err error) bool { return errors.Is(err, paddock.ErrClosed) }

// nothingLeft checks that the backend holds nothing any more, save what the TTLs of a crash case still have to end.
func (t *trial) nothingLeft() {
	t.Helper()
	if t.b.Left == nil || t.Skipped() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon+3*t.lively())
	defer cancel()
	var left []string
	for {
		now, err := t.b.Left(ctx)
		if err == nil && len(now) == 0 {
			return
		}
		if err == nil || len(now) > 0 {
			left = now
		}
		if ctx.Err() != nil {
			t.Errorf("left behind: %q, %v. Rule 19: %s", left, err, ruleNoKey)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// goroutines counts them by what they run and who started them.
func goroutines() map[string]int {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	count := map[string]int{}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		var frames []string // the function of each, outermost last
		for line := range strings.Lines(g) {
			if f, ok := strings.CutPrefix(line, "created by "); ok {
				f, _, _ = strings.Cut(f, " in goroutine")
				frames = append(frames, "created by "+strings.TrimSpace(f))
			} else if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "goroutine ") {
				f := line[:max(strings.LastIndexByte(line, '('), 0)] // less the arguments
				frames = append(frames, f)
			}
		}
		count[strings.Join(frames[max(0, len(frames)-2):], " ")]++
	}
	return count
}

// noGoroutine uses Lockers in every way, several times, and looks for goroutines whose number has grown with that.
func noGoroutine(t *trial) {
	const cycles, rounds = 4, 3
	cycle := func() bool {
		return t.Run("Cycle", func(tt *testing.T) { // with a clean-up of its own, for what Open opened
			sub := *t
			sub.T = tt
			sub.useUp()
		})
	}
	if !cycle() { // what is started once, and stays
		return
	}
	var grown map[string]int
	for range rounds { // what others started meanwhile does not grow again and again
		before := goroutines()
		for range cycles {
			if !cycle() {
				return
			}
		}
		last := grown
		grown = growth(before, cycles, soon)
		maps.DeleteFunc(grown, func(stack string, _ int) bool { return last != nil && last[stack] == 0 })
		if len(grown) == 0 {
			return
		}
	}
	for stack, n := range grown {
		t.Errorf("%d times opened, used and closed, Lockers leave %d goroutines more: %s", cycles, n, stack)
	}
}

// growth says of which goroutines there are least more than before, and goes on to be so for limit.
func growth(before map[string]int, least int, limit time.Duration) map[string]int {
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		grown := goroutines()
		for stack := range grown {
			grown[stack] -= before[stack]
		}
		maps.DeleteFunc(grown, func(_ string, n int) bool { return n < least })
		if len(grown) == 0 || time.Now().After(until) {
			return grown
		}
	}
}

func (t *trial) useUp() {
	a, b := t.open(), t.open()
	key := t.key()
	renewed := t.acquire(a, key, forTTL(t.brief()))
	t.refused(b, key)
	waiter := acquiring(t.ctx, b, key, nil)
	leaving, leave := context.WithTimeout(t.ctx, t.brief()/2)
	defer leave()
	left := acquiring(leaving, b, key, nil)
	<-leaving.Done()
	await(t, left, soon, "Acquire after its context has ended")
	_ = renewed.Release(t.ctx) // which a slow machine may have lost
	next, _ := t.granted(waiter, poll+soon, "a waiter")
	forgotten := t.acquire(b, t.key(), unrenewed(t.brief()))
	waiting := acquiring(t.ctx, a, key, nil)
	for range 10 {
		ctx, cancel := soonEnded(t.ctx, time.Millisecond)
		if lease, err := a.Acquire(ctx, t.key(), forTTL(t.ttl(long))); err == nil {
			t.release(lease)
		}
		cancel()
	}
	t.close(a)
	t.is(await(t, waiting, soon, "a waiter at Close").err, paddock.ErrClosed)
	t.close(b) // with two holders inside
	t.release(next)
	if forgotten.Err() == nil { // closed, or run out on a slow machine
		t.Error("a lease lives on after Close")
	}
}
