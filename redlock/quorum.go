package redlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// quorum is the backend.Backend.
type quorum struct {
	nodes    []*node
	majority int
	fences   int           // how many nodes have to write the token; 0: no fence
	timeout  time.Duration // Options.NodeTimeout
	domain   string
	keys     string // what all names begin with
	channel  string
	process  string       // tells our own messages from others'
	renewals atomic.Int64 // numbers them

	work
	closing chan struct{} // closed by Close
	stopped chan struct{} // closed when nobody pays debts any more
}

// patience is how long a node has for an answer about a lock with this TTL.
func (q *quorum) patience(ttl time.Duration) time.Duration {
	if q.timeout > 0 {
		return q.timeout
	}
	return min(max(ttl/20, min(ttl/3, minPatience)), maxPatience)
}

const (
	minPatience = time.Second
	maxPatience = 5 * time.Second
)

// attemptWait is a little less than the Keeper allows for an attempt, so that there is time to say what each node has said.
func attemptWait(ttl time.Duration) time.Duration { return min(ttl, max(ttl/3, time.Second)) * 19 / 20 }

// keep is how long a record is kept at least.
func (q *quorum) keep() time.Duration {
	if q.fences == 0 {
		return keepMark
	}
	return keepFence
}

// redsync's Mutex counts the majority that takes the lock and the one that gives it back. It asks each node on a goroutine
// of its own, through a pool and a connection that are a seat here, and does not wait for the rest once the majority is there.
// When the majority is not to be had it has all seats give back.
//
// Renewal goes without it (see renew.go): it extends one lock at a time, by the TTL that its Mutex was made with.
//
// Each call to a seat is counted as work before redsync makes it, since it begins at a time of its own.
func (q *quorum) mutex(c *claim, why purpose, opts ...redsync.Option) *redsync.Mutex {
	pools := make([]redsyncredis.Pool, len(c.seats))
	for i := range c.seats {
		pools[i] = pool{&c.seats[i], why}
	}
	q.begin(len(pools))
	return redsync.New(pools...).NewMutex(c.lock, append(opts, redsync.WithFailFast(true))...)
}

// purpose is what a redsync Mutex was made for.
type purpose int

const (
	toTry purpose = iota
	toUndo
	toRelease
)

// pool is a node to redsync.
type pool struct {
	seat *seat
	why  purpose
}

func (p pool) Get(context.Context) (redsyncredis.Conn, error) {
	return conn{seat: p.seat, why: p.why}, nil
}

// conn is what redsync calls: SetNX to take the lock, Eval, of its own script, to delete it.
type conn struct {
	redsyncredis.Conn // nil: it calls nothing else
	seat              *seat
	why               purpose
}

func (c conn) SetNX(string, string, time.Duration) (bool, error) {
	defer c.seat.node.end(1)
	return c.seat.stand()
}

func (c conn) Eval(*redsyncredis.Script, ...any) (any, error) {
	defer c.seat.node.end(1)
	had, err := c.seat.giveBack(c.why == toUndo)
	if c.why != toTry {
		c.seat.called()
	}
	if had || (c.why == toUndo && err == nil) {
		return int64(1), nil
	}
	return int64(0), err
}

func (c conn) Close() error { return nil }

// Try is that of backend.Backend.
func (q *quorum) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	sent := time.Now()
	c := q.claim(ctx, a)
	a.State = c
	m := q.mutex(c, toTry, redsync.WithTries(1), redsync.WithExpiry(a.TTL), redsync.WithTimeoutFactor(1), redsync.WithDriftFactor(0),
		redsync.WithGenValueFunc(func() (string, error) { return a.Owner, nil }))
	q.begin(len(c.seats)) // for giving back
	locked := make(chan error, 1)
	go func() {
		err := m.TryLockContext(c.ctx)
		if err == nil {
			q.end(len(c.seats)) // redsync has nothing given back
		}
		locked <- err
	}()
	limit := sent.Add(min(2*c.timeout, attemptWait(a.TTL)))
	look := time.NewTimer(silence)
	defer look.Stop()
	for {
		select {
		case err := <-locked:
			if err == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				return backend.Grant{Token: c.vote.token, Domain: q.domain, Sent: sent, TTL: a.TTL}, nil
			}
			c.close()
			return backend.Grant{}, c.failure()
		case <-ctx.Done():
			c.close()
			return backend.Grant{}, ctx.Err()
		case <-look.C:
			if left := time.Until(limit); left > 0 {
				c.doubt()
				look.Reset(min(silence, left))
				continue
			}
			c.close()
			q.unlock(c, toRelease) // after a refusal nobody will call Undo
			return backend.Grant{}, c.failure()
		}
	}
}

// failure is why a claim was not won.
func (c *claim) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.vote.judge() {
	case beaten, split, leading:
		return &paddock.HeldError{Key: c.key, RetryAfter: c.vote.retryAfter()}
	}
	var errs nodeErrors
	final := 0
	for i := range c.vote.answers {
		a := &c.vote.answers[i]
		switch {
		case a.ballot == pending || a.ballot == doubtful:
			errs = append(errs, c.seats[i].node.explain(errSilent))
		case a.ballot == failed:
			errs = append(errs, a.err)
			if isFinal(a.err) {
				final++
			}
		}
	}
	if c.cause != nil {
		errs = append(errs, c.cause)
	}
	n, need := len(c.seats), c.vote.need()
	err := fmt.Errorf("redlock: %d of %d nodes granted the lock and %d wrote its token, where %d are needed: %w",
		c.vote.count(granted), n, c.vote.written, need, errs)
	if final > n-need || isFinal(c.cause) {
		return backend.Permanent(err)
	}
	return err
}

// Undo is that of backend.Backend. What the nodes beyond a majority have is left to be settled in the background.
func (q *quorum) Undo(ctx context.Context, a *backend.Attempt) error {
	c, ok := a.State.(*claim)
	if !ok {
		return nil // it was not even tried
	}
	c.close()
	q.unlock(c, toUndo)
	return c.await(ctx, c.undone)
}

// Release is that of backend.Backend, likewise. The first waits as long as it may for nodes that are silent: its caller does. What is
// repeated in the background looks at what has become of it.
func (q *quorum) Release(ctx context.Context, a *backend.Attempt) error {
	c := a.State.(*claim)
	c.close()
	q.unlock(c, toRelease)
	c.mu.Lock()
	patient := !c.released
	c.released = true
	c.mu.Unlock()
	return c.await(ctx, func() (bool, error) { return c.outcome(patient) })
}

// await returns what so says when that is not to wait, or at ctx's end.
func (c *claim) await(ctx context.Context, so func() (wait bool, err error)) error {
	look := time.NewTicker(silence)
	defer look.Stop()
	for {
		wait, err := so()
		if !wait {
			return err
		}
		select {
		case <-c.news:
		case <-look.C:
		case <-ctx.Done():
			return err
		}
	}
}

// unlock has redsync make all seats give back. What it says of the majority is not asked for: the seats know more.
func (q *quorum) unlock(c *claim, why purpose) {
	c.mu.Lock()
	for i := range c.seats {
		c.seats[i].calls++
	}
	c.mu.Unlock()
	m := q.mutex(c, why, redsync.WithValue(c.owner))
	go func() { _, _ = m.UnlockContext(c.ctx) }()
}

// called ends a call of giveBack.
func (s *seat) called() {
	s.claim.mu.Lock()
	defer s.claim.mu.Unlock()
	s.calls--
	s.claim.tell()
}

// work counts the calls that are under way, so that connections are not closed before they are done.
type work struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; nil: nobody waits for that
}

func (w *work) begin(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n += n
}

func (w *work) end(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n -= n; w.n == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// wait returns when nothing is under way, and after d at the latest.
func (w *work) wait(d time.Duration) {
	w.mu.Lock()
	if w.n == 0 {
		w.mu.Unlock()
		return
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}
