package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/redislock"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	locker, err := redislock.New(client, &redislock.Options{Prefix: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = paddock.Do(context.Background(), locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
		fmt.Println("holding", lease.Key(), "with", lease.Fence())
		return nil // ctx ends if the lease is lost
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A job that should run in one process only, and now or not at all.
func ExampleLocker_TryAcquire() {
	locker, err := paddock.Open(context.Background(), "redis://localhost:6379/0?prefix=jobs", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	lease, err := locker.TryAcquire(context.Background(), "nightly", &paddock.Options{TTL: 30 * time.Second})
	var held *paddock.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println("somebody else does it, for", held.RetryAfter)
		return
	case err != nil:
		log.Fatal(err)
	}
	defer lease.Release(context.Background())
}

// Two of three replicas have to have each grant before it counts.
func ExampleOptions() {
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "main", SentinelAddrs: []string{"s1:26379", "s2:26379", "s3:26379"},
	})
	defer client.Close()
	locker, err := redislock.New(client, &redislock.Options{MinReplicas: 2, ReplicaWait: 500 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
}
