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

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

// A fleet is several OS processes: this test binary, run again with a job in its environment.

const envJob = "PADDOCK_TEST_STAMPEDE_JOB"

// job is what a child process does, when a line comes on its standard input: callers calls of Get at once, or its part of a race.
type job struct {
	Addr, Key string
	Lock      string // see lockers
	LockTTL   time.Duration

	Callers int
	Load    time.Duration

	Race *race
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
		check(json.Unmarshal([]byte(s), &j))
		if j.Race != nil {
			j.race()
		} else {
			j.herd()
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// report tells the parent.
func report(v any) { check(json.NewEncoder(os.Stdout).Encode(v)) }

// ready says so, and waits for the word.
func ready() {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
}

// loadsKey counts the loads of all processes.
func loadsKey(key string) string { return "loads/" + key }

// herd makes the calls.
func (j job) herd() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: j.Addr, ContextTimeoutEnabled: true})
	bare := redis.NewClient(&redis.Options{Addr: j.Addr})
	w := &wire{}
	client.AddHook(w)
	var lock atomic.Int64
	store, err := redisstore.New(client, nil)
	check(err)
	cache, err := stampede.New[string](store, stampede.Policies{{
		Pattern: "*", Locker: lockers[j.Lock](&lock), TTL: time.Minute, OnContention: stampede.Wait, LockTTL: j.LockTTL,
		LoadTimeout: 20 * time.Second,
	}}, &stampede.Options[string]{StoreTimeout: 10 * time.Second})
	check(err)
	// Connections and scripts are there before the herd comes, as in a process that is at work.
	_, err = cache.Get(ctx, "warm/"+uuid.NewString(), func(context.Context) (string, error) { return "", nil })
	check(err)
	d := done{Statuses: map[string]int{}}
	load := func(ctx context.Context) (string, error) {
		atomic.AddInt64(&d.Loads, 1)
		if err := bare.Incr(ctx, loadsKey(j.Key)).Err(); err != nil {
			return "", err
		}
		time.Sleep(j.Load)
		return "loaded", nil
	}
	ready()
	w.trips.Store(0)
	lock.Store(0)
	var mu sync.Mutex
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
	d.Commands = w.trips.Load() + lock.Load()
	report(d)
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
	return c
}

// begin gives all their word at once, when all are ready.
func begin(children ...*child) {
	for _, c := range children {
		c.t.Helper()
		if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
			c.t.Fatalf("a child said %q, %v", line, err)
		}
	}
	for _, c := range children {
		if _, err := io.WriteString(c.in, "go\n"); err != nil {
			c.t.Fatal(err)
		}
	}
}

// hear decodes what the child reports.
func (c *child) hear(v any) {
	c.t.Helper()
	if err := json.NewDecoder(c.out).Decode(v); err != nil {
		c.t.Fatalf("a child said nothing that can be read: %v", err)
	}
}

// end is what the child of a herd has seen.
func (c *child) end() (d done) {
	c.t.Helper()
	c.hear(&d)
	for _, e := range d.Errors {
		c.t.Errorf("a call failed: %s", e)
	}
	return d
}
