package memlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/memlock"
)

func Example() {
	locker := memlock.New(nil)
	defer locker.Close()

	err := paddock.Do(context.Background(), locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
		fmt.Println("charging", lease.Key())
		return nil
	})
	fmt.Println(err)
	// Output:
	// charging invoice/4711
	// <nil>
}

// A test takes the lease away, to see what the code under test makes of that.
func ExampleLocker_Expire() {
	locker := memlock.New(nil)
	defer locker.Close()

	err := paddock.Do(context.Background(), locker, "report", nil, func(ctx context.Context, lease *paddock.Lease) error {
		locker.Expire("report")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, paddock.ErrLost))
	// Output: true
}
