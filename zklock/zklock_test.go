package zklock

import (
	"bytes"
	"context"
	"errors"

	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// soon is the limit for what should happen at once.
const soon = 20 * time.Second

// locker returns a Locker that is closed with the test. Its session timeout defaults to one that no test waits for.
func locker(tb testing.TB, addrs []string, o Options) *Locker {
	tb.Helper()
	if o.SessionTimeout == 0 {
		o.SessionTimeout, o.TickTime = 20*time.Second, 200*time.Millisecond
	}
	l, err := New(addrs, &o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return l
}

// client returns a bare client, to look over Lockers' shoulders.
func client(tb testing.TB, addrs []string) *zk.Conn {
	tb.Helper()
	conn, _, err := zk.Connect(addrs, 20*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	return conn
}

// limited returns a context that ends when a test has taken far too long.
func limited(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// fresh is an Options.Prefix of a test's own.
func fresh() string { return "test-" + uuid.NewString() }

// below is where the nodes of key are.
func below(o Options, key string) string { return "/" + element(o.Prefix) + "/v1/" + element(key) }

func acquire(tb testing.TB, l paddock.Locker, key string) *paddock.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	lease, err := l.Acquire(ctx, key, nil)
	if err != nil {
		tb.Fatalf("Acquire(%q): %v", key, err)
	}
	return lease
}

func release(tb testing.TB, lease *paddock.Lease) {
	tb.Helper()
	if err := lease.Release(context.Background()); err != nil {
		tb.Fatalf("Release: %v", err)
	}
}

func refused(tb testing.TB, l paddock.Locker, key string) {
	tb.Helper()
	if lease, err := l.TryAcquire(context.Background(), key, nil); !errors.Is(err, paddock.ErrHeld) {
		tb.Fatalf("TryAcquire(%q) = %v, %v; want ErrHeld", key, lease, err)
	}
}

// is checks for an error.
func is(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("the error is %v; want %v", err, want)
	}
}

// eventually polls ok until it is true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(soon); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %v", what, soon)
		}
	}
}

// measured reads one of the figures that a server gives out for monitoring.
func measured(tb testing.TB, addr, name string) int {
	tb.Helper()
	conn, err := net.DialTimeout("tcp", addr, soon)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "mntr"); err != nil {
		tb.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(answer)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), "\t"); key == name {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return int(n)
		}
	}
	tb.Fatalf("%s is not in: %s", name, answer)
	return 0
}

func TestInvalidOptions(t *testing.T) {
	for what, c := range map[string]struct {
		servers []string
		o       Options
	}{
		"no servers":                       {nil, Options{}},
		"an empty server":                  {[]string{"one:2181", ""}, Options{}},
		"two servers in one":               {[]string{"one:2181,two:2181"}, Options{}},
		"a server with a path":             {[]string{"one:2181/chroot"}, Options{}},
		"a session shorter than two ticks": {[]string{"one"}, Options{SessionTimeout: 3 * time.Second}},
		"a session of 25 h":                {[]string{"one"}, Options{SessionTimeout: 25 * time.Hour}},
		"a negative session timeout":       {[]string{"one"}, Options{SessionTimeout: -1}},
		"a negative tick":                  {[]string{"one"}, Options{TickTime: -1}},
		"a negative CloseWait":             {[]string{"one"}, Options{CloseWait: -1}},
		"an Auth without a scheme":         {[]string{"one"}, Options{Auth: []Auth{{Credentials: []byte("a:b")}}}},
		"a relative Chroot":                {[]string{"one"}, Options{Chroot: "apps"}},
		"a Chroot with an empty part":      {[]string{"one"}, Options{Chroot: "/apps//billing"}},
		"a Chroot that ends in a slash":    {[]string{"one"}, Options{Chroot: "/apps/"}},
		"a Chroot that goes up":            {[]string{"one"}, Options{Chroot: "/apps/.."}},
		"a Chroot with a NUL":              {[]string{"one"}, Options{Chroot: "/apps\x00"}},
	} {
		if _, err := New(c.servers, &c.o); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", what, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	l, err := New([]string{"two:2182", "one", "[::1]"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.ensemble.o.Domain, "zookeeper/[::1]:2181,one:2181,two:2182"; got != want {
		t.Errorf("the domain is %q; want %q", got, want)
	}
	if g := l.Guarantees(); g.MinTTL != 10*time.Second || g.TTLStep != 2*time.Second || !g.Fair {
		t.Errorf("the guarantees are %+v", g)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close of a Locker that has not dialled: %v", err)
	}
	_, err = l.Inspect(context.Background(), "key")
	is(t, err, paddock.ErrClosed)
}

func TestOpen(t *testing.T) {
	addrs, prefix := servers.SharedZooKeeper(t), fresh()
	base := "zk://us%40er:pass%2Fword@" + strings.Join(addrs, ",") + "/chroot/of-tests?session_timeout=4s&tick_time=200ms&prefix=" + prefix
	l, err := paddock.Open(limited(t), base+"&domain=d&close_wait=2s", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lease := acquire(t, l, "key")
	if lease.Fence().Domain != "d" || lease.TTL() != 4*time.Second {
		t.Errorf("a lease with the fence %v and a TTL of %v", lease.Fence(), lease.TTL())
	}
	children, _, err := client(t, addrs).Children("/chroot/of-tests/" + prefix + "/v1/key")
	is(t, err, zk.ErrNoAuth) // the nodes are the user's alone
	if len(children) > 0 {
		t.Errorf("children: %q", children)
	}
	release(t, lease)

	for _, url := range []string{
		"zk:", "zk://", "zk:///chroot", "zk://user@one", "zk://:s3cret@one", "zk://us%3Aer:s3cret@one",
		"zk://one?session_timeout=1", "zk://one?session_timeout=1s", "zk://one?tick=1s", "zk://one?prefix=a&prefix=b", "zk://one//a",
	} {
		if _, err := paddock.Open(limited(t), url, nil); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("Open(%q): %v; want ErrInvalid", url, err)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Open(%q) shows the password: %v", url, err)
		}
	}
}

func TestNegotiation(t *testing.T) {
	t.Parallel()
	q := servers.ZooKeeper(t, 1, "minSessionTimeout=3000", "maxSessionTimeout=5000")

	// More than asked for would keep locks of the dead for longer than the Guarantees say.
	short := locker(t, q.Endpoints(), Options{SessionTimeout: 2 * time.Second, TickTime: 200 * time.Millisecond})
	for _, acquire := range []func(context.Context, string, *paddock.Options) (*paddock.Lease, error){short.Acquire, short.TryAcquire} {
		begun := time.Now()
		_, err := acquire(limited(t), "key", nil)
		is(t, err, paddock.ErrUnavailable)
		is(t, err, paddock.ErrInvalid)
		if !strings.Contains(err.Error(), "2s") || !strings.Contains(err.Error(), "3s") {
			t.Errorf("the error does not name both timeouts: %v", err)
		}
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("it took %v to say so", took)
		}
	}
	_, err := short.Inspect(limited(t), "key")
	is(t, err, paddock.ErrInvalid)

	// Less is what leases get.
	long := locker(t, q.Endpoints(), Options{SessionTimeout: 10 * time.Second, TickTime: 200 * time.Millisecond})
	lease := acquire(t, long, "key")
	if lease.TTL() != 5*time.Second || time.Until(lease.Deadline()) > 5*time.Second {
		t.Errorf("the TTL is %v and Deadline %v away, in a session of 5 s", lease.TTL(), time.Until(lease.Deadline()))
	}
	release(t, lease)

	// Less than two ticks says that the ticks are wrong.
	ticking := locker(t, q.Endpoints(), Options{SessionTimeout: 10 * time.Second, TickTime: 4 * time.Second})
	_, err = ticking.Acquire(limited(t), "key", nil)
	is(t, err, paddock.ErrUnavailable)
	is(t, err, paddock.ErrInvalid)
}

func TestAuthentication(t *testing.T) {
	addrs, prefix := servers.SharedZooKeeper(t), fresh()
	user := func(name string) Options {
		return Options{Prefix: prefix, Auth: []Auth{{"digest", []byte(name + ":secret")}}}
	}
	alice, again, bob := locker(t, addrs, user("alice")), locker(t, addrs, user("alice")), locker(t, addrs, user("bob"))
	lease := acquire(t, alice, "key")
	refused(t, again, "key")
	for _, acquire := range []func(context.Context, string, *paddock.Options) (*paddock.Lease, error){bob.Acquire, bob.TryAcquire} {
		begun := time.Now()
		_, err := acquire(limited(t), "key", nil)
		is(t, err, paddock.ErrUnavailable)
		is(t, err, zk.ErrNoAuth)
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("it took %v to say so", took)
		}
	}
	release(t, lease)
	release(t, acquire(t, again, "key"))

	stranger := user("carol")
	stranger.Auth[0].Scheme = "no-such-scheme"
	_, err := locker(t, addrs, stranger).Acquire(limited(t), "key", nil)
	is(t, err, paddock.ErrUnavailable)
	is(t, err, zk.ErrAuthFailed)
}

// TestAuthenticationAfterReconnecting has the client introduce itself again.
func TestAuthenticationAfterReconnecting(t *testing.T) {
	addrs := servers.SharedZooKeeper(t)
	p := servers.NewProxy(t, addrs[0])
	l := locker(t, []string{p.Addr}, Options{Prefix: fresh(), Auth: []Auth{{"digest", []byte("alice:secret")}}})
	lease := acquire(t, l, "key")
	p.Cut()
	p.Pass()
	release(t, lease)
	release(t, acquire(t, l, "key"))
}

func TestInspect(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	l, other := locker(t, addrs, o), locker(t, addrs, o)
	ctx := limited(t)
	_, err := paddock.Inspect(ctx, other, "key")
	is(t, err, paddock.ErrFree)
	note := strings.Repeat("é", 128)
	begun := time.Now()
	lease, err := l.Acquire(ctx, "key", &paddock.Options{Note: note})
	if err != nil {
		t.Fatal(err)
	}
	h, err := paddock.Inspect(ctx, other, "key")
	if err != nil {
		t.Fatal(err)
	}
	if h.Owner != lease.Owner() || h.Token != lease.Token() || h.Note != note || h.ExpiresIn != 0 {
		t.Errorf("Inspect says %+v of %v", h, lease.Fence())
	}
	if d := h.Since.Sub(begun); d < -time.Minute || d > time.Minute {
		t.Errorf("Inspect says that the lease is held since %v; it is %v", h.Since, begun)
	}
	release(t, lease)
	_, err = paddock.Inspect(ctx, l, "key")
	is(t, err, paddock.ErrFree)
	_, err = paddock.Inspect(ctx, l, "")
	is(t, err, paddock.ErrInvalid)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = paddock.Inspect(ended, l, "key")
	is(t, err, context.Canceled)
}

// TestNothingIsLeft counts connections and nodes of a server of its own.
func TestNothingIsLeft(t *testing.T) {
	q := tidying(t, 1)
	addr := q.Nodes[0].Addr
	nodes, conns := measured(t, addr, "zk_znode_count"), measured(t, addr, "zk_num_alive_connections")
	l, other := locker(t, q.Endpoints(), Options{}), locker(t, q.Endpoints(), Options{})
	inside := acquire(t, l, "inside")
	release(t, acquire(t, l, "key"))
	refused(t, other, "inside")
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "one connection, while a closed Locker has a holder inside and another was closed", func() bool {
		return measured(t, addr, "zk_num_alive_connections") == conns+1
	})
	is(t, inside.Err(), paddock.ErrClosed)
	release(t, inside)
	eventually(t, "the end of the connection after the last holder's Release", func() bool {
		return measured(t, addr, "zk_num_alive_connections") == conns
	})
	eventually(t, "the removal of the containers", func() bool { return measured(t, addr, "zk_znode_count") == nodes })
}

func TestElement(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{
		"a", "A", ".", "..", "...", ".a", "a.", "a.b", "/", "a/b", "a%2Fb", "%", "%25", "%2e", "%2E", "\x00", "\u0080", "é", "e\u0301", "\uf000",
		"\ufffd", "\U0010ffff", " ", "+", "-", "_", ":", "@", "zookeeper", strings.Repeat("/", 1024),
	} {
		e := element(s)
		if other, ok := seen[e]; ok {
			t.Errorf("%q and %q are both %q", s, other, e)
		}
		seen[e] = s
		if e == "" || e == "." || e == ".." || bytes.ContainsFunc([]byte(e), func(r rune) bool { return r == '/' || r <= ' ' || r >= 0x7f }) {
			t.Errorf("%q becomes %q", s, e)
		}
		if len(e) > 3*len(s) {
			t.Errorf("%d bytes become %d", len(s), len(e))
		}
	}
}
