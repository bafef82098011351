package redlock_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/redlock"
)

func Example() {
	var nodes []redis.UniversalClient
	for _, addr := range []string{"redis-1:6379", "redis-2:6379", "redis-3:6379", "redis-4:6379", "redis-5:6379"} {
		client := redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, // to say at once what they think of a node
		})
		defer client.Close()
		nodes = append(nodes, client)
	}
	locker, err := redlock.New(nodes, &redlock.Options{Prefix: "billing"})
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

// A URL opens a Locker with connections of its own, which its Close closes. Here tokens stay in order although two nodes come back
// without their memory, and one node may be down.
func Example_open() {
	ctx := context.Background()
	locker, err := paddock.Open(ctx, "redlocks://:secret@redis-1,redis-2,redis-3,redis-4,redis-5?prefix=billing&fence_quorum=4", nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "report", nil)
	if err != nil {
		panic(err)
	}
	defer lease.Release(ctx)
}
