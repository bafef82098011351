package guardtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

func concurrent(t *trial) {
	var mu sync.Mutex
	passed := fencing.Token(0) // the highest that has passed for sure
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for range 50 {
				f := fence(1+rand.N[fencing.Token](1000), fmt.Sprint("o", w))
				mu.Lock()
				before := passed
				mu.Unlock()
				err := t.guard.Advance(t.ctx, t.resource, f)
				switch {
				case err == nil && f.Token < before:
					t.Errorf("%v passed after token %d had", f, before)
				case err == nil:
					mu.Lock()
					passed = max(passed, f.Token)
					mu.Unlock()
				case !errors.Is(err, fencing.ErrStale):
					t.Errorf("Advance: %v", err)
				}
			}
		})
	}
	writers.Wait()
	t.show(t.resource, fence(passed-1, "late"), fencing.ErrStale)
}

// together shows all fences for resource at the same time, and returns how many passed.
func (t *trial) together(resource string, fences ...fencing.Fence) (passed int) {
	errs := make([]error, len(fences))
	var all sync.WaitGroup
	start := make(chan struct{})
	for i, f := range fences {
		all.Go(func() {
			<-start
			errs[i] = t.guard.Advance(t.ctx, resource, f)
		})
	}
	close(start)
	all.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
			passed++
		case !errors.Is(err, fencing.ErrStale):
			t.Errorf("Advance(%.40q, %v), with others: %v, want nil or ErrStale", resource, fences[i], err)
		}
	}
	return passed
}

const (
	rounds = 15
	crowd  = 8
)

// breathe lets others get at the guard: some databases, such as SQLite, know no order of those who wait.
func breathe() { time.Sleep(rand.N(3 * time.Millisecond)) }

func firstFences(t *trial) {
	for round := range rounds {
		resource := fmt.Sprint(t.resource, "/", round)
		var fences []fencing.Fence
		for i := range crowd {
			fences = append(fences, fence(fencing.Token(i+1), fmt.Sprint("o", i)))
		}
		if t.together(resource, fences...) == 0 {
			t.Errorf("of %d fences together none passed", crowd)
		}
		t.show(resource, fence(crowd-1, "late"), fencing.ErrStale)
		t.show(resource, fences[crowd-1], nil) // the highest, which nothing can have kept from passing
	}
}

func oneOwner(t *trial) {
	for round := range rounds {
		resource := fmt.Sprint(t.resource, "/", round)
		for token := range fencing.Token(2) { // without a mark, and with a lower one
			var fences []fencing.Fence
			for i := range crowd {
				fences = append(fences, fence(token+1, fmt.Sprint("o", i)))
			}
			if n := t.together(resource, fences...); n != 1 {
				t.Errorf("of %d owners with the token %d, together, %d passed, want 1", crowd, token+1, n)
			}
		}
	}
}

func migrateConcurrent(t *trial) {
	a := fence(1, "a")
	for round := range rounds {
		resource := fmt.Sprint(t.resource, "/", round)
		t.show(resource, a, nil)
		migrated := make(chan struct{})
		var showing sync.WaitGroup
		for w := range 4 {
			showing.Go(func() {
				for last := false; !last; {
					select {
					case <-migrated:
						last = true
					default:
					}
					err := t.guard.Advance(t.ctx, resource, fence(fencing.Token(w+2), fmt.Sprint("o", w)))
					if last && !errors.Is(err, fencing.ErrDomain) {
						t.Errorf("a fence of the old domain after Migrate: %v, want ErrDomain", err)
					} else if err != nil && !errors.Is(err, fencing.ErrDomain) && !errors.Is(err, fencing.ErrStale) {
						t.Errorf("Advance during Migrate: %v", err)
					}
					breathe()
				}
			})
		}
		t.migrate(resource, a.Domain, "guardtest/b", nil)
		close(migrated)
		showing.Wait()
		t.show(resource, fencing.Fence{Domain: "guardtest/b", Token: 1, Owner: "b"}, nil)
	}
}
