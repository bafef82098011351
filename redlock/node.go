package redlock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
)

var (
	//go:embed grant.lua
	grantLua string
	//go:embed fence.lua
	fenceLua string
	//go:embed release.lua
	releaseLua string
	//go:embed renew.lua
	renewLua string
	//go:embed restore.lua
	restoreLua string
	//go:embed inspect.lua
	inspectLua string

	grantScript   = rediswire.NewScript(grantLua)
	fenceScript   = rediswire.NewScript(fenceLua)
	releaseScript = rediswire.NewScript(releaseLua)
	renewScript   = rediswire.NewScript(renewLua)
	restoreScript = rediswire.NewScript(restoreLua)
	inspectScript = rediswire.NewScript(inspectLua)
)

const (
	keepFence = 7 * 24 * time.Hour
	keepMark  = 5 * time.Minute // of an undone owner; also of a record without a token
	batchSize = 256
)

// names of a key on every node. The braces make one hash slot of them.
type names struct{ lock, fence string }

func (q *quorum) names(key string) names {
	fence := q.keys + "{" + rediswire.Tag(key) + "}:fence"
	return names{lock: fence[:len(fence)-len(":fence")], fence: fence}
}

// mark is the key that has the owner's requests refused.
func (n names) mark(owner string) string { return n.lock + ":undone:" + owner }

// digits are a token as scripts compare it; ” is none.
func digits(t fencing.Token) string {
	if t == 0 {
		return ""
	}
	return fmt.Sprintf("%019d", uint64(t))
}

func parseDigits(reply any) (fencing.Token, error) {
	s, _ := reply.(string)
	if s == "" {
		return 0, nil
	}
	t, err := strconv.ParseUint(s, 10, 63)
	if err != nil || len(s) != 19 {
		return 0, &finalError{fmt.Errorf("the fence record holds the token %q, which paddock did not write", s)}
	}
	return fencing.Token(t), nil
}

// node is one of the servers.
type node struct {
	*quorum
	client redis.UniversalClient
	name   string // in errors
	heeds  bool   // the client's commands end with their contexts

	mu     sync.Mutex
	asked  int             // calls that have not returned
	since  time.Time       // the last answer, or the first of those calls
	debts  map[string]debt // by owner
	paying bool            // somebody is at it
}

func newNode(q *quorum, i int, client redis.UniversalClient) *node {
	n := &node{quorum: q, client: client, name: fmt.Sprintf("node %d", i)}
	switch c := client.(type) {
	case *redis.Client:
		n.name += " (" + c.Options().Addr + ")"
		n.heeds = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		n.heeds = c.Options().ContextTimeoutEnabled
	}
	return n
}

// call makes calls, and returns at ctx's end at the latest. The error is that of the first, or says that none of them has a
// result: see noResult.
func (n *node) call(ctx context.Context, calls ...*rediswire.Call) error {
	return n.callLate(ctx, nil, calls...)
}

// callLate is call, and has late called with the error of a first call that was abandoned, when it has one.
func (n *node) callLate(ctx context.Context, late func(error), calls ...*rediswire.Call) error {
	if !n.asking() {
		return n.explain(errBacklog)
	}
	err := send(ctx, n.client, n.heeds, func(err error, abandoned bool) {
		n.heard(err)
		if abandoned && late != nil {
			late(err)
		}
	}, calls...)
	return n.explain(err)
}

// send sends calls through client, which heeds contexts or not. Then it has done called with their error.
func send(ctx context.Context, client redis.UniversalClient, heeds bool, done func(err error, abandoned bool), calls ...*rediswire.Call) error {
	if heeds {
		rediswire.Send(ctx, client, calls...)
		err := calls[0].Err()
		done(err, false)
		return err
	}
	var over atomic.Bool // the first to say so goes on
	answered := make(chan error, 1)
	go func() { // until the client's own time limits; nobody waits for it
		rediswire.Send(ctx, client, calls...)
		err := calls[0].Err()
		done(err, !over.CompareAndSwap(false, true))
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		if over.CompareAndSwap(false, true) {
			return errAbandoned
		}
		return <-answered
	}
}

const (
	silence    = 100 * time.Millisecond // without an answer to anything: others need not wait
	backlog    = 32                     // calls that a node may leave unanswered
	backlogged = time.Second            // for how long, before it gets no more
)

var (
	errBacklog   = errors.New("it has left too much unanswered, so nothing was sent")
	errAbandoned = fmt.Errorf("%w; its client goes on", errSilent)
)

// noResult reports whether err says so of all calls: they are not to be looked at.
func noResult(err error) bool { return errors.Is(err, errBacklog) || errors.Is(err, errAbandoned) }

// asking counts a call in. It reports whether to make it: a node that does not answer gets no more than a backlog of calls.
func (n *node) asking() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.asked == 0 {
		n.since = now
	} else if n.asked >= backlog && now.Sub(n.since) > backlogged {
		return false
	}
	n.asked++
	return true
}

// heard counts a call out.
func (n *node) heard(err error) {
	var reply redis.Error
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked--
	if err == nil || errors.As(err, &reply) {
		n.since = time.Now()
	}
}

// silent reports whether the node has been asked for something and has not answered anything for as long as that.
func (n *node) silent(d time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked > 0 && time.Since(n.since) > d
}

var errSilent = errors.New("no answer in time")

// explain names the node in an error. A context that ended was ours, and is not to be taken for the caller's.
func (n *node) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		err = errSilent
	case isTimeout(err):
		err = fmt.Errorf("%w: %w", errSilent, err)
	case rediswire.Final(err):
		err = &finalError{err}
	}
	return fmt.Errorf("%s: %w", n.name, err)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// finalError is a node's that it will give again. Too many of them are permanent.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func isFinal(err error) bool {
	var f *finalError
	return errors.As(err, &f)
}

var (
	errOver    = errors.New("the attempt was undone, or the lock that it got is gone")
	errForeign = &finalError{errors.New("the lock's key holds a value that paddock did not write")}
)

// grant asks for the lock. If it turns out later that a request without an answer was never sent, it calls unsent.
func (n *node) grant(c *claim, unsent func()) answer {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	owner := &rediswire.Counted{Arg: c.owner}
	ask := grantScript.Call(ctx, "3", c.lock, c.fence, c.mark(c.owner), owner, c.asked.Milliseconds(), c.note, n.keep().Milliseconds())
	err := n.callLate(ctx, func(err error) {
		if err != nil && !mayArrive(owner, err) {
			unsent()
		}
	}, ask)
	if err != nil {
		return answer{ballot: failed, err: err, stray: mayArrive(owner, err)}
	}
	a, err := parseGrant(ask)
	if err != nil {
		a = answer{ballot: failed, err: fmt.Errorf("%s: %w", n.name, err)}
		a.stray = !errors.Is(err, errOver) && !errors.Is(err, errForeign) // else the lock may be there
	}
	a.stray = a.stray || owner.Twice()
	return a
}

// mayArrive reports whether a request that has failed may still be carried out, or has been.
func mayArrive(owner *rediswire.Counted, err error) bool {
	var reply redis.Error
	switch {
	case errors.Is(err, errBacklog):
		return false
	case errors.Is(err, errAbandoned):
		return true // and may be sent only now
	case errors.As(err, &reply):
		return owner.Twice()
	}
	return owner.Sent()
}

func parseGrant(c *rediswire.Call) (answer, error) {
	reply, _ := c.Result()
	fields, _ := reply.([]any)
	switch {
	case len(fields) == 3 && fields[0] == any(int64(1)):
		read, err := parseDigits(fields[1])
		now, err2 := parseDigits(fields[2])
		return answer{ballot: granted, read: read, now: now}, errors.Join(err, err2)
	case len(fields) == 3 && fields[0] == any(int64(0)):
		left, _ := fields[1].(int64)
		holder, _ := fields[2].(string)
		return answer{ballot: refused, left: time.Duration(left) * time.Millisecond, holder: holder}, nil
	case len(fields) == 1 && fields[0] == any(int64(-1)):
		return answer{}, errOver
	case len(fields) == 1 && fields[0] == any(int64(-2)):
		return answer{}, errForeign
	}
	return answer{}, fmt.Errorf("unexpected reply %v", reply)
}

// write writes the token into the fence record that held read at the grant, and reports whether it is there.
func (n *node) write(c *claim, read, token fencing.Token) bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	ask := fenceScript.Call(ctx, "2", c.lock, c.fence, c.owner, digits(read), digits(token), keepFence.Milliseconds())
	if n.call(ctx, ask) != nil {
		return false
	}
	reply, _ := ask.Result()
	return reply == any(int64(1))
}

// release deletes the lock, has later requests refused if mark, and reports whether the lock was there, or, with an error, whether maybe
// it was done all the same.
func (n *node) release(c *claim, mark bool) (had, maybe bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, min(c.timeout, maxTold))
	defer cancel()
	owner := &rediswire.Counted{Arg: c.owner}
	ask := n.releasing(ctx, c, owner, mark)
	if err := n.call(ctx, ask); err != nil {
		return false, mayArrive(owner, err), err
	}
	reply, _ := ask.Result()
	return reply == any(int64(1)) || owner.Twice(), false, nil // the first may have done it
}

func (n *node) releasing(ctx context.Context, c *claim, owner any, mark bool) *rediswire.Call {
	keep := int64(0)
	if mark {
		keep = keepMark.Milliseconds()
	}
	return releaseScript.Call(ctx, "2", c.lock, c.mark(c.owner), owner, n.channel, n.message(c.owner, c.key), keep)
}

// nodeErrors is what the nodes of one attempt had to say.
type nodeErrors []error

func (e nodeErrors) Error() string {
	var text strings.Builder
	for i, err := range e {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(err.Error())
	}
	return text.String()
}

func (e nodeErrors) Unwrap() []error { return e }
