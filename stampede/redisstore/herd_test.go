package redisstore_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
)

// TestFleet: 4 processes of 250 callers each, and one key that has expired: one load over every Locker, and few commands.
func TestFleet(t *testing.T) {
	const processes, callers, takes = 4, 250, 100 * time.Millisecond
	for lock, most := range map[string]int64{
		"redis": 40, "etcd": 60,
		"zookeeper": 80,  // to be refused takes three requests
		"redlock":   140, // five servers are asked
	} {
		t.Run(lock, func(t *testing.T) {
			serve(t, lock)
			j := job{Addr: servers.SharedRedis(t), Key: uuid.NewString(), Lock: lock, Callers: callers, Load: takes, LockTTL: 10 * time.Second}
			var fleet []*child
			for range processes {
				fleet = append(fleet, start(t, j))
			}
			expired(t, j)
			begin(fleet...)
			var loads, commands int64
			var slowest time.Duration
			served := 0
			for _, c := range fleet {
				d := c.end()
				loads += d.Loads
				commands += d.Commands
				slowest = max(slowest, d.Slowest)
				for _, n := range d.Statuses {
					served += n
				}
			}
			t.Logf("%d commands, the last caller served %v after the end of the load", commands, slowest-takes)
			if loads != 1 || served != processes*callers {
				t.Errorf("%d loads, %d calls served; want 1 and %d", loads, served, processes*callers)
			}
			if commands > most {
				t.Errorf("%d round trips to store and lock, want at most %d", commands, most)
			}
		})
	}
}

// expired has the key of j in the store for a moment.
func expired(t *testing.T, j job) {
	t.Helper()
	s := open(t, connect(t, j.Addr))
	if err := s.Set(t.Context(), "default/"+j.Key, stampede.Entry{Kind: stampede.Value, Value: []byte(`"old"`), TTL: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		es, err := s.Get(t.Context(), "default/"+j.Key)
		if err != nil {
			t.Fatal(err)
		}
		if es[0].Kind == stampede.Absent {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it does not expire")
		}
	}
}

// TestKilledLoader: a process killed while it loads is replaced within LockTTL and 200 ms, and the time that its lock service takes to notice.
// A busy machine may be late, but not three times.
func TestKilledLoader(t *testing.T) {
	const late = 500 * time.Millisecond // never later than that
	for lock, notices := range map[string]time.Duration{
		"redis": 0, "redlock": 0,
		"etcd":      time.Second,            // a lease ends when the server next looks, twice a second, and its TTL is in whole ones
		"zookeeper": 200 * time.Millisecond, // sessions end on ticks
	} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			serve(t, lock)
			want := lockTTL + notices + 200*time.Millisecond
			for attempt := 1; ; attempt++ {
				took := takeOver(t, lock)
				t.Logf("taken over after %v", took)
				if took <= want {
					return
				}
				if attempt == 3 || took > want+late {
					t.Fatalf("took over after %v, attempt %d; want LockTTL (%v), %v for the lock service and 200 ms", took, attempt, lockTTL, notices)
				}
			}
		})
	}
}

// takeOver kills a process while it loads, and returns how long 50 waiters of another then took.
func takeOver(t *testing.T, lock string) time.Duration {
	addr, key := servers.SharedRedis(t), uuid.NewString()
	counter := connect(t, addr)
	victim := start(t, job{Addr: addr, Key: key, Lock: lock, Callers: 1, Load: time.Hour, LockTTL: lockTTL})
	heir := start(t, job{Addr: addr, Key: key, Lock: lock, Callers: 50, Load: 0, LockTTL: lockTTL})
	begin(victim)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, _ := counter.Get(t.Context(), loadsKey(key)).Int(); n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the victim does not load")
		}
	}
	begin(heir)
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d := heir.end()
	if d.Loads != 1 {
		t.Errorf("%d loads by the heir, want 1", d.Loads)
	}
	return d.Slowest
}

// TestSlowFleet: 8 processes with a load slower than the lock's TTL: it is renewed, so there is one load, and it is cached.
func TestSlowFleet(t *testing.T) {
	for _, lock := range []string{"redis", "etcd"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			serve(t, lock)
			j := job{Addr: servers.SharedRedis(t), Key: uuid.NewString(), Lock: lock, Callers: 10, Load: 5 * time.Second, LockTTL: lockTTL}
			var fleet []*child
			for range 8 {
				fleet = append(fleet, start(t, j))
			}
			begin(fleet...)
			var loads int64
			for _, c := range fleet {
				loads += c.end().Loads
			}
			// A machine so busy that a renewal comes too late deposes a loader: bounded, and not one each.
			if loads < 1 || loads > 3 {
				t.Errorf("%d loads by 8 processes, want 1 where renewals are in time", loads)
			}
			es, err := open(t, connect(t, j.Addr)).Get(t.Context(), "default/"+j.Key)
			if err != nil || es[0].Kind != stampede.Value || !es[0].Fresh() {
				t.Errorf("in the end there is %+v, %v; want it cached", es, err)
			}
		})
	}
}
