package servers

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// throughProxy returns a server, a proxy before it, a client through the
// proxy and one that goes past it.
func throughProxy(t *testing.T) (px *Proxy, through, direct *redis.Client) {
	t.Helper()
	p := Redis(t)
	px = NewProxy(t, p.Addr)
	return px, connect(t, px.Addr), connect(t, p.Addr)
}

// appears waits until key is on the server.
func appears(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	until(t, "on the server: "+key, func() error {
		if client.Exists(t.Context(), key).Val() != 1 {
			return errors.New("no such key")
		}
		return nil
	})
}

func absent(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	if n, err := client.Exists(t.Context(), key).Result(); n != 0 || err != nil {
		t.Fatalf("%s is on the server already (%v)", key, err)
	}
}

func TestProxyPass(t *testing.T) {
	t.Parallel()
	_, through, direct := throughProxy(t)
	big := make([]byte, 3<<20) // more than fits into a buffer on the way
	must(t, through.Set(t.Context(), "big", big, 0).Err())
	if n := direct.StrLen(t.Context(), "big").Val(); n != int64(len(big)) {
		t.Fatalf("%d bytes arrived, want %d", n, len(big))
	}
	if got := len(through.Get(t.Context(), "big").Val()); got != len(big) {
		t.Fatalf("%d bytes came back, want %d", got, len(big))
	}
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	const delay = 300 * time.Millisecond
	must(t, through.Ping(t.Context()).Err())

	px.DelayRequests(delay)
	sent := time.Now()
	done := make(chan error, 1)
	go func() { done <- through.Set(context.Background(), "a", 1, 0).Err() }()
	appears(t, direct, "a")
	if took := time.Since(sent); took < delay {
		t.Fatalf("the request arrived after %v, want %v or more", took, delay)
	}
	must(t, <-done)
	px.DelayRequests(0)

	px.DelayReplies(delay)
	sent = time.Now()
	go func() { done <- through.Set(context.Background(), "b", 1, 0).Err() }()
	appears(t, direct, "b")
	select {
	case <-done:
		if time.Since(sent) < delay {
			t.Fatal("the reply was not delayed")
		}
	default: // executed, and the client does not know
	}
	must(t, <-done)
	if took := time.Since(sent); took < delay {
		t.Fatalf("the reply came after %v, want %v or more", took, delay)
	}
}

// A request that was sent first arrives last.
func TestProxyOvertake(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	must(t, through.Ping(t.Context()).Err())
	px.DelayRequests(600 * time.Millisecond)
	done := make(chan error, 1)
	go func() { done <- through.RPush(context.Background(), "order", "first").Err() }()
	until(t, "sent", func() error {
		if through.PoolStats().IdleConns != 0 {
			return errors.New("the connection is idle")
		}
		return nil
	})
	time.Sleep(100 * time.Millisecond) // the write itself cannot be seen from here
	px.DelayRequests(0)
	must(t, through.RPush(t.Context(), "order", "second").Err())
	must(t, <-done)
	if got := direct.LRange(t.Context(), "order", 0, -1).Val(); len(got) != 2 || got[0] != "second" {
		t.Fatalf("arrived as %q, want the second first", got)
	}
}

// What a client sent before it gave up arrives after Pass, late.
func TestProxyHoldDeliversLate(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	must(t, through.Ping(t.Context()).Err())
	px.Hold()
	if err := through.WithTimeout(150*time.Millisecond).Set(t.Context(), "late", 1, 0).Err(); err == nil {
		t.Fatal("a held request was answered")
	}
	conn, err := net.Dial("tcp", px.Addr) // by hand: go-redis would wait for the answer to its greeting
	must(t, err)
	_, err = conn.Write([]byte("SET late-and-new 1\r\n"))
	must(t, err)
	must(t, conn.Close())
	absent(t, direct, "late")
	absent(t, direct, "late-and-new")
	px.Pass()
	appears(t, direct, "late")
	appears(t, direct, "late-and-new")
	must(t, through.Ping(t.Context()).Err())
}

// A clean-up passes while the request that it cleans up behind is still held.
func TestProxyPassNew(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	must(t, through.Ping(t.Context()).Err())
	px.Hold()
	if err := through.WithTimeout(150*time.Millisecond).Set(t.Context(), "k", "late", 0).Err(); err == nil {
		t.Fatal("a held request was answered")
	}
	px.PassNew()
	must(t, through.Del(t.Context(), "k").Err())
	must(t, through.Set(t.Context(), "cleaned", 1, 0).Err())
	absent(t, direct, "k")
	px.Pass()
	appears(t, direct, "k")
}

func TestProxyLoseReplies(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	must(t, through.Ping(t.Context()).Err())
	px.LoseReplies()
	done := make(chan error, 1)
	go func() { done <- through.Incr(context.Background(), "n").Err() }()
	appears(t, direct, "n") // executed
	until(t, "lost, once it has come as far as the proxy: the reply", func() error {
		if !px.Lost() {
			return errors.New("not yet")
		}
		return nil
	})
	px.Pass()
	if err := <-done; err == nil {
		t.Fatal("a lost reply arrived")
	}
	if n, err := through.Incr(t.Context(), "n").Result(); n != 2 || err != nil {
		t.Fatalf("the next reply is %d, %v: want 2, the lost one must not come back", n, err)
	}
}

func TestProxyCut(t *testing.T) {
	t.Parallel()
	px, through, direct := throughProxy(t)
	must(t, through.Ping(t.Context()).Err())
	px.Hold()
	done := make(chan error, 1)
	go func() { done <- through.Set(context.Background(), "never", 1, 0).Err() }()
	select {
	case err := <-done:
		t.Fatalf("a held request was answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	px.Cut()
	if err := <-done; err == nil {
		t.Fatal("a request on a cut connection succeeded")
	}
	if err := through.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a new connection was accepted after Cut")
	}
	px.Pass()
	must(t, through.Ping(t.Context()).Err())
	absent(t, direct, "never")
}

// The server behind the proxy goes and comes back on its address.
func TestProxyServerRestart(t *testing.T) {
	t.Parallel()
	p := Redis(t)
	px := NewProxy(t, p.Addr)
	through := connect(t, px.Addr)
	must(t, through.Ping(t.Context()).Err())
	p.Kill()
	if err := through.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a killed server answered")
	}
	p.Restart()
	must(t, through.Ping(t.Context()).Err())
}
