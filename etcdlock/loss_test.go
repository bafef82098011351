package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
)

// What holders and waiters see of what happens to their keys and leases on the server.

func (b *bench) revoke(id clientv3.LeaseID) {
	b.Helper()
	if _, err := b.admin.Revoke(b.ctx, id); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) remove(key string) {
	b.Helper()
	if resp, err := b.admin.Delete(b.ctx, key); err != nil || resp.Deleted != 1 {
		b.Fatal(resp, err)
	}
}

// With a TTL of a minute renewal is 20 s away: it is the watch that tells.
func TestLeaseRevokedUnderHolders(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, other := b.open(), b.open()
	one, two, third := b.acquire(l, "1", ttl(time.Minute)), b.acquire(l, "2", ttl(time.Minute)), b.acquire(l, "3", ttl(2*time.Minute))
	b.revoke(b.queue("1")[0].lease)
	b.lost(one, soon)
	b.lost(two, soon)
	if err := one.Release(b.ctx); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Release of a lost lease: %v", err)
	}
	for _, key := range []string{"1", "2"} {
		b.release(b.acquire(other, key, ttl(time.Minute)))
		b.release(b.acquire(l, key, ttl(time.Minute))) // on a new etcd lease
	}
	if err := third.Err(); err != nil {
		t.Errorf("a lease with a TTL of its own ended with those of another: %v", err)
	}
	b.release(third)
}

// A session key that is deleted ends the lease, and everything on it, also on the server.
func TestSessionKeyDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease := b.acquire(b.open(), "k", ttl(time.Minute))
	b.remove(b.under("/v1/session/")[0])
	b.lost(lease, soon)
	b.queued("k", 0)
}

// A key alone that is deleted is missed at the next renewal.
func TestKeyDeletedUnderHolder(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*paddock.Options{
		"Shared": ttl(6 * time.Second), "MaxHold": {TTL: 6 * time.Second, MaxHold: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			l := b.open()
			lease, beside := b.acquire(l, "k", opts), b.acquire(l, "beside", opts)
			b.remove(b.queue("k")[0].name)
			b.lost(lease, lease.TTL()*2/3) // one renewal, and the time that it takes
			if err := beside.Err(); err != nil {
				t.Errorf("the lease beside it: %v", err)
			}
			b.release(b.acquire(l, "k", nil))
			b.release(beside)
		})
	}
}

// A waiter whose etcd lease ends queues again on a new one, within the same Acquire.
func TestLeaseRevokedUnderWaiter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, other := b.open(), b.open()
	held := b.acquire(l, "k", ttl(time.Minute))
	got := b.acquiring(other, "k", ttl(2*time.Minute))
	was := b.queued("k", 2)[1]
	b.revoke(was.lease)
	var now *etcdKey
	b.eventually("the waiter in the queue again", func() bool {
		keys := b.queue("k")
		now = keys[len(keys)-1]
		return len(keys) == 2 && now.name != was.name
	})
	if now.lease == was.lease {
		t.Error("the new key hangs on the lease that was revoked")
	}
	b.release(held)
	lease := b.granted(got, soon)
	if int64(lease.Token()) != now.create {
		t.Errorf("the token is %d; want the revision %d of the new key", lease.Token(), now.create)
	}
	b.release(lease)
}

// So does one whose key alone is deleted: it must not believe that it is the first when the holder leaves.
func TestKeyDeletedUnderWaiter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, other := b.open(), b.open()
	held := b.acquire(l, "k", ttl(time.Minute))
	got := b.acquiring(other, "k", ttl(time.Minute))
	was := b.queued("k", 2)[1]
	b.remove(was.name)
	b.eventually("the waiter in the queue again", func() bool {
		keys := b.queue("k")
		return len(keys) == 2 && keys[1].name != was.name
	})
	b.release(held)
	b.release(b.granted(got, soon))
}

// A waiter in the middle that leaves is not the release of the lock.
func TestWaiterInTheMiddleLeaves(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	held := b.acquire(l, "k", ttl(time.Minute))
	ctx, leave := context.WithCancel(b.ctx)
	left := make(chan error, 1)
	go func() {
		_, err := b.open().Acquire(ctx, "k", nil)
		left <- err
	}()
	b.queued("k", 2)
	last := b.acquiring(b.open(), "k", ttl(time.Minute))
	b.queued("k", 3)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire after its context has ended: %v", err)
	}
	b.queued("k", 2)
	select {
	case <-last:
		t.Fatal("granted while another holds the key")
	case <-time.After(200 * time.Millisecond):
	}
	b.release(held)
	b.release(b.granted(last, soon))
}

// While a waiter is cut off, the revisions that its watches would go on from are compacted.
func TestCompactionDuringWait(t *testing.T) {
	t.Parallel()
	b := benchOn(t, servers.Etcd(t, 1).Endpoints())
	proxy := servers.NewProxy(t, b.admin.Endpoints()[0])
	held := b.acquire(b.open(), "k", ttl(time.Minute))
	far, stands := b.openTelling(proxy.Addr)
	beside := b.acquire(far, "beside", ttl(time.Minute)) // whose session is watched as well
	got := b.acquiring(far, "k", ttl(time.Minute))
	<-stands
	was := b.queued("k", 2)[1]

	proxy.Cut()
	var rev int64
	for range 10 {
		resp, err := b.admin.Put(b.ctx, b.prefix+"/elsewhere", "")
		if err != nil {
			t.Fatal(err)
		}
		rev = resp.Header.Revision
	}
	if _, err := b.admin.Compact(b.ctx, rev); err != nil {
		t.Fatal(err)
	}
	proxy.Pass()
	time.Sleep(2 * time.Second) // for the client to connect again, and find that its watches are of no use
	if now := b.queued("k", 2)[1]; now.name != was.name {
		t.Errorf("the waiter has lost its place: %s was %s", now.name, was.name)
	}
	b.release(held)
	lease := b.granted(got, soon)
	b.revoke(b.queue("beside")[0].lease)
	b.lost(lease, soon)
	b.lost(beside, soon)
}

// The server ends what it was told to end, whatever becomes of the process: here its link is cut before.
func TestServerEndsMaxHold(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*paddock.Options{
		"Renewed": {TTL: 3 * time.Second, MaxHold: 5 * time.Second},
		"NoRenew": {TTL: 5 * time.Second, NoRenew: true},
		"Shorter": {TTL: time.Minute, MaxHold: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			proxy := servers.NewProxy(t, b.admin.Endpoints()[0])
			l, err := etcdlock.New(connect(t, []string{proxy.Addr}), &etcdlock.Options{Prefix: b.prefix, CloseWait: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			begun := time.Now()
			lease := b.acquire(l, "k", opts)
			got := b.acquiring(b.open(), "k", nil)
			timer := time.NewTimer(4500 * time.Millisecond)
			<-timer.C
			if err := lease.Err(); err != nil {
				t.Fatalf("before its time: %v", err)
			}
			proxy.Cut()
			next := b.granted(got, soon)
			if took := time.Since(begun); took > 5*time.Second+3*time.Second { // TTLs in seconds, counted twice a second
				t.Errorf("the server kept a lease of 5 s for %v", took)
			}
			if lease.Err() == nil {
				t.Error("the next holder entered before the lease was lost")
			}
			b.release(next)
		})
	}
}

// An attempt whose request is overtaken by its clean-up leaves a marker, which refuses the request and which the server drops in time.
func TestMarker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	direct := b.admin.Endpoints()[0]
	proxy := servers.NewProxy(t, direct)
	l := b.open(proxy.Addr, direct) // which the client takes in turns
	for range 4 {
		b.release(b.acquire(l, "warm", ttl(time.Minute)))
	}
	held := b.acquire(b.open(), "held", ttl(time.Minute))
	proxy.Hold()
	b.eventually("a marker", func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, 200*time.Millisecond)
		defer cancel()
		if rand.N(2) == 0 { // so that it is not always the same member's turn
			_, _ = l.TryAcquire(ctx, "held", ttl(time.Minute))
		} else if lease, err := l.Acquire(ctx, "k/k", ttl(time.Minute)); err == nil {
			b.release(lease)
		}
		return len(b.under("/v1/abort/")) > 0
	})
	resp, err := b.admin.Get(b.ctx, b.under("/v1/abort/")[0])
	if err != nil || !slices.Contains([]string{"k/k", "held"}, string(resp.Kvs[0].Value)) {
		t.Fatalf("the marker says %q (%v); want the key", resp.Kvs[0].Value, err)
	}
	left, err := b.admin.TimeToLive(b.ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil || left.TTL < 600 || left.TTL > 1200 {
		t.Errorf("a marker stays for %d s (%v); want 10 to 20 minutes", left.TTL, err)
	}
	proxy.Pass()
	for range 4 {
		b.release(b.acquire(l, "k/k", ttl(time.Minute)))
	}
	b.queued("k%2Fk", 0)
	b.release(held)
}

// A cluster that has lost its data counts revisions anew: tokens would go back.
func TestRevisionGoesBack(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 1)
	b := benchOn(t, q.Endpoints())
	l := open(t, connect(t, q.Endpoints()), &etcdlock.Options{Prefix: b.prefix})
	lease := b.acquire(l, "k", ttl(5*time.Second))
	token := lease.Token()
	for range 50 {
		b.release(b.acquire(l, "other", ttl(5*time.Second)))
	}
	folder, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", q.Nodes[0].Pid()))
	if err != nil {
		t.Fatal(err)
	}
	q.Nodes[0].Kill()
	if err := os.RemoveAll(filepath.Join(folder, "data")); err != nil {
		t.Fatal(err)
	}
	q.Nodes[0].Restart()
	b.lost(lease, soon)

	begun := time.Now()
	_, err = l.Acquire(b.ctx, "k", ttl(time.Minute))
	if !errors.Is(err, paddock.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "--bump-revision") {
		t.Errorf("Acquire from a cluster that went back: %v; want ErrUnavailable that says so", err)
	}
	if took := time.Since(begun); took > soon {
		t.Errorf("it took %v", took)
	}
	if _, err = l.TryAcquire(b.ctx, "k", ttl(time.Minute)); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("TryAcquire from a cluster that went back: %v", err)
	}
	if left := b.under("/v1/lock/"); len(left) != 0 {
		t.Errorf("refused, it left %q", left)
	}
	for range 200 { // until the revisions are where they were
		if _, err := b.admin.Put(b.ctx, "x", ""); err != nil {
			t.Fatal(err)
		}
	}
	lease = b.acquire(l, "k", ttl(time.Minute))
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	b.release(lease)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Keys of others in the way of a lock are an error at once, and are left alone.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.open()
	grant, err := b.admin.Grant(b.ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(dir string) error{
		"no owner": func(dir string) error {
			_, err := b.admin.Put(b.ctx, dir+"x", "", clientv3.WithLease(grant.ID))
			return err
		},
		"no lease": func(dir string) error {
			_, err := b.admin.Put(b.ctx, dir+uuid.NewString(), "")
			return err
		},
	} {
		key := strings.ReplaceAll(name, " ", "-")
		if err := put(b.prefix + "/v1/lock/" + key + "/"); err != nil {
			t.Fatal(err)
		}
		_, acquire := l.Acquire(b.ctx, key, nil)
		_, try := l.TryAcquire(b.ctx, key, nil)
		_, inspect := paddock.Inspect(b.ctx, l, key)
		for what, err := range map[string]error{"Acquire": acquire, "TryAcquire": try, "Inspect": inspect} {
			if !errors.Is(err, paddock.ErrUnavailable) || !strings.Contains(err.Error(), "did not write") {
				t.Errorf("%s behind a key with %s: %v; want ErrUnavailable that says so", what, name, err)
			}
		}
		b.queued(key, 1)
	}
	// Beside the queues they are nobody's business.
	for _, name := range []string{"/v1/lock/free", "/v1/lock/", "/v1/", "/v1/x"} {
		if _, err := b.admin.Put(b.ctx, b.prefix+name, ""); err != nil {
			t.Fatal(err)
		}
	}
	b.release(b.acquire(l, "free", nil))
}

// holding delays the reply to the Txn that is awaited until what is done meanwhile is done.
type holding struct {
	next atomic.Pointer[func()]
}

func (h *holding) dial() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Failure) == 1 { // that moves a key to another lease
			if meanwhile := h.next.Swap(nil); meanwhile != nil {
				(*meanwhile)()
			}
		}
		return err
	})
}

// TestLeaseRevokedDuringAMove ends the shared lease that a key is leaving before the Locker hears that it has left: the key goes with
// the lease, as far as the Locker knows, and nobody may take it for held.
func TestLeaseRevokedDuringAMove(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := &holding{}
	l := open(b, connect(b, b.admin.Endpoints(), h.dial()), &etcdlock.Options{Prefix: b.prefix})
	t.Cleanup(func() { l.Close() })
	// strike has the lease on which witness is, as key is, revoked while a Txn's reply is held up.
	strike := func(witness *paddock.Lease) {
		id := b.queue(witness.Key())[0].lease
		meanwhile := func() {
			if _, err := b.admin.Revoke(b.ctx, id); err != nil {
				b.Error(err)
			}
			select {
			case <-witness.Context().Done():
			case <-time.After(soon):
				b.Error("the witness does not hear of it")
			}
		}
		h.next.Store(&meanwhile)
	}
	witness := b.acquire(l, "witness", ttl(time.Minute))
	strike(witness)
	lease := b.acquire(l, "parted", &paddock.Options{TTL: time.Minute, NoRenew: true})
	if h.next.Load() != nil {
		t.Fatal("no reply was held up")
	}
	if keys := b.queue("parted"); len(keys) != 1 || !strings.HasSuffix(keys[0].name, lease.Owner()) {
		t.Errorf("a lease was granted, and the keys are %+v", keys)
	}
	b.release(lease)

	witness = b.acquire(l, "witness", ttl(time.Minute))
	lease = b.acquire(l, "extended", ttl(time.Minute))
	strike(witness)
	if err := lease.Extend(b.ctx, 2*time.Minute); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Extend = %v; want ErrLost", err)
	}
	b.lost(lease, soon)
}
