//go:build linux

package servertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	_ "github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/fencing"
	_ "github.com/paddock-go/paddock/redislock"
	_ "github.com/paddock-go/paddock/redlock"
	_ "github.com/paddock-go/paddock/zklock"

	"github.com/paddock-go/paddock/internal/servers"
)

// lockers are the backends that hold locks across processes. memlock's are of one process alone: nobody else can take over from
// it when it is stopped.
var lockers = map[string]func(tb testing.TB) (url string){
	"redis":   func(tb testing.TB) string { return "redis://" + servers.SharedRedis(tb) },
	"redlock": func(tb testing.TB) string { return "redlock://" + strings.Join(servers.SharedRedlock(tb), ",") },
	"etcd":    func(tb testing.TB) string { return "etcd://" + strings.Join(servers.SharedEtcd(tb), ",") },
	"zookeeper": func(tb testing.TB) string {
		return "zk://" + strings.Join(servers.SharedZooKeeper(tb), ",") + "?session_timeout=1s&tick_time=200ms"
	},
}

// job is what a holder does: under the lock Key, it adds its name to two accounts of a ledger, one with a guard and one without.
type job struct {
	Locker string // URL
	Ledger string // kind
	At     string
	Key    string
	Name   string // of the holder
}

func (j job) guarded() string { return j.Key + "/guarded" }
func (j job) bare() string    { return j.Key + "/bare" }

// run does the job, and calls between after it has read both accounts and before it writes. The answers are those of the writes.
func (j job) run(ctx context.Context, l paddock.Locker, led ledger, between func()) (fenced, blind error) {
	var wrote [2]error
	err := paddock.Do(ctx, l, j.Key, &paddock.Options{TTL: time.Second}, paddock.Guarded(led, j.guarded(),
		func(_ context.Context, lease *paddock.Lease) error {
			var was [2]string
			for i, account := range []string{j.guarded(), j.bare()} {
				var err error
				if was[i], err = led.read(ctx, account); err != nil {
					return err
				}
			}
			between()
			// Not on the lease's context, which ends when the holder wakes: it may as well have looked at that a moment before it
			// was stopped.
			wrote[0] = led.fenced(ctx, j.guarded(), was[0]+j.Name, lease.Fence())
			wrote[1] = led.blindly(ctx, j.bare(), was[1]+j.Name)
			return nil
		}))
	if err != nil && !errors.Is(err, paddock.ErrLost) {
		return err, err
	}
	return wrote[0], wrote[1]
}

// TestPausedHolder stops a process that holds a lock, between its read and its write, for longer than its lease lives. Another takes
// over, reads and writes. When the first goes on, the guard refuses what it writes; where there is no guard, what the other has
// written is lost. Then the first takes the lock again, and all is well.
func TestPausedHolder(t *testing.T) {
	places := make(chan struct{}, 8)
	var running sync.WaitGroup
	defer running.Wait()
	for locker, url := range lockers {
		for kind, led := range ledgers {
			running.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				t.Run(locker+"/"+kind, func(t *testing.T) {
					paused(t, job{Locker: url(t), Ledger: kind, At: led.at(t), Key: fmt.Sprint("paused/", rand.Uint64())})
				})
			})
		}
	}
}

func paused(t *testing.T, j job) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, led, err := j.open(ctx)
	must(t, err)
	defer l.Close()
	must(t, j.first(ctx, led))

	j.Name = "A"
	a := j.start(t, ctx)
	a.hear("read")
	a.stop()

	j.Name = "B"
	fenced, blind := j.run(ctx, l, led, func() {})
	if fenced != nil || blind != nil {
		t.Fatalf("the next holder's writes: %v, %v", fenced, blind)
	}
	expect := func(when, account, want string) {
		t.Helper()
		if got, err := led.read(ctx, account); err != nil || got != want {
			t.Errorf("%s: %s has %q, %v; want %q", when, account, got, err, want)
		}
	}
	expect("after the next holder's writes", j.guarded(), "-B")
	expect("after the next holder's writes", j.bare(), "-B")

	a.say("write")
	a.resume()
	a.hear("stale; unguarded: <nil>")
	expect("after the paused holder's write", j.guarded(), "-B")
	expect("after the paused holder's write, without a guard", j.bare(), "-A") // B's is lost

	a.say("again")
	a.hear("<nil>; unguarded: <nil>")
	expect("after the paused holder's second try", j.guarded(), "-BA")
}

// open connects to what the job is about.
func (j job) open(ctx context.Context) (paddock.Locker, ledger, error) {
	led, err := ledgers[j.Ledger].open(j.At)
	if err != nil {
		return nil, led, err
	}
	l, err := paddock.Open(ctx, j.Locker, nil)
	return l, led, err
}

// first writes what the accounts begin with.
func (j job) first(ctx context.Context, led ledger) error {
	return errors.Join(led.blindly(ctx, j.guarded(), "-"), led.blindly(ctx, j.bare(), "-"))
}

const jobEnv = "PADDOCK_PAUSED_HOLDER"

func TestMain(m *testing.M) {
	if arg := os.Getenv(jobEnv); arg != "" {
		if err := hold(arg); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold is the first holder, in a process of its own. It says how far it is, a line each.
func hold(arg string) error {
	var j job
	if err := json.Unmarshal([]byte(arg), &j); err != nil {
		return err
	}
	ctx := context.Background()
	l, led, err := j.open(ctx)
	if err != nil {
		return err
	}
	orders := bufio.NewScanner(os.Stdin)
	answer := func(fenced, blind error) {
		if errors.Is(fenced, fencing.ErrStale) {
			fenced = errors.New("stale")
		}
		fmt.Printf("%v; unguarded: %v\n", fenced, blind)
	}
	answer(j.run(ctx, l, led, func() {
		fmt.Println("read")
		orders.Scan() // write
	}))
	if !orders.Scan() { // again
		return errors.New("the test is gone")
	}
	answer(j.run(ctx, l, led, func() {}))
	return l.Close()
}

// holder is that process as the test sees it.
type holder struct {
	t     *testing.T
	ctx   context.Context
	cmd   *exec.Cmd
	in    func(string)
	lines chan string
}

func (j job) start(t *testing.T, ctx context.Context) *holder {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	arg, err := json.Marshal(j)
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(arg))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	h := &holder{t: t, ctx: ctx, cmd: cmd, lines: make(chan string, 8), in: func(s string) { fmt.Fprintln(in, s) }}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // or it has ended
		<-ended
		_ = cmd.Wait()
	})
	go func() {
		defer close(ended)
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	return h
}

func (h *holder) say(order string) { h.in(order) }

// hear waits for the next that the process says, which has to be this.
func (h *holder) hear(want string) {
	h.t.Helper()
	select {
	case line := <-h.lines:
		if line != want {
			h.t.Fatalf("the paused holder says %q; want %q", line, want)
		}
	case <-h.ctx.Done():
		h.t.Fatalf("the paused holder does not say %q", want)
	}
}

// stop suspends the process, and returns when it has stopped.
func (h *holder) stop() {
	h.t.Helper()
	must(h.t, h.cmd.Process.Signal(syscall.SIGSTOP))
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
		must(h.t, err)
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "T") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *holder) resume() {
	h.t.Helper()
	must(h.t, h.cmd.Process.Signal(syscall.SIGCONT))
}
