package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/guardtest"
	"github.com/paddock-go/paddock/internal/servers"
)

func TestGuard(t *testing.T) { suite(t, servers.SharedEtcd(t)) }

// TestGuardCluster is the suite on three members.
func TestGuardCluster(t *testing.T) {
	t.Parallel()
	suite(t, servers.Etcd(t, 3).Endpoints())
}

// suite is guardtest's, with a prefix of its own. The data of a resource is a key below another prefix.
func suite(t *testing.T, endpoints []string) {
	prefix := newPrefix()
	data := func(resource string) string { return prefix + "/data/" + resource }
	guardtest.Run(t, guardtest.Guard{
		Open: func(tb testing.TB) guardtest.Migrater { return open(tb, connect(tb, endpoints), prefix) },
		Write: func(ctx context.Context, m guardtest.Migrater, resource string, f fencing.Fence, value string) error {
			return m.(*Guard).Do(ctx, resource, f, clientv3.OpPut(data(resource), value))
		},
		Read: func(ctx context.Context, m guardtest.Migrater, resource string) (string, error) {
			resp, err := m.(*Guard).client.Get(ctx, data(resource))
			if err != nil || len(resp.Kvs) == 0 {
				return "", err
			}
			return string(resp.Kvs[0].Value), nil
		},
	})
}

func connect(tb testing.TB, endpoints []string) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	must(tb, err)
	tb.Cleanup(func() { client.Close() })
	return client
}

func open(tb testing.TB, client *clientv3.Client, prefix string) *Guard {
	tb.Helper()
	g, err := New(client, &Options{Prefix: prefix})
	must(tb, err)
	return g
}

func newPrefix() string { return fmt.Sprintf("test-%d", rand.Uint64()) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func fence(token fencing.Token, owner string) fencing.Fence {
	return fencing.Fence{Domain: "etcd/guard", Token: token, Owner: owner}
}

// TestOps is a transaction of the caller's, with conditions of its own.
func TestOps(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedEtcd(t))
	prefix := newPrefix()
	g := open(t, client, prefix)
	ctx, key := t.Context(), prefix+"/data"
	// once creates key; why is what Check says if it could not.
	once := func(f fencing.Fence) (done bool, why error) {
		t.Helper()
		cmps, ops := g.Ops("r", f)
		resp, err := client.Txn(ctx).
			If(append(cmps, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))...).
			Then(append(ops, clientv3.OpPut(key, f.Owner))...).Commit()
		must(t, err)
		if resp.Succeeded {
			return true, nil
		}
		return false, g.Check(ctx, "r", f)
	}
	if done, err := once(fence(5, "a")); !done {
		t.Fatalf("the first: %v", err)
	}
	if done, err := once(fence(6, "b")); done || err != nil {
		t.Errorf("the caller's own condition was not met: %t, and Check says %v; want nil", done, err)
	}
	must(t, g.Check(ctx, "r", fence(5, "a"))) // so the mark has not moved
	must(t, g.Advance(ctx, "r", fence(6, "b")))
	_, err := client.Delete(ctx, key)
	must(t, err)
	for f, want := range map[fencing.Fence]error{
		fence(5, "a"): fencing.ErrStale,
		fence(6, "c"): fencing.ErrStale,
		fence(0, "a"): fencing.ErrInvalid,
		{Domain: "another", Token: 9, Owner: "a"}:  fencing.ErrDomain,
		{Domain: "etcd", Token: 9, Owner: "a"}:     fencing.ErrDomain,
		{Domain: "etcd/guar", Token: 9, Owner: ""}: fencing.ErrInvalid,
	} {
		if done, err := once(f); done || !errors.Is(err, want) {
			t.Errorf("a transaction with %v: %t, and Check says %v; want %v", f, done, err, want)
		}
	}
	must(t, g.Check(ctx, "r", fence(7, "d"))) // Check moves nothing
	if done, err := once(fence(6, "b")); !done {
		t.Errorf("the holder's: %v", err)
	}
}

// TestOneMark: whatever was shown, a resource has one key.
func TestOneMark(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedEtcd(t))
	g := open(t, client, newPrefix())
	ctx := t.Context()
	for i := range fencing.Token(10) {
		must(t, g.Advance(ctx, "r", fence(i+1, fmt.Sprint("o", i))))
	}
	must(t, g.Migrate(ctx, "r", "etcd/guard", "zookeeper/h"))
	must(t, g.Advance(ctx, "r", fencing.Fence{Domain: "zookeeper/h", Token: 7, Owner: "a/b"}))
	resp, err := client.Get(ctx, g.prefix, clientv3.WithPrefix())
	must(t, err)
	if len(resp.Kvs) != 1 || string(resp.Kvs[0].Key) != g.prefix+"r/zookeeper%2Fh/0000000000000000007/a%2Fb" || resp.Kvs[0].Lease != 0 {
		t.Errorf("the marks are %v", resp.Kvs)
	}
}

// TestForeignMarks: keys that are no mark are an error, and let nothing pass.
func TestForeignMarks(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedEtcd(t))
	g := open(t, client, newPrefix())
	ctx := t.Context()
	for i, names := range [][]string{
		{"x"}, {"a/b/c"}, {"etcd%2Fguard/x/o"}, {"etcd%2Fguard/9999999999999999999/o"}, {"%zz/0000000000000000009/o"},
		{"etcd%2Fguard/1/o"}, {"etcd%2fguard/0000000000000000001/o"}, {"/0000000000000000001/o"},
		{"a/0000000000000000001/o", "b/0000000000000000001/o"},
	} {
		resource := fmt.Sprint("r", i)
		for _, name := range names {
			_, err := client.Put(ctx, g.prefix+resource+"/"+name, "")
			must(t, err)
		}
		err := g.Advance(ctx, resource, fence(5, "a"))
		if err == nil || errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrDomain) {
			t.Errorf("Advance where there are %q: %v; want an error that says what is there", names, err)
		}
		if err := g.Migrate(ctx, resource, "a", "b"); err == nil || errors.Is(err, fencing.ErrDomain) {
			t.Errorf("Migrate where there are %q: %v", names, err)
		}
	}
}

// TestDoKeepsServerErrors: what the server says of the caller's operations is passed on, and nothing has moved.
func TestDoKeepsServerErrors(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedEtcd(t))
	prefix := newPrefix()
	g := open(t, client, prefix)
	ctx := t.Context()
	err := g.Do(ctx, "r", fence(5, "a"), clientv3.OpPut(prefix+"/k", "1"), clientv3.OpPut(prefix+"/k", "2"))
	if err == nil || !strings.Contains(err.Error(), "duplicate key") {
		t.Errorf("two writes of one key: %v", err)
	}
	must(t, g.Advance(ctx, "r", fence(1, "b")))
}

func TestNew(t *testing.T) {
	client := connect(t, []string{"127.0.0.1:1"})
	for name, err := range map[string]error{
		"no client":        second(New(nil, nil)),
		"a long prefix":    second(New(client, &Options{Prefix: strings.Repeat("p", 129)})),
		"a prefix of \xff": second(New(client, &Options{Prefix: "\xff"})),
	} {
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", name, err)
		}
	}
	if g, err := New(client, nil); err != nil || g.prefix != "paddock/v1/mark/" {
		t.Errorf("New without options: %+v, %v", g, err)
	}
}

func second(_ *Guard, err error) error { return err }
