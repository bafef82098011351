package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var errReplicas = errors.New("redislock: too few replicas have it")

// pipeliner is a client whose pipelines have one connection.
type pipeliner interface{ Pipeline() redis.Pipeliner }

// route is the way to a server of a Cluster, or to the only one.
type route struct {
	node   pipeliner
	asking bool // it is taking over the slot
}

// redirects is how often a call follows a slot to another node.
const redirects = 3

// sendConfirmed makes calls and waits for replicas. WAIT speaks of what its own connection has written, so it goes into one
// pipeline with the calls, and that to the one node that answers for them: redirections are ours to follow.
func (s *server) sendConfirmed(ctx context.Context, calls []*call) {
	routes := map[route][]*call{}
	for _, c := range calls {
		if r, err := s.route(ctx, c.key()); err != nil {
			c.cmd.SetErr(err)
		} else {
			routes[r] = append(routes[r], c)
		}
	}
	for range redirects {
		var sent sync.WaitGroup
		for r, calls := range routes {
			sent.Go(func() { s.confirm(ctx, r, calls) })
		}
		sent.Wait()
		next := map[route][]*call{}
		for _, calls := range routes {
			for _, c := range calls {
				if r, ok := s.redirect(ctx, c.err()); ok {
					next[r] = append(next[r], c.again(ctx))
				}
			}
		}
		if len(next) == 0 {
			return
		}
		routes = next
	}
}

// again prepares the call for another node.
func (c *call) again(ctx context.Context) *call {
	c.cmd = redis.NewCmd(ctx, c.cmd.Args()...)
	return c
}

// confirm makes calls on one node.
func (s *server) confirm(ctx context.Context, r route, calls []*call) {
	wait := s.wait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end))
	}
	for len(calls) > 0 {
		pipe := r.node.Pipeline()
		for _, c := range calls {
			if r.asking {
				_ = pipe.Process(ctx, redis.NewCmd(ctx, "asking"))
			}
			_ = pipe.Process(ctx, c.cmd)
		}
		have := redis.NewIntCmd(ctx, "wait", s.replicas, max(1, wait.Milliseconds()))
		_ = pipe.Process(ctx, have)
		if _, err := pipe.Exec(ctx); err != nil { // each command has its own
			overdue(ctx)
		}
		var short error
		if err := have.Err(); err != nil {
			short = fmt.Errorf("%w: %w", errReplicas, err)
		} else if n := have.Val(); n < int64(s.replicas) {
			short = fmt.Errorf("%w: %d of %d after %v", errReplicas, n, s.replicas, wait)
		}
		var again []*call
		for _, c := range calls {
			if c.short = short; c.whole(ctx) {
				again = append(again, c)
			}
		}
		calls = again
	}
}

// route finds the node that answers for key.
func (s *server) route(ctx context.Context, key string) (route, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return route{node: s.client}, nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	return route{node: node}, err
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
