//go:build linux

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock"

	_ "github.com/paddock-go/paddock/etcdlock" // each opens its URLs
	_ "github.com/paddock-go/paddock/redislock"
	_ "github.com/paddock-go/paddock/redlock"
	_ "github.com/paddock-go/paddock/zklock"
)

// Work is what a worker process is started for.
type Work struct {
	Index  int    // of the process
	URL    string // of the Locker
	Ledger string // the socket
	TTL    time.Duration
	Hands  int // how many take turns in this process
	Seed   uint64
}

// Said is a line that a worker says: one of these.
type Said struct {
	Lease   *Lease   `json:",omitempty"`
	Failure *Failure `json:",omitempty"`
	Event   string   `json:",omitempty"` // "ready", "done" with a round, "closed"
	Err     string   `json:",omitempty"`
}

const (
	acquireLimit = 10 * time.Second
	releaseLimit = 2 * time.Second
	longShare    = 0.08 // of the holds are about as long as the TTL, so that most of the time one of them is on
)

// Run works until in ends. It is told "work KEY KEY ...", "stop" and "close", a line each.
func (w Work) Run(in io.Reader, out io.Writer) error {
	s := &shift{Work: w, pulse: newPulse(), out: json.NewEncoder(out)}
	locker, err := paddock.Open(context.Background(), w.URL, nil)
	if err != nil {
		return err
	}
	s.locker = locker
	s.say(Said{Event: "ready"})
	var (
		hands sync.WaitGroup
		stop  = func() {}
		round uint64
	)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch words := strings.Fields(lines.Text()); words[0] {
		case "work":
			round++
			ctx, cancel := context.WithCancel(context.Background())
			stop = cancel
			for i := range w.Hands {
				conn, err := net.Dial("unix", w.Ledger)
				if err != nil {
					return err
				}
				h := &hand{
					shift: s, name: fmt.Sprintf("worker %d.%d", w.Index, i), ledger: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn),
					dice: rand.New(rand.NewPCG(w.Seed, round<<16|uint64(w.Index)<<8|uint64(i))),
				}
				hands.Go(func() {
					defer conn.Close()
					h.work(ctx, words[1:])
				})
			}
		case "stop":
			stop()
			hands.Wait()
			s.say(Said{Event: "done"})
		case "close":
			said := Said{Event: "closed"}
			if err := locker.Close(); err != nil {
				said.Err = err.Error()
			}
			s.say(said)
		}
	}
	return nil
}

// shift is what the hands of a process share.
type shift struct {
	Work
	locker paddock.Locker
	pulse  *pulse
	values atomic.Int64

	mu  sync.Mutex
	out *json.Encoder
}

func (s *shift) say(said Said) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(said) // nobody listens any more: the input is about to end too
}

type hand struct {
	*shift
	name   string
	ledger net.Conn
	in     *json.Decoder
	out    *json.Encoder
	dice   *rand.Rand
}

func (h *hand) work(ctx context.Context, keys []string) {
	for ctx.Err() == nil {
		key := keys[h.dice.IntN(len(keys))]
		acquire := h.locker.Acquire
		if h.dice.Float64() < 0.2 {
			acquire = h.locker.TryAcquire
		}
		opts := &paddock.Options{TTL: h.TTL, NoRenew: h.dice.Float64() < 0.15}
		limited, cancel := context.WithTimeout(ctx, acquireLimit)
		call := now()
		lease, err := acquire(limited, key, opts)
		start := now()
		cancel()
		if err == nil {
			h.hold(ctx, lease, call, start)
			continue
		}
		if ctx.Err() == nil {
			h.say(Said{Failure: &Failure{
				Worker: h.name, Key: key, Call: call, Return: start, Text: err.Error(),
				Held: errors.Is(err, paddock.ErrHeld), Unavailable: errors.Is(err, paddock.ErrUnavailable),
			}})
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+h.dice.IntN(60)) * time.Millisecond):
		}
	}
}

// hold does some work under lease, records what came of it, and gives it back.
func (h *hand) hold(ctx context.Context, lease *paddock.Lease, call, start time.Duration) {
	r := &Lease{Worker: h.name, Key: lease.Key(), Owner: lease.Owner(), Token: lease.Token(), Call: call, Start: start}
	over := make(chan struct{})
	stop := context.AfterFunc(lease.Context(), func() {
		defer close(over)
		r.Ended, r.Deadline = now(), monotonic(lease.Deadline())
		r.Cause = context.Cause(lease.Context()).Error()
	})
	h.steps(ctx, lease, r)
	if stop() {
		r.Deadline = monotonic(lease.Deadline())
	} else {
		<-over
	}
	r.Released = now()
	limited, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if err := lease.Release(limited); r.Cause == "" {
		r.Cause = "released"
		if err != nil {
			r.Cause = "release: " + err.Error()
		}
	}
	told := r.Released
	if r.Ended > 0 {
		told = min(told, r.Ended)
	}
	r.Stalled = h.pulse.missed(r.Deadline, told)
	h.say(Said{Lease: r})
}

// steps are what careful programs do: look, work, write. Between the look and the write much can happen.
func (h *hand) steps(ctx context.Context, lease *paddock.Lease, r *Lease) {
	value, bare, ok := h.ask(r, Request{Fence: lease.Fence()})
	if !ok {
		return
	}
	steps, each := 1+h.dice.IntN(3), time.Duration(10+h.dice.IntN(30))*time.Millisecond
	if h.dice.Float64() < longShare {
		steps, each = 4, time.Duration((0.5+h.dice.Float64())*float64(h.TTL)/4)
	}
	for i := 0; i < steps && ctx.Err() == nil && lease.Err() == nil; i++ {
		time.Sleep(each) // the work
		q := Request{Fence: lease.Fence(), Write: true, Value: h.values.Add(1)<<8 | int64(h.Index), Base: value, BareBase: bare}
		if value, bare, ok = h.ask(r, q); !ok {
			return
		}
	}
}

// ask asks the ledger, and returns what the two registers hold now, as far as this hand can tell.
func (h *hand) ask(r *Lease, q Request) (value, bare int64, ok bool) {
	q.Key = r.Key
	op := Op{Write: q.Write, Value: q.Value, Call: now()}
	var a Reply
	if h.out.Encode(q) != nil || h.in.Decode(&a) != nil {
		return 0, 0, false // the round was given up
	}
	op.Return, op.Accepted = now(), a.Accepted
	if !q.Write {
		op.Value = a.Value
	}
	r.Ops = append(r.Ops, op)
	return a.Value, a.Bare, true
}

// pulse knows when this process did not run.
type pulse struct {
	mu    sync.Mutex
	last  time.Duration
	stops [][2]time.Duration
}

const (
	beat      = 10 * time.Millisecond
	keepStops = 256
)

func newPulse() *pulse {
	p := &pulse{last: now()}
	go func() {
		for range time.Tick(beat) {
			p.mu.Lock()
			at := now()
			if at-p.last > 2*beat {
				p.stops = append(p.stops, [2]time.Duration{p.last + beat, at})
				p.stops = p.stops[max(0, len(p.stops)-keepStops):]
			}
			p.last = at
			p.mu.Unlock()
		}
	}()
	return p
}

// missed is how much of the time from begin to end this process did not run.
func (p *pulse) missed(begin, end time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum time.Duration
	for _, s := range append(p.stops[:len(p.stops):len(p.stops)], [2]time.Duration{p.last + beat, now()}) {
		sum += max(0, min(end, s[1])-max(begin, s[0]))
	}
	return sum
}
