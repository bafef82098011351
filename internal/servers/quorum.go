package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// Quorum is an etcd cluster or a ZooKeeper ensemble. Each node can be paused,
// killed and restarted; of several, one can be cut off from the others, while
// clients still reach it. Its methods may be called by any goroutine.
type Quorum struct {
	Nodes []*Process

	serves func(ctx context.Context, node *Process) error // clients
	leads  func(ctx context.Context, node *Process) bool
	mesh   *mesh // nil: a single node, or a shared quorum

	mu   sync.Mutex
	pids []func() int
}

// Endpoints returns the nodes' addresses for clients.
func (q *Quorum) Endpoints() []string {
	var addrs []string
	for _, node := range q.Nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Proxies starts a proxy before each node, for clients.
func (q *Quorum) Proxies(tb testing.TB) []*Proxy {
	tb.Helper()
	var proxies []*Proxy
	for _, node := range q.Nodes {
		proxies = append(proxies, NewProxy(tb, node.Addr))
	}
	return proxies
}

// Isolate cuts a node off from the other nodes, in both directions: their
// connections are reset, new ones refused. Clients still reach it.
func (q *Quorum) Isolate(node int) { q.mesh.isolate(node) }

// Silence cuts a node off from the other nodes without their being told: all
// connections stay, and nothing is delivered until Heal. Clients still reach it.
func (q *Quorum) Silence(node int) { q.mesh.silence(node) }

// Heal ends all isolation and silence.
func (q *Quorum) Heal() { q.mesh.heal() }

// Leader returns the node that leads, and waits until there is one. Nodes that
// do not run, do not answer or are cut off are not considered.
func (q *Quorum) Leader(tb testing.TB) int {
	tb.Helper()
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(pollEvery) {
		for i, node := range q.Nodes {
			if !node.Running() || q.mesh != nil && q.mesh.isolated(i) {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
			leads := q.leads(ctx, node)
			cancel()
			if leads {
				return i
			}
		}
	}
	tb.Fatalf("servers: no leader after %v", startLimit)
	return -1
}

// AwaitReady waits until every node that runs serves clients.
func (q *Quorum) AwaitReady(tb testing.TB) {
	tb.Helper()
	if err := q.awaitReady(); err != nil {
		tb.Fatalf("servers: %v", err)
	}
}

func (q *Quorum) awaitReady() error {
	for _, node := range q.Nodes {
		if !node.Running() {
			continue
		}
		err := node.await("serving", func(ctx context.Context) error { return q.serves(ctx, node) })
		if err != nil {
			return err
		}
	}
	return nil
}

// withMesh puts a mesh between nodes that are to be started.
func (q *Quorum) withMesh(nodes int) {
	q.mesh = newMesh(nodes, func(node int) int {
		q.mu.Lock()
		defer q.mu.Unlock()
		if node >= len(q.pids) {
			return 0
		}
		return q.pids[node]()
	})
}

// add takes a node in before it is started, since it dials the others, through
// the mesh, before launch returns.
func (q *Quorum) add(node *Process) {
	q.Nodes = append(q.Nodes, node)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pids = append(q.pids, func() int {
		if cmd, _ := node.current(); cmd != nil {
			return cmd.Process.Pid
		}
		return 0
	})
}

// adopt makes the quorum end with the test.
func (q *Quorum) adopt(tb testing.TB) *Quorum {
	if q.mesh != nil {
		tb.Cleanup(q.mesh.close)
	}
	for _, node := range q.Nodes {
		node.adopt(tb)
	}
	return q
}

// discard ends what a failed start left.
func (q *Quorum) discard() {
	if q.mesh != nil {
		q.mesh.close()
	}
	for _, node := range q.Nodes {
		if cmd, _ := node.current(); cmd != nil {
			node.Kill()
		}
		os.RemoveAll(node.dir)
	}
}

// startQuorum builds a quorum, again with new ports where one was taken.
func startQuorum(build func() (*Quorum, error)) (*Quorum, error) {
	var q *Quorum
	err := onFreshPorts(func() error {
		var err error
		if q, err = build(); err == nil {
			err = q.awaitReady()
		}
		if err != nil && q != nil {
			q.discard()
		}
		return err
	})
	return q, err
}

// together launches nodes at the same time.
func together(nodes []*Process) error {
	var (
		all  sync.WaitGroup
		errs = make([]error, len(nodes))
	)
	for i, node := range nodes {
		all.Go(func() { errs[i] = node.launch() })
	}
	all.Wait()
	return errors.Join(errs...)
}

func checkSize(n int) error {
	if n != 1 && n != 3 && n != 5 {
		return fmt.Errorf("a quorum of %d nodes: want 1, 3 or 5", n)
	}
	return nil
}
