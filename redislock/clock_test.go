package redislock

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// TestClockGoesBack checks that tokens go on rising by the record when the server's clock does not.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	server := servers.FaketimeRedis(t)
	f := at(t, server.Addr, redis.Options{})
	first := take(t, f, "k", patient)
	must(t, first.Release(t.Context()))
	server.Jump(-time.Hour)
	for last, n := first.Token(), 0; n < 3; n++ {
		lease := take(t, f, "k", patient)
		if lease.Token() != last+1 {
			t.Errorf("token %d after %d, with the clock an hour behind; want the next number", lease.Token(), last)
		}
		last = lease.Token()
		must(t, lease.Release(t.Context()))
	}
	server.Jump(2 * time.Hour)
	lease := take(t, f, "k", patient)
	if got, want := time.UnixMicro(int64(lease.Token())), f.probe.Time(t.Context()).Val(); want.Sub(got).Abs() > time.Minute {
		t.Errorf("with the clock ahead again the token stands for %v; want the server's time, %v", got, want)
	}
	must(t, lease.Release(t.Context()))
}

// TestClockSetForward shows what the package doc says: a server whose clock is set forward gives the lock to the next while the
// holder's window is open. The tokens tell the two apart.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	server := servers.FaketimeRedis(t)
	f := at(t, server.Addr, redis.Options{})
	first := take(t, f, "k", patient)
	server.Jump(2 * time.Minute)
	second := take(t, f, "k", patient)
	if first.Err() != nil {
		t.Fatalf("the first holder knows already: %v", first.Err())
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	if err := first.Extend(t.Context(), time.Minute); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("the first holder's next renewal: %v; want ErrLost", err)
	}
	must(t, second.Release(t.Context()))
}
