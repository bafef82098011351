//go:build linux

package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock/internal/servers"
)

var (
	duration = flag.Duration("duration", time.Minute, "of all backends together")
	seed     = flag.Uint64("seed", 0, "what the faults are drawn from; 0: a new one")
	backend  = flag.String("backend", "", "the one to test; empty: all")
	report   = flag.String("report", "", "page for the tables, of runs of half an hour and more")
)

const (
	processes    = 4
	hands        = 2 // in each
	keys         = 3
	perRound     = 4 // faults
	slack        = 500 * time.Millisecond
	progress     = 30 * time.Second // after a fault, for every key
	finish       = 45 * time.Second // for a worker to end its round
	leftLimit    = time.Minute
	enough       = 10               // breaches, then a backend's run ends
	worthTelling = 30 * time.Minute // a run that makes a table
	conclusive   = 3 * time.Minute  // a run on one backend that has to see what guards are good for
)

// TestFaults runs the workers and the nemesis on one backend after the other.
func TestFaults(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	began := fmt.Sprintf("`make faults DURATION=%v SEED=%d`, on %s, %s/%s with %d CPUs, %s, commit %s.", *duration, *seed,
		time.Now().UTC().Format("2 January 2006"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), commit())
	var results []*result
	known := false
	each := *duration
	if *backend == "" {
		each /= time.Duration(len(services))
	}
	for i, service := range services {
		if *backend != "" && *backend != service.name {
			continue
		}
		known = true
		t.Run(service.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("again: make faults SEED=%d DURATION=%v BACKEND=%s", *seed, each, service.name)
				}
			})
			runtime.LockOSThread() // and never unlocked: the workers end with this goroutine
			s := service.start(t)
			r := attack(t, s, rand.New(rand.NewPCG(*seed, uint64(i))), each)
			results = append(results, r)
			t.Logf("seed %d: %v", *seed, r)
		})
	}
	if !known {
		t.Fatalf("no backend is called %q", *backend)
	}
	if *report != "" && len(results) > 0 && *backend == "" && *duration >= worthTelling {
		if err := writeReport(*report, tables(results, began, !t.Failed())); err != nil {
			t.Error(err)
		}
	}
}

// period is when a fault was on.
type period struct {
	fault
	from, to time.Duration
}

// attack lets workers take turns on s for a time, spoils it, and judges what they have seen.
func attack(t *testing.T, s *service, dice *rand.Rand, d time.Duration) *result {
	ledger := NewLedger()
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go ledger.Serve(socket)

	var (
		workers []*worker
		links   [][]*servers.Proxy
	)
	for i := range processes {
		var own []*servers.Proxy
		var addrs []string
		for _, addr := range s.addrs {
			p := servers.NewProxy(t, addr)
			own, addrs = append(own, p), append(addrs, p.Addr)
		}
		links = append(links, own)
		workers = append(workers, start(t, Work{
			Index: i, URL: s.url(addrs), Ledger: socket.Addr().String(), TTL: s.ttl, Hands: hands, Seed: *seed,
		}))
	}
	for _, w := range workers {
		w.hear("ready", finish)
	}

	r := &result{service: s, faults: map[string]int{}}
	faults := &deck{draw: draw{dice, s.ttl}, kinds: append(slices.Concat(s.kinds, linkFaults(links)), stopping(workers), stopping(workers))}
	if s.must {
		faults.left = append(faults.left, s.kinds[0]) // what has to show comes first
	}
	for end := now() + d; now() < end && r.breaches < enough; r.rounds++ {
		round(t, s, r, ledger, workers, faults, end)
	}
	for _, w := range workers {
		w.tell("close")
	}
	for _, w := range workers {
		if said := w.hear("closed", finish); said.Err != "" {
			t.Errorf("worker %d: Close, with all servers well: %s", w.index, said.Err)
		}
	}
	awaitNothingLeft(t, s)
	if d >= conclusive {
		if r.tally.Corrupted == 0 {
			t.Error("nothing was corrupted without a guard: the nemesis is asleep")
		}
		if s.must && r.unpromised == 0 {
			t.Error("no failover broke exclusion: the nemesis is asleep")
		}
	}
	return r
}

// round has the workers work on fresh keys, through a few faults.
func round(t *testing.T, s *service, r *result, ledger *Ledger, workers []*worker, faults *deck, end time.Duration) {
	var on []string
	for k := range keys {
		on = append(on, fmt.Sprintf("%d/%c", r.rounds, 'a'+k))
	}
	began := now()
	for _, w := range workers {
		w.tell("work " + strings.Join(on, " "))
	}
	await(t, r, ledger, on, began, "the beginning")
	if r.rounds == 0 {
		awaitSight(t, s)
	}
	var periods []period
	for i := 0; i < perRound && (i == 0 || now() < end); i++ {
		f := faults.deal()
		p := period{fault: f, from: now()}
		f.inject()
		time.Sleep(f.lasts)
		f.heal()
		p.to = now()
		periods = append(periods, p)
		r.faults[f.name]++
		r.recovery = max(r.recovery, await(t, r, ledger, on, p.to, f.name))
		time.Sleep(faults.between(0, 0.5))
	}
	for _, w := range workers {
		w.tell("stop")
	}
	var leases []Lease
	for _, w := range workers {
		w.hear("done", finish)
		l, failures := w.take()
		leases = append(leases, l...)
		r.count(failures)
	}
	judge(t, s, r, ledger, leases, periods, began)
}

// await waits until every key has a new holder, and returns how long that took.
func await(t *testing.T, r *result, ledger *Ledger, on []string, since time.Duration, what string) time.Duration {
	t.Helper()
	for !ledger.Served(on, since) {
		if now()-since > progress {
			r.breaches++
			t.Errorf("%s: %v after %s, a key has had no new holder yet", NoProgress, progress, what)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return now() - since
}

func judge(t *testing.T, s *service, r *result, ledger *Ledger, leases []Lease, periods []period, began time.Duration) {
	writes, tally := ledger.Take()
	r.leases += len(leases)
	r.tally.Writes += tally.Writes
	r.tally.Refused += tally.Refused
	r.tally.Corrupted += tally.Corrupted
	r.gap = max(r.gap, LongestGap(leases, began))
	for _, l := range leases {
		if l.Ended > 0 {
			r.lost++
		}
	}
	var loses, clock bool
	for _, p := range periods {
		loses = loses || p.loses
		clock = clock || p.clock
	}
	r.apart = r.apart || clock && len(s.addrs) > 1
	broken := func(f Finding) bool {
		return slices.ContainsFunc(periods, func(p period) bool {
			return p.breaks && f.At > p.from && f.At < p.to+s.ttl*3/2
		})
	}
	var found []Finding
	for _, f := range CheckExclusion(leases) {
		if broken(f) {
			r.unpromised++
			continue
		}
		r.overlaps++
		found = append(found, f)
	}
	for _, f := range CheckTokens(leases) {
		if loses && (clock || r.apart) { // nothing carries the order then
			r.unordered++
			continue
		}
		found = append(found, f)
	}
	stale := CheckWrites(writes)
	r.stale += len(stale)
	found = slices.Concat(found, stale, CheckRegister(leases), CheckLosses(leases, slack))
	r.breaches += len(found)
	for _, f := range found {
		t.Errorf("%s: %s", f.What, f.Text)
	}
	if len(found) > 0 {
		for _, p := range periods {
			t.Logf("round %d: %s from %v to %v", r.rounds, p.name, p.from, p.to)
		}
	}
}

// awaitSight makes sure that locks which workers hold are seen where what is left is looked for.
func awaitSight(t *testing.T, s *service) {
	t.Helper()
	for end := now() + progress; now() < end; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		left, _ := s.left(ctx)
		cancel()
		if len(left) > 0 {
			return
		}
	}
	t.Errorf("workers hold keys, and the look for what is left finds none in %v", progress)
}

// awaitNothingLeft gives locks of holders who could not be heard time to run out.
func awaitNothingLeft(t *testing.T, s *service) {
	t.Helper()
	var (
		left []string
		err  error
	)
	for end := now() + leftLimit; now() < end; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		left, err = s.left(ctx)
		cancel()
		if err == nil && len(left) == 0 {
			return
		}
	}
	t.Errorf("%s: %q, %v", Left, left, err)
}
