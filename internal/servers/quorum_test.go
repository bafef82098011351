package servers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func etcdClient(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// put writes with a time limit, as one try of until.
func put(client *clientv3.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, err := client.Put(ctx, key, value)
	return err
}

// get reads a key with a time limit.
func get(client *clientv3.Client, key string, opts ...clientv3.OpOption) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	resp, err := client.Get(ctx, key, opts...)
	if err != nil {
		return "", err
	}
	if len(resp.Kvs) == 0 {
		return "", errors.New("no such key")
	}
	return string(resp.Kvs[0].Value), nil
}

func TestEtcdSingle(t *testing.T) {
	t.Parallel()
	q := Etcd(t, 1)
	client := etcdClient(t, q.Endpoints()...)
	until(t, "written", func() error { return put(client, "k", "v") })
	q.Nodes[0].Restart()
	until(t, "back with its data", func() error {
		if v, err := get(client, "k"); v != "v" {
			return fmt.Errorf("k is %q (%v)", v, err)
		}
		return nil
	})
	px := q.Proxies(t)[0]
	through := etcdClient(t, px.Addr)
	until(t, "written", func() error { return put(through, "k", "w") })
	px.Cut()
	if err := put(through, "k", "x"); err == nil {
		t.Fatal("a write arrived through a proxy that is cut")
	}
}

func TestEtcdKillLeader(t *testing.T) {
	t.Parallel()
	q := Etcd(t, 3)
	client := etcdClient(t, q.Endpoints()...)
	until(t, "written", func() error { return put(client, "k", "1") })
	leader := q.Leader(t)
	q.Nodes[leader].Kill()
	next := q.Leader(t)
	if next == leader {
		t.Fatal("a killed node leads")
	}
	until(t, "writing again", func() error { return put(client, "k", "2") })

	q.Nodes[leader].Restart()
	q.AwaitReady(t)
	back := etcdClient(t, q.Nodes[leader].Addr)
	until(t, "back and up to date", func() error {
		v, err := get(back, "k")
		if err == nil && v != "2" {
			t.Fatalf("the node that is back reads %q, want 2: it confirmed that with the others", v)
		}
		return err
	})

	q.Nodes[next].Pause()
	if third := q.Leader(t); third == next {
		t.Fatal("a paused node leads")
	}
}

// An old leader in a minority of one: it neither writes nor confirms what it
// reads, and would still answer from what it has.
func TestEtcdIsolateLeader(t *testing.T) {
	t.Parallel()
	q := Etcd(t, 3)
	leader := q.Leader(t)
	old, other := etcdClient(t, q.Nodes[leader].Addr), etcdClient(t, q.Nodes[(leader+1)%3].Addr)
	until(t, "written", func() error { return put(old, "k", "old") })

	q.Isolate(leader)
	until(t, "written by the majority", func() error { return put(other, "k", "new") })
	if q.Leader(t) == leader {
		t.Fatal("an isolated node counts as the leader")
	}
	if v, err := get(old, "k"); err == nil {
		t.Fatalf("the isolated node confirmed that k is %q", v)
	}
	until(t, "read from the isolated node alone", func() error {
		v, err := get(old, "k", clientv3.WithSerializable())
		if err == nil && v != "old" {
			t.Fatalf("the isolated node has %q, want what was before", v)
		}
		return err
	})

	q.Heal()
	until(t, "healed", func() error {
		if v, err := get(old, "k"); v != "new" {
			return fmt.Errorf("k is %q (%v)", v, err)
		}
		return nil
	})
}

func TestSharedEtcd(t *testing.T) {
	endpoints := SharedEtcd(t)
	client := etcdClient(t, endpoints...)
	until(t, "written", func() error { return put(client, "shared", "v") })
	if again := SharedEtcd(t); again[0] != endpoints[0] {
		t.Fatalf("a second server at %s, after %s", again[0], endpoints[0])
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// zooKeeperClient returns a client that has its session.
func zooKeeperClient(t *testing.T, timeout time.Duration, servers ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(servers, timeout, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	must(t, err)
	t.Cleanup(conn.Close)
	limit := time.After(30 * time.Second)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn
			}
		case <-limit:
			t.Fatal("no session in time")
		}
	}
}

// gone waits until path does not exist.
func gone(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	until(t, "gone: "+path, func() error {
		ok, _, err := conn.Exists(path)
		if err == nil && ok {
			err = errors.New("it exists")
		}
		return err
	})
}

// A session whose client is cut off ends, and what it held goes with it.
func TestZooKeeperSessionExpiry(t *testing.T) {
	t.Parallel()
	q := ZooKeeper(t, 1)
	px := q.Proxies(t)[0]
	holder := zooKeeperClient(t, 2*time.Second, px.Addr)
	watcher := zooKeeperClient(t, 10*time.Second, q.Endpoints()...)
	_, err := holder.Create("/held", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, err)
	px.Hold()
	gone(t, watcher, "/held")
}

func TestZooKeeperKillLeader(t *testing.T) {
	t.Parallel()
	q := ZooKeeper(t, 3)
	client := zooKeeperClient(t, 10*time.Second, q.Endpoints()...)
	_, err := client.Create("/held", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, err)
	leader := q.Leader(t)
	q.Nodes[leader].Kill()
	if q.Leader(t) == leader {
		t.Fatal("a killed node leads")
	}
	until(t, "writing again", func() error {
		_, err := client.Set("/held", []byte("2"), -1)
		return err
	})
	q.Nodes[leader].Restart()
	q.AwaitReady(t)
	back := zooKeeperClient(t, 10*time.Second, q.Nodes[leader].Addr)
	if data, _, err := back.Get("/held"); string(data) != "2" {
		t.Fatalf("the node that is back reads %q (%v), want 2", data, err)
	}
}

// An old leader in a minority of one loses its clients' sessions to the
// majority.
func TestZooKeeperIsolateLeader(t *testing.T) {
	t.Parallel()
	q := ZooKeeper(t, 3)
	leader := q.Leader(t)
	holder := zooKeeperClient(t, 2*time.Second, q.Nodes[leader].Addr)
	other := zooKeeperClient(t, 10*time.Second, q.Nodes[(leader+1)%3].Addr, q.Nodes[(leader+2)%3].Addr)
	_, err := holder.Create("/held", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, err)

	q.Isolate(leader)
	if q.Leader(t) == leader {
		t.Fatal("an isolated node counts as the leader")
	}
	gone(t, other, "/held")
	until(t, "no leader any more", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if mode, err := zooKeeperMode(ctx, q.Nodes[leader]); err == nil {
			return fmt.Errorf("the isolated node serves as %s", mode)
		}
		return nil
	})

	q.Heal()
	q.AwaitReady(t)
}

// A follower that is cut off without being told goes on answering reads, while
// the majority ends its clients' sessions.
func TestZooKeeperSilentFollower(t *testing.T) {
	t.Parallel()
	q := ZooKeeper(t, 3, "syncLimit=50") // ticks of 200 ms, after which it gives up
	leader := q.Leader(t)
	follower := (leader + 1) % 3
	holder := zooKeeperClient(t, time.Second, q.Nodes[follower].Addr)
	other := zooKeeperClient(t, 10*time.Second, q.Nodes[leader].Addr)
	_, err := holder.Create("/held", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, err)

	q.Silence(follower)
	gone(t, other, "/held")
	if _, _, err := holder.Get("/held"); err != nil {
		t.Fatalf("a read on a follower that has not noticed: %v", err)
	}

	q.Heal()
	q.AwaitReady(t)
	until(t, "the old session to be over there too", func() error {
		if there, _, err := holder.Exists("/held"); err != nil || there {
			return fmt.Errorf("exists: %v, %v", there, err)
		}
		return nil
	})
}

func TestSharedZooKeeper(t *testing.T) {
	endpoints := SharedZooKeeper(t)
	zooKeeperClient(t, 5*time.Second, endpoints...)
	if again := SharedZooKeeper(t); again[0] != endpoints[0] {
		t.Fatalf("a second server at %s, after %s", again[0], endpoints[0])
	}
}
