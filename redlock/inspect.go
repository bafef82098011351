package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// sight is what a node knows of a lock.
type sight struct {
	paddock.Holder // without an Owner: it is free
	err            error
}

// Inspect is that of paddock.Inspector. The holder is who has the lock on a majority of the nodes; ExpiresIn is when it will
// not have that any more.
func (l *Locker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	q := l.quorum
	select {
	case <-q.closing:
		return paddock.Holder{}, fmt.Errorf("%w: inspect %q", paddock.ErrClosed, key)
	default:
	}
	sights := make(chan sight, len(q.nodes))
	q.begin(len(q.nodes))
	base := context.WithoutCancel(ctx)
	for _, n := range q.nodes {
		go func() { sights <- n.inspect(base, q.names(key)) }()
	}
	limit := time.NewTimer(maxPatience)
	defer limit.Stop()
	seen := map[string][]paddock.Holder{}
	answered, most := 0, 0 // most: nodes with the same holder
	var errs nodeErrors
	for waiting := len(q.nodes); waiting > 0; waiting-- {
		select {
		case s := <-sights:
			if s.err != nil {
				errs = append(errs, s.err)
				continue
			}
			answered++
			seen[s.Owner] = append(seen[s.Owner], s.Holder)
			n := len(seen[s.Owner])
			if s.Owner != "" {
				most = max(most, n)
			}
			if n < q.majority {
				continue
			}
			if s.Owner != "" {
				return agreed(seen[s.Owner], q.majority), nil
			}
			return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
		case <-ctx.Done():
			return paddock.Holder{}, fmt.Errorf("redlock: inspect %q: %w", key, errors.Join(ctx.Err(), context.Cause(ctx)))
		case <-limit.C:
			errs = append(errs, errSilent)
			waiting = 1
		}
	}
	if most+len(q.nodes)-answered >= q.majority {
		return paddock.Holder{}, fmt.Errorf("%w: inspect %q: %d of %d nodes answered: %w",
			paddock.ErrUnavailable, key, answered, len(q.nodes), errs)
	}
	return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
}

// agreed is what a majority knows of one holder.
func agreed(seen []paddock.Holder, majority int) paddock.Holder {
	h := seen[0]
	left := make([]time.Duration, 0, len(seen))
	for _, s := range seen {
		left = append(left, s.ExpiresIn)
		h.Token = max(h.Token, s.Token)
		if s.Since.Before(h.Since) && !s.Since.IsZero() || h.Since.IsZero() {
			h.Since, h.Note = s.Since, s.Note
		}
	}
	slices.Sort(left)
	h.ExpiresIn = left[len(left)-majority]
	return h
}

func (n *node) inspect(ctx context.Context, names names) sight {
	defer n.end(1)
	ctx, cancel := context.WithTimeout(ctx, maxPatience)
	defer cancel()
	ask := inspectScript.Call(ctx, "2", names.lock, names.fence)
	if err := n.call(ctx, ask); err != nil {
		return sight{err: err}
	}
	reply, _ := ask.Result()
	fields, _ := reply.([]any)
	if len(fields) != 7 {
		return sight{err: fmt.Errorf("%s: unexpected reply %v", n.name, reply)}
	}
	value, _ := fields[0].(string)
	owner, _, _ := strings.Cut(value, "#")
	left, _ := fields[1].(int64)
	h := paddock.Holder{Owner: owner, ExpiresIn: max(0, time.Duration(left)) * time.Millisecond}
	if owner == "" {
		return sight{}
	}
	if fields[2] == any(owner) {
		since, _ := fields[3].(string)
		if us, err := strconv.ParseInt(since, 10, 64); err == nil {
			h.Since = time.UnixMicro(us)
		}
		h.Note, _ = fields[4].(string)
	}
	if fields[5] == any(owner) {
		h.Token, _ = parseDigits(fields[6])
	}
	return sight{Holder: h}
}
