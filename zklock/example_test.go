package zklock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/zklock"
)

func ExampleNew() {
	locker, err := zklock.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}, &zklock.Options{
		Prefix:         "billing",
		SessionTimeout: 12 * time.Second, // how long the locks of a process that dies are kept
		Auth:           []zklock.Auth{{Scheme: "digest", Credentials: []byte("billing:secret")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = paddock.Do(context.Background(), locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
		fmt.Println("charging with", lease.Fence())
		return ctx.Err()
	})
	if err != nil {
		log.Print(err)
	}
}
