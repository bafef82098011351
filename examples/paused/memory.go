package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/memlock"
)

// memory is an account in this process.
type memory struct {
	fencing.Memory
	balance atomic.Int64
}

func (m *memory) Read(context.Context) (int, error) { return int(m.balance.Load()), nil }

func (m *memory) Write(_ context.Context, balance int) error {
	m.balance.Store(int64(balance))
	return nil
}

func (m *memory) WriteFenced(ctx context.Context, f fencing.Fence, balance int) error {
	return m.Do(ctx, resource, f, func() { m.balance.Store(int64(balance)) })
}

// inMemory is the story in one process, where A is a goroutine.
func inMemory() *world {
	account := &memory{}
	locker := memlock.New(nil)
	return &world{
		account: account,
		locker:  locker,
		paused:  "pauses, as in a long garbage collection",
		first: func(guarded bool) (*a, error) {
			says, goOn := make(chan string, 8), make(chan struct{})
			var err error
			go func() {
				defer close(says)
				tell := func(format string, args ...any) { says <- fmt.Sprintf(format, args...) }
				err = deposit(context.Background(), locker, account, guarded, tell, func() { <-goOn })
			}()
			return &a{
				says: says,
				stop: func() error { return nil }, // it stands still by itself
				wake: func() error { close(goOn); return nil },
				err:  func() error { return err },
			}, nil
		},
	}
}
