package bench

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/zklock"
)

// The bare calls are one Txn that creates a key on a lease and one delete.
func BenchmarkEtcdUncontended(b *testing.B) {
	ctx := context.Background()
	c, err := clientv3.New(clientv3.Config{Endpoints: servers.SharedEtcd(b), DialTimeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	l, err := etcdlock.New(c, nil)
	keep(b, l, err)
	lease, err := c.Grant(ctx, 60)
	if err != nil {
		b.Fatal(err)
	}
	session, err := concurrency.NewSession(c)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	compare(b,
		variant{"bare", func() error {
			_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("bare"), "=", 0)).
				Then(clientv3.OpPut("bare", "", clientv3.WithLease(lease.ID))).Commit()
			if err != nil {
				return err
			}
			_, err = c.Delete(ctx, "bare")
			return err
		}},
		variant{"paddock", pair(l, "uncontended")},
		variant{"concurrency", func() error {
			m := concurrency.NewMutex(session, "concurrency")
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		}},
	)
}

// The bare calls are the creation of an ephemeral node and its deletion.
func BenchmarkZooKeeperUncontended(b *testing.B) {
	addrs := servers.SharedZooKeeper(b)
	l, err := zklock.New(addrs, nil)
	keep(b, l, err)
	c, _, err := zk.Connect(addrs, 4*time.Second, zk.WithLogInfo(false))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	acl := zk.WorldACL(zk.PermAll)
	lock := zk.NewLock(c, "/zk-lock", acl)
	compare(b,
		variant{"bare", func() error {
			if _, err := c.Create("/bare", nil, zk.FlagEphemeral, acl); err != nil {
				return err
			}
			return c.Delete("/bare", -1)
		}},
		variant{"paddock", pair(l, "uncontended")},
		variant{"go-zookeeper", func() error {
			if err := lock.Lock(); err != nil {
				return err
			}
			return lock.Unlock()
		}},
	)
}
