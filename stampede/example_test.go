package stampede_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

func Example() {
	locker := memlock.New(nil) // or redislock, redlock, etcdlock, zklock
	defer locker.Close()
	store := memstore.New(nil) // or redisstore

	cache, err := stampede.New[[]string](store, stampede.Policies{
		{Pattern: "trending:*", Locker: locker, TTL: time.Minute, StaleFor: time.Hour},
		{Pattern: "*", TTL: 10 * time.Second}, // harmless: no lock
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	load := func(ctx context.Context) ([]string, error) {
		fmt.Println("loading")
		return []string{"a post", "another"}, nil
	}
	var herd sync.WaitGroup
	for range 50 {
		herd.Go(func() {
			if _, err := cache.Get(context.Background(), "trending:posts", load); err != nil {
				log.Print(err)
			}
		})
	}
	herd.Wait()
	result, err := cache.Lookup(context.Background(), "trending:posts", load)
	fmt.Println(result.Value, result.Status, err)
	// Output:
	// loading
	// [a post another] fresh <nil>
}

func ExampleCache_Invalidate() {
	cache, err := stampede.New[int](memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: time.Minute}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	ctx, stock := context.Background(), 3
	load := func(context.Context) (int, error) { return stock, nil }

	n, _ := cache.Get(ctx, "stock:4711", load)
	fmt.Println(n)
	stock = 2 // first change the source,
	if err := cache.Invalidate(ctx, "stock:4711"); err != nil {
		log.Fatal(err) // then say so
	}
	n, _ = cache.Get(ctx, "stock:4711", load)
	fmt.Println(n)
	// Output:
	// 3
	// 2
}
