package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
)

// server is the backend.Backend.
type server struct {
	client   redis.UniversalClient
	domain   string
	keys     string // what lock keys begin with, up to and including the brace
	channel  string
	process  string // tells our own messages from others'
	replicas int
	wait     time.Duration // for replicas
}

func (s *server) names(key string) (lock, fence string) {
	fence = s.keys + rediswire.Tag(key) + "}:fence"
	return fence[:len(fence)-len(":fence")], fence
}

func (s *server) message(key string) string { return s.process + ":" + rediswire.Tag(key) }

// The replies of acquire.lua and claim.lua that are not times.
const (
	replyOver         = -1
	replyForeignLock  = -2
	replyForeignFence = -3
)

var errOver = errors.New("redislock: the attempt was undone, or the lock that it got is gone")

// Try is that of backend.Backend.
func (s *server) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	lock, fence := s.names(a.Key)
	ttl, owner := a.TTL.Milliseconds(), &rediswire.Counted{Arg: a.Owner}
	c := acquire.Call(ctx, "2", fence, lock, owner, ttl, a.Note)
	short := s.send(ctx, c)[c]
	if redis.IsTryAgainError(c.Err()) { // lock and fence are on two nodes, or on their way
		c = claim.Call(ctx, "1", lock, owner, ttl)
		short = s.send(ctx, c)[c]
		if reply, _ := c.Result(); reply == any("OK") && short == nil {
			c = acquire.Call(ctx, "1", fence, owner, ttl, a.Note)
			short = s.send(ctx, c)[c]
		}
	}
	a.Slow = owner.Twice() // also when it was claimed
	reply, err := c.Result()
	if err != nil {
		return backend.Grant{}, s.refusal(err)
	}
	switch reply := reply.(type) {
	case int64:
		switch {
		case reply == replyOver:
			return backend.Grant{}, errOver
		case reply == replyForeignLock:
			return backend.Grant{}, backend.Permanent(foreign(lock))
		case reply == replyForeignFence:
			return backend.Grant{}, backend.Permanent(fmt.Errorf("redislock: %q holds no token that another could follow", fence))
		case reply >= 0 && reply <= maxMilliseconds:
			return backend.Grant{}, &paddock.HeldError{Key: a.Key, RetryAfter: max(1, time.Duration(reply)) * time.Millisecond}
		}
	case string:
		if short != nil {
			return backend.Grant{}, short
		}
		if token, err := strconv.ParseUint(reply, 10, 63); err == nil && token > 0 {
			a.State = &lease{lock: lock, fence: fence}
			return backend.Grant{Token: fencing.Token(token), Domain: s.domain, TTL: a.TTL}, nil
		}
	}
	return backend.Grant{}, fmt.Errorf("redislock: %w", rediswire.Unexpected(reply))
}

const maxMilliseconds = int64(math.MaxInt64 / time.Millisecond)

func foreign(lock string) error {
	return fmt.Errorf("redislock: %q holds a value that paddock did not write", lock)
}

// refusal marks err as permanent if the server will give the same answer again.
func (s *server) refusal(err error) error {
	if _, ok := s.client.(*redis.Client); ok {
		if _, moved := redis.IsMovedError(err); moved {
			return backend.Permanent(fmt.Errorf("redislock: a redis.Client for a node of a Cluster, which takes a redis.ClusterClient: %w", err))
		}
	}
	if rediswire.Final(err) {
		return backend.Permanent(err)
	}
	return err
}

// Undo is that of backend.Backend.
func (s *server) Undo(ctx context.Context, a *backend.Attempt) error {
	lock, fence := s.names(a.Key)
	_, err := s.undo(ctx, a, lock, fence)
	return err
}

// undo deletes the lock, has later tries refused, and reports whether there was a lock.
func (s *server) undo(ctx context.Context, a *backend.Attempt, lock, fence string) (bool, error) {
	owner := &rediswire.Counted{Arg: a.Owner}
	had, err := s.did(ctx, undo.Call(ctx, "2", fence, lock, owner, s.channel, s.message(a.Key)))
	if redis.IsTryAgainError(err) { // one after the other, then
		if _, err = s.did(ctx, undo.Call(ctx, "1", fence, owner)); err == nil {
			return s.release(ctx, a, lock)
		}
	}
	return had || owner.Twice(), err
}

// release deletes the lock, and reports whether there was one: perhaps for a command that had no answer and was repeated.
func (s *server) release(ctx context.Context, a *backend.Attempt, lock string) (bool, error) {
	owner := &rediswire.Counted{Arg: a.Owner}
	had, err := s.did(ctx, release.Call(ctx, "1", lock, owner, s.channel, s.message(a.Key)))
	return had || owner.Twice(), err
}

// Release is that of backend.Backend.
func (s *server) Release(ctx context.Context, a *backend.Attempt) error {
	var had bool
	var err error
	if l := a.State.(*lease); a.Slow {
		had, err = s.undo(ctx, a, l.lock, l.fence)
	} else {
		had, err = s.release(ctx, a, l.lock)
	}
	if err == nil && !had {
		err = paddock.ErrLost
	}
	return err
}

var errOvertaken = errors.New("redislock: a later renewal was there before")

// Renew is that of backend.Backend.
func (s *server) Renew(ctx context.Context, batch []backend.Renewal) {
	calls := make([]*rediswire.Call, len(batch))
	numbers := make([]int64, len(batch))
	for i := range batch {
		r := &batch[i]
		l := r.State.(*lease)
		shorten := "0"
		if r.Shorten {
			shorten = "1"
		}
		numbers[i] = l.number(r.Shorten)
		calls[i] = renew.Call(ctx, "1", l.lock, r.Owner, r.TTL.Milliseconds(), shorten, numbers[i])
	}
	short := s.send(ctx, calls...)
	for i, c := range calls {
		r := &batch[i]
		switch reply, err := c.Result(); {
		case err != nil:
			r.Err = err
		case reply == any(int64(0)):
			r.Err = paddock.ErrLost
		case reply == any(int64(-1)):
			r.Err = errOvertaken
		case reply != any(int64(1)):
			r.Err = fmt.Errorf("redislock: %w", rediswire.Unexpected(reply))
		case short[c] != nil:
			r.Err = short[c]
		default:
			r.State.(*lease).answered(numbers[i])
			r.Ordered = numbers[i] != 0
		}
	}
}

// lease is what Try leaves in Attempt.State for Renew and Release.
type lease struct {
	lock, fence string

	// A shorter Extend that had no answer may still arrive, after later renewals, and lower the TTL behind the holder's back. So
	// it has a number, and so have the renewals that follow it until one is answered. The server keeps the highest number:
	// the answer says that what has a lower one will do nothing any more.
	mu   sync.Mutex
	last int64 // number given
	open int64 // the last number while it was not answered
}

// number is that of the next renewal, or 0 when it needs none.
func (l *lease) number(shorten bool) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !shorten && l.open == 0 {
		return 0
	}
	l.last++
	l.open = l.last
	return l.last
}

// answered says that the renewal of that number was.
func (l *lease) answered(number int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == number {
		l.open = 0
	}
}

// inspect says who holds key.
func (s *server) inspect(ctx context.Context, key string) (paddock.Holder, error) {
	lock, fence := s.names(key)
	reply, err := s.eval(ctx, inspect.Call(ctx, "2", lock, fence))
	if redis.IsTryAgainError(err) {
		reply, err = s.eval(ctx, inspect.Call(ctx, "1", lock))
	}
	if err != nil {
		return paddock.Holder{}, err
	}
	fields, _ := reply.([]any)
	if len(fields) != 6 {
		return paddock.Holder{}, fmt.Errorf("redislock: %w", rediswire.Unexpected(reply))
	}
	if fields[0] == nil {
		return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
	}
	value, _ := fields[0].(string)
	owner, _, _ := strings.Cut(value, "#")
	left, ok := fields[1].(int64)
	if !ok || left < 0 || left > maxMilliseconds || uuid.Validate(owner) != nil {
		return paddock.Holder{}, foreign(lock)
	}
	h := paddock.Holder{Owner: owner, ExpiresIn: time.Duration(left) * time.Millisecond}
	if fields[2] != any(owner) { // the record was lost, or is on another node
		return h, nil
	}
	token, _ := fields[3].(string)
	since, _ := fields[4].(string)
	if n, err := strconv.ParseUint(token, 10, 63); err == nil {
		h.Token = fencing.Token(n)
	}
	if us, err := strconv.ParseInt(since, 10, 64); err == nil {
		h.Since = time.UnixMicro(us)
	}
	h.Note, _ = fields[5].(string)
	return h, nil
}
