package memlock

import (
	"context"
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
)

func TestConformance(t *testing.T) {
	first := New(nil)
	conformance.Run(t, conformance.Backend{
		Open: func(testing.TB) paddock.Locker { return New(&Options{Shared: first}) },
		Left: func(context.Context) ([]string, error) { return first.memory.table.left(), nil },
	})
}

// left lists the locks and who waits for them.
func (t *table) left() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var left []string
	for name, k := range t.locks {
		left = append(left, name)
		for _, w := range k.queue {
			left = append(left, name+" waiter "+w.a.Owner)
		}
	}
	return left
}
