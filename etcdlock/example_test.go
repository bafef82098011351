package etcdlock_test

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
)

func Example() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, // to notice connections that have gone silent
	})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	locker, err := etcdlock.New(client, &etcdlock.Options{Prefix: "billing"})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	err = paddock.Do(context.Background(), locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
		fmt.Println("holding", lease.Key(), "with", lease.Fence()) // which a guard should be shown
		return ctx.Err()
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A URL opens a Locker with a connection of its own, which its Close closes.
func Example_open() {
	ctx := context.Background()
	locker, err := paddock.Open(ctx, "etcds://billing:secret@etcd-1,etcd-2,etcd-3?prefix=billing&ca_file=/etc/etcd/ca.pem", nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	// The server ends the lease after an hour at the latest, whatever becomes of the process.
	lease, err := locker.Acquire(ctx, "report", &paddock.Options{TTL: 30 * time.Second, MaxHold: time.Hour})
	if err != nil {
		panic(err)
	}
	defer lease.Release(ctx)
}
