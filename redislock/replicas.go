package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/rediswire"
)

var errReplicas = errors.New("redislock: too few replicas have it")

// route is the way to the server that answers for a key.
type route struct {
	node   *redis.Client // of the Cluster
	asking bool          // it is taking over the slot
}

// redirects is how often a call follows a slot to another node.
const redirects = 3

// sendConfirmed is send with replicas. WAIT speaks of what its own connection has written, so it goes into one pipeline with the
// calls, and that to the one node that answers for them: redirections are ours to follow.
func (s *server) sendConfirmed(ctx context.Context, calls []*rediswire.Call) (short map[*rediswire.Call]error) {
	routes := map[route][]*rediswire.Call{}
	for _, c := range calls {
		if r, err := s.route(ctx, c.Key()); err != nil {
			c.Fail(err)
		} else {
			routes[r] = append(routes[r], c)
		}
	}
	short = map[*rediswire.Call]error{}
	for range redirects {
		var mu sync.Mutex
		var sent sync.WaitGroup
		for r, calls := range routes {
			sent.Go(func() {
				err := s.confirm(ctx, r, calls)
				mu.Lock()
				defer mu.Unlock()
				for _, c := range calls {
					short[c] = err
				}
			})
		}
		sent.Wait()
		next := map[route][]*rediswire.Call{}
		for _, calls := range routes {
			for _, c := range calls {
				if r, ok := s.redirect(ctx, c.Err()); ok {
					c.Again(ctx)
					next[r] = append(next[r], c)
				}
			}
		}
		if len(next) == 0 {
			break
		}
		routes = next
	}
	return short
}

// confirm makes calls on one node. The error says that too few replicas have what was carried out.
func (s *server) confirm(ctx context.Context, r route, calls []*rediswire.Call) error {
	wait := s.wait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)*3/4) // so that the answer arrives
	}
	var short error
	for len(calls) > 0 {
		short = nil
		pipe := r.node.Pipeline()
		for _, c := range calls {
			if r.asking {
				_ = pipe.Process(ctx, redis.NewCmd(ctx, "asking"))
			}
			c.Add(ctx, pipe)
		}
		have := redis.NewIntCmd(ctx, "wait", s.replicas, max(1, wait.Milliseconds()))
		_ = pipe.Process(ctx, have)
		if _, err := pipe.Exec(ctx); err != nil { // each command has its own
			rediswire.Overdue(ctx)
		}
		if err := have.Err(); err != nil {
			short = fmt.Errorf("%w: %w", errReplicas, err)
		} else if n := have.Val(); n < int64(s.replicas) {
			short = fmt.Errorf("%w: %d of %d after %v", errReplicas, n, s.replicas, wait)
		}
		var again []*rediswire.Call
		for _, c := range calls {
			if c.Whole(ctx) {
				again = append(again, c)
			}
		}
		calls = again
	}
	return short
}

// route finds the node that answers for key.
func (s *server) route(ctx context.Context, key string) (route, error) {
	switch c := s.client.(type) {
	case *redis.Client:
		return route{node: c}, nil
	case *redis.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		return route{node: node}, err
	}
	return route{}, fmt.Errorf("redislock: %T does not tell which server it asks", s.client)
}

// redirect finds the node that err points to, if it does.
func (s *server) redirect(ctx context.Context, err error) (route, bool) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if err == nil || !ok {
		return route{}, false
	}
	addr, moved := redis.IsMovedError(err)
	asking := false
	if !moved {
		if addr, asking = redis.IsAskError(err); !asking {
			return route{}, false
		}
	}
	cluster.ReloadState(ctx) // in the background
	var mu sync.Mutex
	r := route{asking: asking}
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if o := node.Options(); o.Addr == addr || o.NodeAddress == addr {
			r.node = node
		}
		return nil
	})
	return r, r.node != nil
}
