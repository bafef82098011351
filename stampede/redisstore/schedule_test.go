//go:build unix

package redisstore_test

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
)

// outcome is what all processes of a race have seen together.
type outcome struct {
	history
	statuses   map[string]int
	errors     map[string]int
	loads      int
	pauses     int
	evictions  int
	unfinished []string
	seed       uint64
}

// run lets a process race for each of locks, while all of them are paused and what they rest on is evicted, at random.
func run(t *testing.T, length time.Duration, what string, locks ...string) (o outcome) {
	t.Helper()
	o = outcome{statuses: map[string]int{}, errors: map[string]int{}, seed: rand.Uint64()}
	j := job{Addr: servers.SharedRedis(t), Key: uuid.NewString(), LockTTL: 500 * time.Millisecond}
	var fleet []*child
	for i, lock := range locks {
		serve(t, lock)
		j.Lock, j.Race = lock, &race{Time: length, Seed: o.seed + uint64(i), Broken: what}
		if lock != "redis" {
			j.LockTTL = lockTTL
		}
		fleet = append(fleet, start(t, j))
	}
	client := connect(t, j.Addr)
	begin(fleet...)
	rnd := rand.New(rand.NewPCG(o.seed, 99))
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(time.Duration(rnd.Int64N(int64(40 * time.Millisecond))))
		switch rnd.IntN(6) {
		case 0:
			o.pauses++
			pause(t, fleet[rnd.IntN(len(fleet))], rnd)
		default:
			o.evictions++
			evict(t, client, j, rnd)
		}
	}
	for _, c := range fleet {
		var s seen
		c.hear(&s)
		o.add(s.history)
		o.loads += s.Loads
		for status, n := range s.Statuses {
			o.statuses[status] += n
		}
		for err, n := range s.Errors {
			o.errors[err] += n
		}
		if s.Last != "" {
			o.unfinished = append(o.unfinished, s.Last)
		}
	}
	return o
}

// pause stops a process for a while: now and then for longer than its lock and its store's patience last.
func pause(t *testing.T, c *child, rnd *rand.Rand) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(moment(rnd, 1200*time.Millisecond))
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// evict makes the server forget an entry, a ticket, or the lock that a load is under.
func evict(t *testing.T, client *redis.Client, j job, rnd *rand.Rand) {
	t.Helper()
	key := "default/" + j.keys()[rnd.IntN(2)]
	del(t, client, []string{base(key) + ":e1", base(key) + ":t1", lockOf(key)}[rnd.IntN(3)])
}

// judge fails the test unless the race was one, and nothing old was served in it.
func (o *outcome) judge(t *testing.T) {
	t.Helper()
	t.Logf("seed %d: %d calls served %v, %d loads, %d changes, %d pauses, %d evictions, errors %v",
		o.seed, len(o.Served), o.statuses, o.loads, len(o.Changes), o.pauses, o.evictions, o.errors)
	for i, v := range o.old() {
		if i < 5 {
			t.Errorf("seed %d: %s", o.seed, v)
		}
	}
	if len(o.unfinished) > 0 {
		t.Errorf("seed %d: when all was quiet, calls failed: %v", o.seed, o.unfinished)
	}
	if len(o.Served) < 100 || len(o.Changes) < 10 || o.loads < 10 || o.pauses == 0 {
		t.Errorf("seed %d: too little has happened", o.seed)
	}
}

// TestSchedules: processes on one Redis load, invalidate, are paused and lose what they rest on in random schedules: nothing older than an
// acknowledged Invalidate or Set is served after it.
func TestSchedules(t *testing.T) {
	o := run(t, 3*time.Second, "", "redis", "redis", "redis")
	o.judge(t)
}

// TestChangeOfLocker: the same while some processes lock on Redis and others on etcd, as in a rolling deploy.
func TestChangeOfLocker(t *testing.T) {
	o := run(t, 3*time.Second, "", "redis", "etcd")
	o.judge(t)
}

// TestSchedulesFindOut: a race over a store that is broken finds something old.
func TestSchedulesFindOut(t *testing.T) {
	for what := range broken {
		t.Run(what, func(t *testing.T) {
			for range 5 {
				if o := run(t, time.Second, what, "redis", "redis"); len(o.old()) > 0 {
					t.Logf("found: %s", o.old()[0])
					return
				}
			}
			t.Errorf("five races over a store in which %s found nothing", what)
		})
	}
}

// lockOf is the lock of a key of a cache, as redislock documents it.
func lockOf(key string) string { return "paddock:v1:{cache/" + key + "}" }
