//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Ledger is the resource that the locks protect: for each key a register behind a guard, and one without. It is no victim of any fault.
type Ledger struct {
	guard fencing.Memory

	mu      sync.Mutex
	guarded map[string]int64
	bare    map[string]Write
	writes  []Write
	grants  map[string]time.Duration // when a holder was last new, by key
	holders map[string]string        // who was
	tally   Tally
}

// Tally is what a Ledger has counted.
type Tally struct {
	Writes    int // asked for
	Refused   int // by the guard
	Corrupted int // writes that the register without a guard took from a deposed holder, or over what the writer had not seen
}

// Request is what a worker asks of the Ledger: to read, or to write Value over Base.
type Request struct {
	Key      string
	Fence    fencing.Fence
	Write    bool
	Value    int64
	Base     int64 // of the guarded register
	BareBase int64 // of the other
}

// Reply is its answer.
type Reply struct {
	Accepted bool // by the guard
	Value    int64
	Bare     int64
}

// NewLedger returns an empty one.
func NewLedger() *Ledger {
	return &Ledger{guarded: map[string]int64{}, bare: map[string]Write{}, grants: map[string]time.Duration{}, holders: map[string]string{}}
}

// Serve answers everyone who connects until l is closed.
func (r *Ledger) Serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in, out := json.NewDecoder(conn), json.NewEncoder(conn)
			for {
				var q Request
				if in.Decode(&q) != nil || out.Encode(r.answer(q)) != nil {
					return
				}
			}
		}()
	}
}

func (r *Ledger) answer(q Request) Reply {
	r.mu.Lock()
	defer r.mu.Unlock()
	var a Reply
	if q.Write {
		r.tally.Writes++
		a.Accepted = r.guard.Do(context.Background(), q.Key, q.Fence, func() {
			r.writes = append(r.writes, Write{q.Key, q.Fence.Owner, q.Fence.Token, q.Value, q.Base, r.guarded[q.Key]})
			r.guarded[q.Key] = q.Value
		}) == nil
		if !a.Accepted {
			r.tally.Refused++
		}
		before := r.bare[q.Key]
		if q.Fence.Token < before.Token || q.BareBase != before.Value {
			r.tally.Corrupted++
		}
		r.bare[q.Key] = Write{Token: max(q.Fence.Token, before.Token), Value: q.Value}
	} else {
		a.Accepted = r.guard.Advance(context.Background(), q.Key, q.Fence) == nil
		if r.holders[q.Key] != q.Fence.Owner {
			r.holders[q.Key], r.grants[q.Key] = q.Fence.Owner, now()
		}
	}
	a.Value, a.Bare = r.guarded[q.Key], r.bare[q.Key].Value
	return a
}

// Served reports whether every key has had a new holder since.
func (r *Ledger) Served(keys []string, since time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		if r.grants[key] <= since {
			return false
		}
	}
	return true
}

// Take returns the writes that the guard let pass and the counts, and begins anew with both.
func (r *Ledger) Take() ([]Write, Tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	writes, tally := r.writes, r.tally
	r.writes, r.tally = nil, Tally{}
	return writes, tally
}
