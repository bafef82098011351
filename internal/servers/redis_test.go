package servers

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// connect returns a client that never repeats a command, and is patient: the
// machine may be busy.
func connect(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

// until repeats probe until it succeeds, for 30 s at most.
func until(t *testing.T, what string, probe func() error) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not %s in time: %v", what, err)
		}
		time.Sleep(pollEvery)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRedisKillAndRestart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	client := connect(t, p.Addr)
	must(t, client.Set(ctx, "k", "v", 0).Err())

	pid := p.Pid()
	p.Kill()
	if p.Running() || client.Ping(ctx).Err() == nil {
		t.Fatal("a killed server answered")
	}
	p.Restart()
	if got := client.Get(ctx, "k").Val(); got != "v" {
		t.Fatalf("after the restart the key is %q, want what was written to the append-only file", got)
	}
	if p.Pid() == pid {
		t.Fatal("the process id did not change")
	}
}

func TestRedisPause(t *testing.T) {
	t.Parallel()
	p := Redis(t)
	client := connect(t, p.Addr)
	p.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := p.ready(ctx); err == nil {
		t.Fatal("a paused server answered")
	}
	p.Resume()
	must(t, client.Ping(t.Context()).Err())

	p.Pause()
	p.Kill() // must not wait for a paused process to run
	if p.Running() {
		t.Fatal("a paused server survived Kill")
	}
}

func TestRedisWithUsers(t *testing.T) {
	t.Parallel()
	p := Redis(t, "--user", "default", "off", "--user", "worker", "on", ">secret", "~*", "+@all", "resetchannels")
	if err := connect(t, p.Addr).Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Fatalf("without a password: %v, want NOAUTH", err)
	}
	worker := redis.NewClient(&redis.Options{Addr: p.Addr, Username: "worker", Password: "secret"})
	defer worker.Close()
	must(t, worker.Set(t.Context(), "k", "v", 0).Err())
	if err := worker.Publish(t.Context(), "channel", "x").Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Fatalf("publish to a channel that is not allowed: %v, want NOPERM", err)
	}
}

func TestSharedRedis(t *testing.T) {
	addr := SharedRedis(t)
	must(t, connect(t, addr).Ping(t.Context()).Err())
	if again := SharedRedis(t); again != addr {
		t.Fatalf("a second server at %s, after %s", again, addr)
	}
	if got := os.Getenv(EnvRedis); got != addr {
		t.Fatalf("%s is %q, so a child process would not find %s", EnvRedis, got, addr)
	}
	if nodes := SharedRedlock(t); len(nodes) != 5 {
		t.Fatalf("five servers for Redlock, got %v", nodes)
	}
}

// The environment names servers that run already: nothing is started.
func TestSharedFromEnvironment(t *testing.T) {
	t.Setenv(EnvRedlock, "127.0.0.1:1, 127.0.0.1:2")
	var s shared
	got := s.get(t, EnvRedlock, func() ([]string, error) { return nil, errors.New("started a server") })
	if strings.Join(got, " ") != "127.0.0.1:1 127.0.0.1:2" {
		t.Fatalf("got %q", got)
	}
}

// An acknowledged write that the replica never got is gone when it is promoted.
func TestRedisReplicaPromotion(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := Redis(t)
	link := NewProxy(t, primary.Addr)
	replica := RedisReplica(t, link.Addr)
	client := connect(t, primary.Addr)

	must(t, client.Set(ctx, "before", 1, 0).Err())
	if n := client.Wait(ctx, 1, 5*time.Second).Val(); n != 1 {
		t.Fatalf("%d replicas have the write, want 1", n)
	}
	link.Hold()
	must(t, client.Set(ctx, "lost", 1, 0).Err())
	if n := client.Wait(ctx, 1, 50*time.Millisecond).Val(); n != 0 {
		t.Fatal("a replica that is cut off confirmed a write")
	}
	primary.Kill()
	link.Cut() // what it held dies with the primary
	Promote(t, replica)

	promoted := connect(t, replica.Addr)
	if n := promoted.Exists(ctx, "before").Val(); n != 1 {
		t.Fatal("the promoted replica lost what it had confirmed")
	}
	if n := promoted.Exists(ctx, "lost").Val(); n != 0 {
		t.Fatal("the promoted replica has a write that it could not have seen")
	}
	must(t, promoted.Set(ctx, "after", 1, 0).Err())
}

func TestRedisNodesAreIndependent(t *testing.T) {
	t.Parallel()
	nodes := RedisNodes(t, 5)
	must(t, connect(t, nodes[0].Addr).Set(t.Context(), "k", 1, 0).Err())
	for _, node := range nodes[1:] {
		if n := connect(t, node.Addr).Exists(t.Context(), "k").Val(); n != 0 {
			t.Fatalf("%s has the key of another", node.Name)
		}
	}
}
