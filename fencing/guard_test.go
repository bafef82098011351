package fencing_test

import (
	"context"
	"sync"
	"testing"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/guardtest"
)

func TestMemory(t *testing.T) {
	var guard fencing.Memory
	var mu sync.Mutex
	data := map[string]string{}
	guardtest.Run(t, guardtest.Guard{
		Open: func(testing.TB) guardtest.Migrater { return &guard },
		Write: func(ctx context.Context, _ guardtest.Migrater, resource string, f fencing.Fence, value string) error {
			return guard.Do(ctx, resource, f, func() {
				mu.Lock()
				defer mu.Unlock()
				data[resource] = value
			})
		},
		Read: func(_ context.Context, _ guardtest.Migrater, resource string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return data[resource], nil
		},
	})
}

func TestFenceInContext(t *testing.T) {
	if f, ok := fencing.FromContext(t.Context()); ok {
		t.Errorf("a bare context carries %v", f)
	}
	a, b := fencing.Fence{Domain: "d", Token: 1, Owner: "a"}, fencing.Fence{Domain: "d", Token: 2, Owner: "b"}
	outer := fencing.NewContext(t.Context(), a)
	inner := fencing.NewContext(outer, b)
	if f, _ := fencing.FromContext(inner); f != b {
		t.Errorf("the inner context carries %v", f)
	}
	if f, _ := fencing.FromContext(outer); f != a {
		t.Errorf("the outer context carries %v", f)
	}
}
