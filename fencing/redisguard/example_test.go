package redisguard_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/redisguard"
	"github.com/paddock-go/paddock/redislock"
)

// A write that only the latest holder of the lock can make.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	locker, err := redislock.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	guard, err := redisguard.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = paddock.Do(context.Background(), locker, "cart/7", nil, func(ctx context.Context, lease *paddock.Lease) error {
		return guard.Set(ctx, lease.Fence(), "cart/7", "three apples", time.Hour)
	})
	if errors.Is(err, fencing.ErrStale) {
		log.Print("somebody else took over in the meantime")
	}
}
