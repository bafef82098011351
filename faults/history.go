package faults

import (
	"fmt"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Times are those of the machine's monotonic clock, which all processes share.

// Lease is what a worker has recorded of one lease.
type Lease struct {
	Worker string
	Key    string
	Owner  string
	Token  fencing.Token

	Call     time.Duration // Acquire was called
	Start    time.Duration // and has returned
	Deadline time.Duration // as last seen, at the end or before the release
	Ended    time.Duration // its context did, before the release; zero: it did not
	Released time.Duration // just before Release was called
	Stalled  time.Duration // how long the process did not run between Deadline and Ended, or Released
	Cause    string        // of its end, or what Release returned

	Ops []Op
}

// End is when the holder had to stop trusting the lease.
func (l *Lease) End() time.Duration {
	end := min(l.Released, l.Deadline)
	if l.Ended > 0 {
		end = min(end, l.Ended)
	}
	return end
}

func (l *Lease) String() string {
	return fmt.Sprintf("%s held %s as %.8s, token %d: called %v, granted %v, deadline %v, ended %v, released %v (%s)",
		l.Worker, l.Key, l.Owner, l.Token, l.Call, l.Start, l.Deadline, l.Ended, l.Released, l.Cause)
}

// Op is one operation on the guarded register.
type Op struct {
	Write    bool
	Value    int64 // written or read
	Call     time.Duration
	Return   time.Duration
	Accepted bool // by the guard
}

// Failure is an attempt that came to nothing.
type Failure struct {
	Worker, Key  string
	Call, Return time.Duration
	Held         bool // by another
	Unavailable  bool
	Text         string
}

// Write is one that the guard let pass, as the resource has seen it.
type Write struct {
	Key      string
	Owner    string
	Token    fencing.Token
	Value    int64
	Base     int64 // what the writer takes the value before it to be
	Previous int64 // what it was
}
