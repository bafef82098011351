package zklock

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// envRounds makes TestLossBeforeTheNextEnters longer.
const envRounds = "PADDOCK_ZKLOCK_ROUNDS"

// holdersAtOnce lose their leases to one fault.
const holdersAtOnce = 10

// fault takes the holders' session away. addrs is what they connect to.
type fault struct {
	nodes  int
	config []string
	// prepare returns what the holders connect to and what everybody else does, and the fault with its repair.
	prepare func(testing.TB, *servers.Quorum) (holders, others []string, strike, repair func())
}

var faults = map[string]fault{
	// The client can reach nobody any more, and is told.
	"LinkCut": {1, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		p := servers.NewProxy(tb, q.Nodes[0].Addr)
		return []string{p.Addr}, q.Endpoints(), p.Cut, p.Pass
	}},
	// The client can reach nobody any more, and is not told.
	"LinkSilent": {1, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		p := servers.NewProxy(tb, q.Nodes[0].Addr)
		return []string{p.Addr}, q.Endpoints(), p.Hold, p.Pass
	}},
	// The session ends on the servers, though the client asks, and is not answered.
	"RepliesLost": {1, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		p := servers.NewProxy(tb, q.Nodes[0].Addr)
		return []string{p.Addr}, q.Endpoints(), p.LoseReplies, p.Pass
	}},
	// The only server that the client can reach was the leader, and is gone.
	"LeaderKilled": {3, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		leader := q.Leader(tb)
		return []string{q.Nodes[leader].Addr}, q.Endpoints(),
			q.Nodes[leader].Kill, func() { q.Nodes[leader].Restart(); q.AwaitReady(tb) }
	}},
	// The majority is gone and comes back.
	"QuorumLost": {3, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		down := []*servers.Process{q.Nodes[q.Leader(tb)], q.Nodes[(q.Leader(tb)+1)%3]}
		return q.Endpoints(), q.Endpoints(), func() {
				for _, node := range down {
					node.Kill()
				}
			}, func() {
				for _, node := range down {
					node.Restart()
				}
				q.AwaitReady(tb)
			}
	}},
	// The client's server is cut off from the others, and neither is told. It goes on answering reads for syncLimit ticks.
	"FollowerSilent": {3, []string{"syncLimit=50"}, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		leader := q.Leader(tb)
		follower := (leader + 1) % 3
		return []string{q.Nodes[follower].Addr}, []string{q.Nodes[leader].Addr, q.Nodes[(leader+2)%3].Addr},
			func() { q.Silence(follower) }, func() { q.Heal(); q.AwaitReady(tb) }
	}},
	"LeaderSilent": {3, nil, func(tb testing.TB, q *servers.Quorum) ([]string, []string, func(), func()) {
		leader := q.Leader(tb)
		return []string{q.Nodes[leader].Addr}, []string{q.Nodes[(leader+1)%3].Addr, q.Nodes[(leader+2)%3].Addr},
			func() { q.Silence(leader) }, func() { q.Heal(); q.AwaitReady(tb) }
	}},
}

// TestLossBeforeTheNextEnters takes the session away from holders, at any moment between their heartbeats, and has others
// wait for their keys. Every holder's context must have ended when the next one's Acquire returns.
func TestLossBeforeTheNextEnters(t *testing.T) {
	rounds := 1
	if s := os.Getenv(envRounds); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gaps []time.Duration
			for range rounds {
				t.Run("Round", func(t *testing.T) {
					gaps = append(gaps, f.strike(t, servers.ZooKeeper(t, f.nodes, f.config...))...)
				})
			}
			if !t.Failed() {
				t.Logf("in %d of %d runs the holder's context ended before the next holder's Acquire returned, by %v at the least",
					len(gaps), rounds*holdersAtOnce, slices.Min(gaps).Round(time.Millisecond))
			}
		})
	}
}

// strike returns by how much each holder's context ended before the next holder entered.
func (f fault) strike(t *testing.T, q *servers.Quorum) []time.Duration {
	holders, others, strike, repair := f.prepare(t, q)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := Options{Domain: "test", SessionTimeout: 2 * time.Second, TickTime: 200 * time.Millisecond}
	next := locker(t, others, Options{Domain: "test", SessionTimeout: 20 * time.Second, TickTime: 200 * time.Millisecond})
	type run struct {
		lease   *paddock.Lease
		entered chan time.Time
		ended   chan time.Time
	}
	runs := make([]run, holdersAtOnce)
	for i := range runs {
		lease, err := locker(t, holders, o).Acquire(ctx, "loss/"+uuid.NewString(), nil)
		if err != nil {
			t.Fatal(err)
		}
		runs[i] = run{lease, make(chan time.Time, 1), make(chan time.Time, 1)}
		go func() {
			<-lease.Context().Done()
			runs[i].ended <- time.Now()
		}()
		time.Sleep(rand.N(o.SessionTimeout / 10)) // their heartbeats are not to be in step
	}
	for _, r := range runs {
		go func() {
			lease, err := next.Acquire(ctx, r.lease.Key(), nil)
			r.entered <- time.Now()
			if err != nil {
				t.Errorf("the next holder's Acquire: %v", err)
				return
			}
			if lease.Token() <= r.lease.Token() {
				t.Errorf("token %d was followed by %d", r.lease.Token(), lease.Token())
			}
			_ = lease.Release(ctx) // or it is lost to the fault
		}()
	}
	time.Sleep(o.SessionTimeout + rand.N(o.SessionTimeout/2)) // some heartbeats later
	for _, r := range runs {
		if err := r.lease.Err(); err != nil {
			t.Logf("lost to a stall of this machine, before anything else has happened: %v", err)
		}
	}
	strike()
	var repaired sync.WaitGroup
	repaired.Go(func() {
		for _, r := range runs { // for longer than the sessions
			<-r.lease.Context().Done()
		}
		time.Sleep(3 * o.SessionTimeout)
		repair()
	})
	defer repaired.Wait()
	var gaps []time.Duration
	for _, r := range runs {
		entered, ended := <-r.entered, <-r.ended
		if !errors.Is(context.Cause(r.lease.Context()), paddock.ErrLost) {
			t.Errorf("the holder's context ended with %v; want ErrLost", context.Cause(r.lease.Context()))
		}
		if gap := entered.Sub(ended); gap <= 0 {
			t.Errorf("the next holder entered %v before the context of %s had ended", -gap, r.lease.Key())
		} else {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}
