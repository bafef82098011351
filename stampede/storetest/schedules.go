package storetest

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

// source is what is cached: a version that only rises. floor is the version that an acknowledged invalidation has made the oldest
// that may be seen.
type source struct {
	version, floor atomic.Int64
	tokens         atomic.Int64
}

func (s *source) read() string { return strconv.FormatInt(s.version.Load(), 10) }

// change makes a new version and says so; it returns when that was acknowledged.
func (s *source) change(invalidate func() error) error {
	v := s.version.Add(1)
	if err := invalidate(); err != nil {
		return err
	}
	for f := s.floor.Load(); f < v && !s.floor.CompareAndSwap(f, v); f = s.floor.Load() {
	}
	return nil
}

// pause is a random while, now and then a long one.
func pause(r *rand.Rand, most time.Duration) {
	switch r.IntN(8) {
	case 0:
		time.Sleep(time.Duration(r.Int64N(int64(most))))
	case 1, 2, 3:
		time.Sleep(time.Duration(r.Int64N(int64(most / 20))))
	}
}

const scheduleTime = 1500 * time.Millisecond

// crowd runs each of the given parts in several goroutines until the time is over or the test has failed.
func crowd(tb testing.TB, parts map[string]func(r *rand.Rand) error, copies map[string]int) {
	seed := rand.Uint64()
	tb.Logf("seed %d", seed)
	var wg sync.WaitGroup
	end := time.Now().Add(scheduleTime)
	n := uint64(0)
	for name, part := range parts {
		for range copies[name] {
			r := rand.New(rand.NewPCG(seed, n))
			n++
			wg.Go(func() {
				for time.Now().Before(end) && !tb.Failed() {
					if err := part(r); err != nil {
						tb.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

func schedules(tb testing.TB, s Store) {
	p := s.open(tb)
	stores := []stampede.Store{s.open(tb), s.open(tb), s.open(tb)}
	k := freshKey("k")
	var src source
	var reads, stored, refused atomic.Int64
	crowd(tb, map[string]func(*rand.Rand) error{
		"load": func(r *rand.Rand) error {
			st := stores[r.IntN(len(stores))]
			_, t, err := st.Begin(p.ctx, k, uuid.NewString(), time.Second)
			if err != nil {
				return err
			}
			e := value(src.read())
			if r.IntN(2) == 0 {
				e.Fence = fencing.Fence{Domain: "d", Token: fencing.Token(src.tokens.Add(1)), Owner: "o"}
			}
			pause(r, 20*time.Millisecond)
			o, err := st.Put(p.ctx, k, t, e)
			if o == stampede.Stored {
				stored.Add(1)
			} else {
				refused.Add(1)
			}
			return err
		},
		"change": func(r *rand.Rand) error {
			pause(r, 10*time.Millisecond)
			return src.change(func() error { return stores[r.IntN(len(stores))].Invalidate(p.ctx, k) })
		},
		"evict": func(r *rand.Rand) error {
			pause(r, 20*time.Millisecond)
			if s.EvictEntry != nil && s.EvictTicket != nil {
				if r.IntN(2) == 0 {
					s.EvictEntry(tb, k)
				} else {
					s.EvictTicket(tb, k)
				}
			}
			return nil
		},
		"read": func(r *rand.Rand) error {
			pause(r, 2*time.Millisecond)
			floor := src.floor.Load()
			es, err := stores[r.IntN(len(stores))].Get(p.ctx, k)
			if err != nil {
				return err
			}
			if reads.Add(1); es[0].Kind == stampede.Value {
				if v, _ := strconv.ParseInt(string(es[0].Value), 10, 64); v < floor {
					tb.Errorf("version %d is there after version %d was acknowledged", v, floor)
				}
			}
			return nil
		},
	}, map[string]int{"load": 6, "change": 2, "evict": 1, "read": 4})
	tb.Logf("%d reads, %d loads stored, %d refused", reads.Load(), stored.Load(), refused.Load())
	if stored.Load() == 0 || refused.Load() == 0 {
		tb.Errorf("%d loads stored and %d refused: nothing was raced", stored.Load(), refused.Load())
	}
}
