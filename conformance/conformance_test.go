package conformance_test

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
)

const shelfEnv = "PADDOCK_TEST_SHELF"

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		l, _ := dial(os.Getenv(shelfEnv), "", nil, &atomic.Int64{})
		return l
	})
	os.Exit(m.Run())
}

// TestHealthy runs the suite on a Locker that nothing is wrong with, across processes.
func TestHealthy(t *testing.T) {
	s := serve(t, newShelf(""))
	t.Setenv(shelfEnv, s.addr)
	conformance.Run(t, s.backend())
}
