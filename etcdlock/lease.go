package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/paddock-go/paddock/backend"
)

// lease is one of etcd's: what keys hang on and end with. A shared one has a life that the Keeper keeps going.
type lease struct {
	id      clientv3.LeaseID
	seconds int64         // as asked for
	granted time.Duration // as the server made it
	until   time.Time     // the server keeps it at least until then; not of shared ones

	life *backend.Session // nil: it is one key's own
	lost chan struct{}    // closed when a shared lease has ended

	// The sessions' mu guards these, of shared leases.
	keys map[*entry]struct{} // that hang on it, are about to, or may
	idle time.Time           // since when there are none
	over bool
}

func (s *server) grant(ctx context.Context, seconds int64) (*lease, error) {
	sent := time.Now()
	resp, _, err := ask(ctx, s, patience, requestWait, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, seconds)
	})
	if err != nil {
		return nil, err
	}
	granted := time.Duration(resp.TTL) * time.Second
	return &lease{id: resp.ID, seconds: seconds, granted: granted, until: sent.Add(granted)}, nil
}

// revoke ends a lease that nobody needs any more. It would end by itself, so an error does not matter.
func (s *server) revoke(ctx context.Context, l *lease) {
	_, _, _ = ask(ctx, s, patience, requestWait, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return s.client.Revoke(ctx, l.id)
	})
}

// keepAlive has the server count the TTLs of leases anew, in one round trip, and returns them; 0: there is no such lease. It is the
// client's KeepAliveOnce, which repeats a call that a member without a leader refuses, without a pause.
func (s *server) keepAlive(ctx context.Context, limit time.Duration, ids ...clientv3.LeaseID) ([]time.Duration, error) {
	ttls, _, err := ask(ctx, s, max(limit/4, patience/4), limit, func(ctx context.Context) ([]time.Duration, error) { return s.keepAliveOnce(ctx, ids) })
	return ttls, err
}

func (s *server) keepAliveOnce(ctx context.Context, ids []clientv3.LeaseID) ([]time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ttls := make([]time.Duration, len(ids))
	conn := s.client.ActiveConnection()
	if conn == nil { // a client of a server in this process
		for i, id := range ids {
			resp, err := s.client.KeepAliveOnce(ctx, id)
			if err == nil {
				ttls[i] = time.Duration(resp.TTL) * time.Second
			} else if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return nil, err
			}
		}
		return ttls, nil
	}
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	for _, id := range ids {
		if stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}) != nil {
			break // Recv says why
		}
	}
	for i, id := range ids {
		resp, err := stream.Recv()
		if err != nil {
			return nil, clientv3.ContextError(ctx, err)
		}
		if resp.ID != int64(id) {
			return nil, fmt.Errorf("etcdlock: the keepalive of lease %x was answered for lease %x", id, resp.ID)
		}
		ttls[i] = time.Duration(resp.TTL) * time.Second
	}
	return ttls, nil
}

// sleep waits for about d; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

const (
	markerTTL = 20 * time.Minute // a request that is later than half of this is not to be expected
	perMarker = 1000
)

// markers are the leases that abort markers hang on: for as long as a late request may still arrive.
type markers struct {
	*server
	turn chan struct{} // has room for one: who needs a new lease

	mu    sync.Mutex
	now   *lease
	count int
}

// lease returns a lease for one more marker.
func (m *markers) lease(ctx context.Context) (*lease, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	l := m.now
	if l != nil && m.count < perMarker && time.Until(l.until) >= markerTTL/2 {
		m.count++
		m.mu.Unlock()
		return l, nil
	}
	m.mu.Unlock()
	l, err := m.grant(ctx, seconds(markerTTL))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.count = l, 1
	return l, nil
}

// lost takes in that l has ended before its time.
func (m *markers) lost(l *lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == l {
		m.now = nil
	}
}
