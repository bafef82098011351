package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/stampede"
)

// trending is the value that is cached. The first edition was there before the requests came.
type trending struct {
	Edition int      `json:"edition"`
	Posts   []string `json:"posts"`
}

const (
	oldEdition = 1
	newEdition = 2
	postsKey   = "trending:posts"
)

func edition(n int) trending {
	return trending{Edition: n, Posts: []string{"Why our cache melted", "Leases, explained", "A herd at the gate"}}
}

func encode(v trending) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // not with this type
	}
	return string(b)
}

func decode(s string) (v trending, err error) {
	err = json.Unmarshal([]byte(s), &v)
	return v, err
}

type loader func(ctx context.Context) (trending, error)

// answer is how one request was served.
type answer struct {
	Took  time.Duration `json:"took"`
	Stale bool          `json:"stale,omitempty"`
}

// compute is one recompute. Times are of the machine's clock, since they are compared across processes.
type compute struct {
	Instance int       `json:"instance"`
	Request  int       `json:"request"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
}

// outcome is what a row came to in one process.
type outcome struct {
	Answers  []answer  `json:"answers"`
	Computes []compute `json:"computes"`
	Stolen   int       `json:"stolen,omitempty"`
	Late     int       `json:"late,omitempty"`

	Stood time.Duration `json:"stood,omitempty"` // for how long a process, or the server, stood still at most
}

// add makes one outcome of those of two processes.
func (o *outcome) add(p outcome) {
	o.Answers = append(o.Answers, p.Answers...)
	o.Computes = append(o.Computes, p.Computes...)
	o.Stolen += p.Stolen
	o.Late += p.Late
	o.Stood = max(o.Stood, p.Stood)
}

// notes collects what the requests of a row do.
type notes struct {
	mu sync.Mutex
	outcome
}

func (n *notes) answered(a answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Answers = append(n.Answers, a)
}

func (n *notes) stolen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Stolen++
}

func (n *notes) late() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Late++
}

// loader is the recompute of one request: what the database would do, and when.
func (n *notes) loader(instance, request int) loader {
	return func(ctx context.Context) (trending, error) {
		c := compute{Instance: instance, Request: request, From: time.Now()}
		err := pause(ctx, recomputeTime)
		c.To = time.Now()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.Computes = append(n.Computes, c)
		return edition(newEdition), err
	}
}

// team is the part of the requests that one process makes.
type team struct {
	site      *site
	instances int // of the service that this process plays
	first     int // of them, counted over all processes
	requests  int

	expiry  expiry
	notes   *notes
	lockers []paddock.Locker
	caches  []*stampede.Cache[trending]
}

// expiry is one time that the value expires.
type expiry struct {
	variant variant
	number  int // of the variant, from 1
}

// name is part of the keys, so that nothing is left over from the expiry before.
func (x expiry) name() string { return fmt.Sprintf("%s-%d", x.variant.name, x.number) }

// prepare makes everything ready for an expiry, connections included.
func (t *team) prepare(ctx context.Context, x expiry) error {
	t.expiry, t.notes = x, &notes{}
	if x.variant.recipe != nil {
		return t.site.warm(ctx, t.requests)
	}
	for range t.instances {
		locker, err := t.site.locker(ctx)
		if err != nil {
			return err
		}
		t.lockers = append(t.lockers, locker)
		cache, err := stampede.New[trending](t.site.store, x.variant.policies(locker), &stampede.Options[trending]{Name: x.name()})
		if err != nil {
			return err
		}
		t.caches = append(t.caches, cache)
		if err := reach(ctx, locker); err != nil {
			return err
		}
	}
	return t.site.warm(ctx, t.requests)
}

// run makes the requests, all at start, and returns when the value is up to date again.
func (t *team) run(ctx context.Context, start time.Time) (outcome, error) {
	defer t.disband()
	var (
		wg    sync.WaitGroup
		line  = newLine(t.requests)
		mu    sync.Mutex
		first error
	)
	for i := range t.requests {
		wg.Go(func() {
			line.wait()
			begun := time.Now()
			v, err := t.request(ctx, i)
			took := time.Since(begun)
			if err == nil {
				t.notes.answered(answer{Took: took, Stale: v.Edition != newEdition})
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
			}
		})
	}
	err := pause(ctx, time.Until(start))
	stood := standstill(lookEvery, func(context.Context) {})
	line.start()
	wg.Wait()
	if err == nil {
		err = first
	}
	if err == nil {
		err = t.settle(ctx)
	}
	t.notes.Stood = stood()
	return t.notes.outcome, err
}

const lookEvery = 2 * time.Millisecond

// standstill does something again and again, and measures by how much it was late at most until it is stopped.
func standstill(every time.Duration, do func(context.Context)) (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	longest := make(chan time.Duration)
	go func() {
		most, last := time.Duration(0), time.Now()
		for pause(ctx, every) == nil {
			do(ctx)
			now := time.Now()
			most = max(most, now.Sub(last)-every)
			last = now
		}
		longest <- most
	}()
	return func() time.Duration { cancel(); return <-longest }
}

// startingLine lets a number of goroutines go at the same moment.
type startingLine struct {
	gun     chan struct{}
	missing atomic.Int64
}

func newLine(n int) *startingLine {
	l := &startingLine{gun: make(chan struct{})}
	l.missing.Store(int64(n))
	return l
}

func (l *startingLine) start() { close(l.gun) }

// wait returns when start was called and all are running: a goroutine that has been told to go on may have to wait for its turn
// on a processor, on a busy machine for longer than others need for all that they have to do.
func (l *startingLine) wait() {
	<-l.gun
	for l.missing.Add(-1); l.missing.Load() > 0; {
		runtime.Gosched()
	}
}

// request makes request i of this process.
func (t *team) request(ctx context.Context, i int) (trending, error) {
	instance := i % t.instances
	load := t.notes.loader(t.first+instance+1, i/t.instances+1)
	if recipe := t.expiry.variant.recipe; recipe != nil {
		return recipe(ctx, t.site.caller(t.expiry, load, t.notes))
	}
	return t.caches[instance].Get(ctx, postsKey, load)
}

// settle waits until every instance sees the new value: a recompute in the background goes on when all have their answers.
func (t *team) settle(ctx context.Context) error {
	for i, cache := range t.caches {
		for {
			v, err := cache.Get(ctx, postsKey, t.notes.loader(t.first+i+1, 0))
			if err != nil {
				return err
			}
			if v.Edition == newEdition {
				break
			}
			if err := pause(ctx, pollEvery); err != nil {
				return err
			}
		}
	}
	return nil
}

// disband closes what prepare opened.
func (t *team) disband() {
	for _, cache := range t.caches {
		_ = cache.Close() // nothing is running any more, or ctx ended it
	}
	var wg sync.WaitGroup
	for _, locker := range t.lockers {
		wg.Go(func() { _ = locker.Close() }) // what it cannot clean up expires
	}
	wg.Wait()
	t.caches, t.lockers = nil, nil
}
