package redisstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

// A fleet is several OS processes: this test binary, run again with a job in its environment.

const envJob = "PADDOCK_TEST_STAMPEDE_JOB"

// job is what a child process does: callers calls of Get at once, when a line comes on its standard input.
type job struct {
	Addr, Key string
	Callers   int
	Load      time.Duration
	LockTTL   time.Duration
}

// done is what a child process has seen.
type done struct {
	Loads, Commands int64
	Slowest         time.Duration
	Statuses        map[string]int
	Errors          []string
}

func TestMain(m *testing.M) {
	if s := os.Getenv(envJob); s != "" {
		var j job
		if err := json.Unmarshal([]byte(s), &j); err != nil {
			panic(err)
		}
		j.run()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// loadsKey counts the loads of all processes.
func loadsKey(key string) string { return "loads/" + key }

func (j job) run() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: j.Addr, ContextTimeoutEnabled: true})
	bare := redis.NewClient(&redis.Options{Addr: j.Addr})
	w := &wire{}
	locker, err := redislock.New(client, nil)
	check(err)
	store, err := redisstore.New(client, nil)
	check(err)
	cache, err := stampede.New[string](store, stampede.Policies{{
		Pattern: "*", Locker: locker, TTL: time.Minute, OnContention: stampede.Wait, LockTTL: j.LockTTL, LoadTimeout: 20 * time.Second,
	}}, &stampede.Options[string]{StoreTimeout: 10 * time.Second})
	check(err)
	// Connections and scripts are there before the herd comes, as in a process that is at work.
	_, err = cache.Get(ctx, "warm/"+uuid.NewString(), func(context.Context) (string, error) { return "", nil })
	check(err)
	client.AddHook(w)
	var d done
	d.Statuses = map[string]int{}
	var mu sync.Mutex
	load := func(ctx context.Context) (string, error) {
		atomic.AddInt64(&d.Loads, 1)
		if err := bare.Incr(ctx, loadsKey(j.Key)).Err(); err != nil {
			return "", err
		}
		time.Sleep(j.Load)
		return "loaded", nil
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	_, err = in.ReadString('\n')
	check(err)
	var wg sync.WaitGroup
	begun := time.Now()
	for range j.Callers {
		wg.Go(func() {
			r, err := cache.Lookup(ctx, j.Key, load)
			took := time.Since(begun)
			mu.Lock()
			defer mu.Unlock()
			d.Slowest = max(d.Slowest, took)
			if err != nil {
				d.Errors = append(d.Errors, err.Error())
				return
			}
			d.Statuses[r.Status.String()]++
		})
	}
	wg.Wait()
	d.Commands = w.trips.Load()
	check(json.NewEncoder(os.Stdout).Encode(d))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// child is a process of the fleet.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, j job) *child {
	t.Helper()
	b, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), envJob+"="+string(b))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	c.out = bufio.NewReader(out)
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("a child said %q, %v", line, err)
	}
	return c
}

func (c *child) begin() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "go\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) end() (d done) {
	c.t.Helper()
	if err := json.NewDecoder(c.out).Decode(&d); err != nil {
		c.t.Fatalf("a child said nothing that can be read: %v", err)
	}
	for _, e := range d.Errors {
		c.t.Errorf("a call failed: %s", e)
	}
	return d
}

// TestFleet: 4 processes of 250 callers each, and one cold key: one load, and few commands.
func TestFleet(t *testing.T) {
	const processes, callers, takes = 4, 250, 200 * time.Millisecond
	j := job{Addr: servers.SharedRedis(t), Key: uuid.NewString(), Callers: callers, Load: takes, LockTTL: 10 * time.Second}
	var fleet []*child
	for range processes {
		fleet = append(fleet, start(t, j))
	}
	for _, c := range fleet {
		c.begin()
	}
	var loads, commands int64
	served := 0
	for _, c := range fleet {
		d := c.end()
		loads += d.Loads
		commands += d.Commands
		for _, n := range d.Statuses {
			served += n
		}
		t.Logf("%+v", d)
	}
	if loads != 1 || served != processes*callers {
		t.Errorf("%d loads, %d calls served; want 1 and %d", loads, served, processes*callers)
	}
	if commands > 40 {
		t.Errorf("%d round trips to store and lock, want at most 40", commands)
	}
}

// TestKilledLoader: a process killed while it loads is replaced within LockTTL and 200 ms, and a little for a busy machine.
func TestKilledLoader(t *testing.T) {
	const lockTTL = 2 * time.Second
	addr, key := servers.SharedRedis(t), uuid.NewString()
	counter := connect(t, addr)
	victim := start(t, job{Addr: addr, Key: key, Callers: 1, Load: time.Hour, LockTTL: lockTTL})
	heir := start(t, job{Addr: addr, Key: key, Callers: 50, Load: 0, LockTTL: lockTTL})
	victim.begin()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, _ := counter.Get(t.Context(), loadsKey(key)).Int(); n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the victim does not load")
		}
	}
	heir.begin()
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d := heir.end()
	t.Logf("%+v", d)
	if d.Loads != 1 {
		t.Errorf("%d loads by the heir, want 1", d.Loads)
	}
	if d.Slowest > lockTTL+200*time.Millisecond+500*time.Millisecond {
		t.Errorf("took over after %v, want LockTTL (%v) and 200 ms", d.Slowest, lockTTL)
	}
}

// TestSlowFleet: 8 processes with a load slower than the lock's TTL: it is renewed, so there is one load, and it is cached.
func TestSlowFleet(t *testing.T) {
	j := job{Addr: servers.SharedRedis(t), Key: uuid.NewString(), Callers: 10, Load: 3 * time.Second, LockTTL: time.Second}
	var fleet []*child
	for range 8 {
		fleet = append(fleet, start(t, j))
	}
	for _, c := range fleet {
		c.begin()
	}
	var loads int64
	for _, c := range fleet {
		loads += c.end().Loads
	}
	// A machine so busy that a renewal comes too late deposes a loader: bounded, and not one each.
	if loads < 1 || loads > 3 {
		t.Errorf("%d loads by 8 processes, want 1 where renewals are in time", loads)
	}
	client := connect(t, j.Addr)
	es, err := open(t, client).Get(t.Context(), "default/"+j.Key)
	if err != nil || es[0].Kind != stampede.Value || !es[0].Fresh() {
		t.Errorf("in the end there is %+v, %v; want it cached", es, err)
	}
}
