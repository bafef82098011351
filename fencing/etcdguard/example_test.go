package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/etcdguard"
)

// Two keys that only the latest holder of the lock can write, together.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker, err := etcdlock.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	guard, err := etcdguard.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = paddock.Do(context.Background(), locker, "leader", nil, func(ctx context.Context, lease *paddock.Lease) error {
		return guard.Do(ctx, "leader", lease.Fence(), clientv3.OpPut("leader/name", "me"), clientv3.OpPut("leader/epoch", "7"))
	})
	if errors.Is(err, fencing.ErrStale) {
		log.Print("somebody else took over in the meantime")
	}
}

// A transaction with a condition of its own.
func ExampleGuard_Ops() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	guard, err := etcdguard.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	create := func(ctx context.Context, f fencing.Fence) error {
		cmps, ops := guard.Ops("config", f)
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision("config/limit"), "=", 0))
		ops = append(ops, clientv3.OpPut("config/limit", "100"))
		resp, err := client.Txn(ctx).If(cmps...).Then(ops...).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
		if err := guard.Check(ctx, "config", f); err != nil {
			return err
		}
		return errors.New("config/limit exists")
	}
	fmt.Println(create(context.Background(), fencing.Fence{Domain: "demo", Token: 1, Owner: "me"}))
}
