package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/servers"
)

// What the conformance suite cannot ask of any backend: the rest of the package's documentation.

const soon = 15 * time.Second // for what should happen at once, on a slow machine

// bench is a cluster of one node for all tests, with a prefix for one of them.
type bench struct {
	*testing.T
	ctx    context.Context
	admin  *clientv3.Client
	prefix string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return benchOn(t, servers.SharedEtcd(t))
}

func benchOn(t *testing.T, endpoints []string) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &bench{T: t, ctx: ctx, admin: connect(t, endpoints), prefix: "test-" + uuid.NewString()}
}

// open returns a Locker on the node, or on other addresses of it, with a client of its own.
func (b *bench) open(endpoints ...string) *etcdlock.Locker {
	b.Helper()
	return b.openObserved(nil, endpoints...)
}

// openTelling is open, with what tells that a waiter was answered and stands in line. That its key is there does not: an attempt whose
// answer is lost is undone.
func (b *bench) openTelling(endpoints ...string) (l *etcdlock.Locker, stands <-chan struct{}) {
	b.Helper()
	told := make(chan struct{}, 1)
	return b.openObserved(&paddock.Observer{Contended: func(string, time.Duration) {
		select {
		case told <- struct{}{}:
		default:
		}
	}}, endpoints...), told
}

func (b *bench) openObserved(o *paddock.Observer, endpoints ...string) *etcdlock.Locker {
	b.Helper()
	if endpoints == nil {
		endpoints = b.admin.Endpoints()
	}
	l := open(b, connect(b, endpoints), &etcdlock.Options{Prefix: b.prefix, Observer: o})
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Errorf("Close: %v", err)
		}
	})
	return l
}

func (b *bench) acquire(l paddock.Locker, key string, opts *paddock.Options) *paddock.Lease {
	b.Helper()
	lease, err := l.Acquire(b.ctx, key, opts)
	if err != nil {
		b.Fatalf("Acquire: %v", err)
	}
	return lease
}

func (b *bench) release(lease *paddock.Lease) {
	b.Helper()
	if err := lease.Release(b.ctx); err != nil {
		b.Fatalf("Release: %v", err)
	}
}

// acquiring is Acquire on a goroutine of its own.
func (b *bench) acquiring(l paddock.Locker, key string, opts *paddock.Options) <-chan *paddock.Lease {
	got := make(chan *paddock.Lease, 1)
	go func() {
		lease, err := l.Acquire(b.ctx, key, opts)
		if err != nil {
			b.Errorf("Acquire: %v", err)
		}
		got <- lease
	}()
	return got
}

func (b *bench) granted(got <-chan *paddock.Lease, within time.Duration) *paddock.Lease {
	b.Helper()
	select {
	case lease := <-got:
		if lease == nil {
			b.FailNow()
		}
		return lease
	case <-time.After(within):
		b.Fatalf("not granted within %v", within)
		return nil
	}
}

// queue lists the keys of a lock, oldest first.
func (b *bench) queue(key string) []*etcdKey {
	b.Helper()
	resp, err := b.admin.Get(b.ctx, b.prefix+"/v1/lock/"+key+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		b.Fatal(err)
	}
	var keys []*etcdKey
	for _, kv := range resp.Kvs {
		keys = append(keys, &etcdKey{string(kv.Key), kv.CreateRevision, clientv3.LeaseID(kv.Lease)})
	}
	return keys
}

type etcdKey struct {
	name   string
	create int64
	lease  clientv3.LeaseID
}

// queued waits until a lock has n keys, and returns them.
func (b *bench) queued(key string, n int) []*etcdKey {
	b.Helper()
	var keys []*etcdKey
	b.eventually(fmt.Sprintf("%d keys of %q", n, key), func() bool {
		keys = b.queue(key)
		return len(keys) == n
	})
	return keys
}

// under lists the names of what is under the prefix and the further path.
func (b *bench) under(path string) []string {
	b.Helper()
	resp, err := b.admin.Get(b.ctx, b.prefix+path, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, kv := range resp.Kvs {
		names = append(names, string(kv.Key))
	}
	return names
}

func (b *bench) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(soon); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// lost waits for the loss of a lease.
func (b *bench) lost(lease *paddock.Lease, within time.Duration) {
	b.Helper()
	select {
	case <-lease.Context().Done():
		if !errors.Is(lease.Err(), paddock.ErrLost) {
			b.Fatalf("the lease ended with %v; want ErrLost", lease.Err())
		}
	case <-time.After(within):
		b.Fatalf("the lease was not lost within %v", within)
	}
}

func ttl(d time.Duration) *paddock.Options { return &paddock.Options{TTL: d} }

// methods counts requests by their method.
type methods struct {
	mu    sync.Mutex
	count map[string]int
}

func (m *methods) dial() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		m.mu.Lock()
		m.count[method[strings.LastIndexByte(method, '/')+1:]]++
		m.mu.Unlock()
		return invoke(ctx, method, req, reply, conn, opts...)
	})
}

// during returns what was sent while do ran.
func (m *methods) during(do func()) map[string]int {
	m.mu.Lock()
	m.count = map[string]int{}
	m.mu.Unlock()
	do()
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.count)
}

func TestWireCost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var sent methods
	l := open(t, connect(t, b.admin.Endpoints(), sent.dial()), &etcdlock.Options{Prefix: b.prefix})
	held := b.acquire(b.open(), "held", ttl(time.Minute))
	minute := ttl(time.Minute)
	var lease *paddock.Lease
	acquire := func(opts *paddock.Options) func() { return func() { lease = b.acquire(l, "free", opts) } }
	release := func() { b.release(lease) }
	for _, c := range []struct {
		what string
		do   func()
		want map[string]int
	}{
		{"the first acquisition", acquire(minute), map[string]int{"LeaseGrant": 1, "Put": 1, "Txn": 1}},
		{"its release", release, map[string]int{"DeleteRange": 1}},
		{"another acquisition", acquire(minute), map[string]int{"Txn": 1}},
		{"its release", release, map[string]int{"DeleteRange": 1}},
		{"TryAcquire of a free key", func() {
			var err error
			if lease, err = l.TryAcquire(b.ctx, "free", minute); err != nil {
				t.Fatal(err)
			}
		}, map[string]int{"Txn": 1}},
		{"its release", release, map[string]int{"DeleteRange": 1}},
		{"TryAcquire of a held key", func() {
			if _, err := l.TryAcquire(b.ctx, "held", minute); !errors.Is(err, paddock.ErrHeld) {
				t.Fatalf("TryAcquire of a held key: %v", err)
			}
		}, map[string]int{"Txn": 1}},
		{"an acquisition without renewal", acquire(&paddock.Options{TTL: time.Minute, NoRenew: true}),
			map[string]int{"Txn": 2, "LeaseGrant": 1}},
		{"its release", release, map[string]int{"DeleteRange": 1, "LeaseRevoke": 1}},
		{"TryAcquire of a held key, without renewal", func() {
			if _, err := l.TryAcquire(b.ctx, "held", &paddock.Options{TTL: time.Minute, MaxHold: time.Minute}); !errors.Is(err, paddock.ErrHeld) {
				t.Fatalf("TryAcquire of a held key: %v", err)
			}
		}, map[string]int{"Txn": 1}},
		{"Close", func() {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}, map[string]int{"LeaseRevoke": 1}},
	} {
		if got := sent.during(c.do); !maps.Equal(got, c.want) {
			t.Errorf("%s cost %v; want %v", c.what, got, c.want)
		}
	}
	b.release(held)
}

// Many goroutines of a process use one etcd lease: ownership is that of the key, not of the lease.
func TestOneLeaseForManyGoroutines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	const goroutines, rounds = 64, 5
	var running sync.WaitGroup
	inside, last := 0, fencing.Token(0) // nothing but the lock protects them
	for range goroutines {
		running.Go(func() {
			for range rounds {
				lease, err := l.Acquire(b.ctx, "one", ttl(time.Minute))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if inside++; inside != 1 {
					t.Errorf("%d holders at once", inside)
				}
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				inside--
				if err := lease.Release(b.ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	running.Wait()
	if sessions := b.under("/v1/session/"); len(sessions) != 1 {
		t.Errorf("%d goroutines use %d etcd leases; want 1", goroutines, len(sessions))
	}
}

func TestKeysPerLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	var leases []*paddock.Lease
	for i := range 600 {
		leases = append(leases, b.acquire(l, fmt.Sprint(i), ttl(time.Minute)))
	}
	if sessions := b.under("/v1/session/"); len(sessions) != 3 {
		t.Errorf("600 leases use %d etcd leases; want 3", len(sessions))
	}
	on := map[clientv3.LeaseID]int{}
	for i := range leases {
		on[b.queue(fmt.Sprint(i))[0].lease]++
	}
	if most := slices.Max(slices.Collect(maps.Values(on))); most > 256 {
		t.Errorf("%d keys hang on one etcd lease; want 256 at most", most)
	}
	for _, lease := range leases {
		b.release(lease)
	}
}

// Keys that are used once and never again leave nothing, and an open Locker no more than one etcd lease. (A server with too much to
// do may be late with an answer, and be asked again: then there is a marker.)
func TestKeysUsedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := open(t, connect(t, b.admin.Endpoints()), &etcdlock.Options{Prefix: b.prefix})
	const keys, workers = 2_000, 32
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < keys; i += workers {
				lease, err := l.Acquire(b.ctx, fmt.Sprint(i), ttl(time.Minute))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := lease.Release(b.ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	running.Wait()
	if left := b.under("/v1/lock/"); len(left) != 0 {
		t.Errorf("%d keys used once left %d: %.500q", keys, len(left), left)
	}
	if sessions := b.under("/v1/session/"); len(sessions) != 1 {
		t.Errorf("%d keys used once left %d sessions", keys, len(sessions))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	left := slices.DeleteFunc(b.under("/"), func(key string) bool { return strings.HasPrefix(key, b.prefix+"/v1/abort/") })
	if len(left) != 0 {
		t.Errorf("Close left %q", left)
	}
}

// No key's queue is within another's, however they are spelled, and neither are those of another prefix.
func TestKeysNeverMeet(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	keys := []string{"a", "a/", "a/b", "a%2Fb", "a%2fb", "A", "a b", "a+b", "a\x00", "a\n", "/", "//", ".", "..", "ä", "a\u0308", "%", "%25", "é/é"}
	var leases []*paddock.Lease
	for _, key := range keys {
		lease, err := l.TryAcquire(b.ctx, key, ttl(time.Minute))
		if err != nil {
			t.Fatalf("TryAcquire(%q) with other keys held: %v", key, err)
		}
		leases = append(leases, lease)
	}
	for _, prefix := range []string{b.prefix + "/", b.prefix + "/v1", b.prefix + "/v1/lock/a", "/v1/"} {
		other, err := etcdlock.New(b.admin, &etcdlock.Options{Prefix: prefix})
		if err != nil {
			if !errors.Is(err, paddock.ErrInvalid) {
				t.Errorf("New with the prefix %q: %v", prefix, err)
			}
			continue
		}
		defer other.Close()
		lease, err := other.TryAcquire(b.ctx, "a", ttl(time.Minute))
		if err != nil {
			t.Fatalf("TryAcquire under the prefix %q: %v", prefix, err)
		}
		leases = append(leases, lease)
	}
	for _, lease := range leases {
		b.release(lease)
	}
}

func TestNewChecks(t *testing.T) {
	t.Parallel()
	nowhere := connect(t, []string{"127.0.0.1:1"}) // New does not dial
	for _, c := range []struct {
		what   string
		client *clientv3.Client
		opts   *etcdlock.Options
	}{
		{"no client", nil, nil},
		{"a prefix with the version in it", nowhere, &etcdlock.Options{Prefix: "a/v1/b"}},
		{"a prefix that is not UTF-8", nowhere, &etcdlock.Options{Prefix: "\xff"}},
		{"a negative CloseWait", nowhere, &etcdlock.Options{CloseWait: -1}},
	} {
		if _, err := etcdlock.New(c.client, c.opts); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", c.what, err)
		}
	}
	l, err := etcdlock.New(nowhere, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := l.Guarantees()
	if g.Backend != "etcd" || g.Exclusion != paddock.Consensus || g.Fencing != fencing.Durable || !g.Fair || g.Assumes == "" {
		t.Errorf("Guarantees: %+v", g)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease := b.acquire(b.open(), "k", ttl(time.Minute))
	status, err := b.admin.Status(b.ctx, b.admin.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	own := b.queue("k")[0]
	want := fencing.Fence{Domain: fmt.Sprintf("etcd/%x", status.Header.ClusterId), Token: fencing.Token(own.create), Owner: lease.Owner()}
	if lease.Fence() != want {
		t.Errorf("the fence is %v; want %v", lease.Fence(), want)
	}
	b.release(lease)

	l := open(t, b.admin, &etcdlock.Options{Prefix: b.prefix, Domain: "mine"})
	defer l.Close()
	lease = b.acquire(l, "k", nil)
	if lease.Fence().Domain != "mine" {
		t.Errorf("the domain is %q; want that of the Options", lease.Fence().Domain)
	}
	b.release(lease)
}

// Extend to another TTL moves the key to another etcd lease, and leaves its creation, which the token is, alone.
func TestExtendKeepsTheToken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	for _, opts := range []*paddock.Options{ttl(time.Minute), {TTL: time.Minute, NoRenew: true}, {TTL: time.Minute, MaxHold: time.Hour}} {
		lease := b.acquire(l, "k", opts)
		was := b.queue("k")[0]
		for _, d := range []time.Duration{90 * time.Second, 30 * time.Second, 30 * time.Second} {
			if err := lease.Extend(b.ctx, d); err != nil {
				t.Fatalf("Extend to %v with %+v: %v", d, opts, err)
			}
			if left := time.Until(lease.Deadline()); lease.TTL() != d || left > d || left < d/2 {
				t.Errorf("after Extend to %v TTL is %v and Deadline %v away", d, lease.TTL(), left)
			}
			now := b.queue("k")[0]
			if now.create != was.create || now.lease == was.lease {
				t.Errorf("Extend to %v with %+v made %+v of %+v", d, opts, now, was)
			}
			granted, err := b.admin.TimeToLive(b.ctx, now.lease)
			if err != nil || granted.GrantedTTL != int64(d/time.Second) {
				t.Errorf("after Extend to %v the server keeps the key for %d s (%v)", d, granted.GrantedTTL, err)
			}
		}
		b.release(lease)
	}
}

// A client whose interceptor sends every Txn twice, and tells of the second only, is not in conflict with itself.
func TestRepeatedRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	twice := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/Txn") {
			if err := invoke(ctx, method, req, &etcdserverpb.TxnResponse{}, conn, opts...); err != nil {
				return err
			}
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	})
	l := open(t, connect(t, b.admin.Endpoints(), twice), &etcdlock.Options{Prefix: b.prefix})
	defer l.Close()
	other := b.open()
	for _, opts := range []*paddock.Options{ttl(time.Minute), {TTL: time.Minute, NoRenew: true}} {
		for _, acquire := range []func(context.Context, string, *paddock.Options) (*paddock.Lease, error){l.Acquire, l.TryAcquire} {
			lease, err := acquire(b.ctx, "k", opts)
			if err != nil {
				t.Fatal(err)
			}
			if token := b.queue("k")[0].create; int64(lease.Token()) != token {
				t.Errorf("token %d of a key created at revision %d", lease.Token(), token)
			}
			if err := lease.Extend(b.ctx, 2*time.Minute); err != nil {
				t.Errorf("Extend: %v", err)
			}
			if _, err := l.TryAcquire(b.ctx, "k", opts); !errors.Is(err, paddock.ErrHeld) {
				t.Errorf("TryAcquire of a held key: %v", err)
			}
			got := b.acquiring(l, "k", opts)
			b.queued("k", 2)
			b.release(lease)
			b.release(b.granted(got, soon))
			b.release(b.acquire(other, "k", opts))
		}
	}
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	client := connect(t, b.admin.Endpoints())
	l := open(t, client, &etcdlock.Options{Prefix: b.prefix})
	b.release(b.acquire(l, "k", nil))
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, err := l.Acquire(b.ctx, "k", nil); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("Acquire with a closed client: %v; want ErrUnavailable", err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("Acquire with a closed client took %v", took)
	}
	_ = l.Close() // which cannot revoke anything any more
}
