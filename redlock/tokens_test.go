package redlock

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// worlds that the proof covers: fewer nodes are wiped than two fence quorums share.
var sound = []world{
	{nodes: 3, fences: 2},
	{nodes: 3, fences: 3, wiped: 2},
	{nodes: 5, fences: 3},
	{nodes: 5, fences: 4, wiped: 2},
	{nodes: 5, fences: 5, wiped: 4},
	{nodes: 7, fences: 5, wiped: 2},
}

func (w world) String() string {
	return fmt.Sprintf("%d nodes, fence quorum %d, %d wiped, clocks %v, skew %d", w.nodes, w.fences, w.wiped, w.clocks, w.skew)
}

// search runs up to most schedules in w until one goes wrong, and no more than least of them when patience is over. It returns
// what went wrong, and how many it has run.
func (w world) search(t *testing.T, most, least int64, patience time.Duration) (wrong string, n int64) {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("PADDOCK_REDLOCK_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	var (
		next    atomic.Int64
		found   atomic.Bool
		mu      sync.Mutex
		workers sync.WaitGroup
		stop    = time.Now().Add(patience)
	)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !found.Load() {
				i := next.Add(1)
				if i > most || i > least && time.Now().After(stop) {
					next.Add(-1)
					return
				}
				if v := w.run(rand.New(rand.NewPCG(seed, uint64(i)))); v != "" {
					found.Store(true)
					mu.Lock()
					wrong = fmt.Sprintf("%v: schedule %d of PADDOCK_REDLOCK_SEED=%d: %s", w, i, seed, v)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return wrong, next.Load()
}

// TestTokensInEverySchedule is what the proof in the package doc promises.
func TestTokensInEverySchedule(t *testing.T) {
	t.Parallel()
	each := int64(200_000 / len(sound))
	var all int64
	for _, w := range sound {
		w.rule = theRule
		wrong, n := w.search(t, each, each/20, 6*time.Second/time.Duration(len(sound)))
		if all += n; wrong != "" {
			t.Error(wrong)
		}
	}
	t.Logf("%d schedules", all)
}

// TestClocksCarryOn has all nodes lose their memory, which the proof does not allow: the clocks have to do, and do as far as
// they agree.
func TestClocksCarryOn(t *testing.T) {
	t.Parallel()
	w := world{nodes: 3, fences: 2, wiped: 3, clocks: true, rule: theRule}
	wrong, n := w.search(t, 50_000, 2_000, 2*time.Second)
	if wrong != "" {
		t.Error(wrong)
	}
	t.Logf("%d schedules", n)
	w.skew = 100_000
	w.finds(t, "clocks that differ")
}

// TestMoreWipedThanTheProofAllows knows that its bound is not there for nothing.
func TestMoreWipedThanTheProofAllows(t *testing.T) {
	t.Parallel()
	for _, w := range []world{{nodes: 3, fences: 2, wiped: 1}, {nodes: 5, fences: 3, wiped: 1}} {
		w.rule = theRule
		w.finds(t, "too many wiped")
	}
}

// TestWeakerRulesAreFound knows that the search looks.
func TestWeakerRulesAreFound(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]rule{
		"the largest seen plus one, written back": writeBack,
		"counted up at the grant":                 incrAtGrant,
		"written only where the lock is ours":     onlyWhereOur,
	} {
		world{nodes: 3, fences: 2, rule: r}.finds(t, name)
	}
}

func (w world) finds(t *testing.T, name string) {
	t.Helper()
	wrong, n := w.search(t, 2_000_000, 2_000_000, 0)
	if wrong == "" {
		t.Errorf("%s: %v: no token out of order in %d schedules: the search is blind", name, w, n)
	}
	t.Logf("%s: found after %d schedules: %s", name, n, wrong)
}
