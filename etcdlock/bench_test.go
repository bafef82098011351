package etcdlock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
)

func BenchmarkConformance(b *testing.B) {
	endpoints, prefix := servers.SharedEtcd(b), "bench-"+uuid.NewString()
	conformance.Benchmark(b, conformance.Backend{Open: func(tb testing.TB) paddock.Locker {
		return open(tb, connect(tb, endpoints), &etcdlock.Options{Prefix: prefix})
	}})
}

// BenchmarkWarm compares an acquisition and its release with the Txn and the delete that they come down to, in turns, since
// the machine is not the same from one second to the next.
func BenchmarkWarm(b *testing.B) {
	client := connect(b, servers.SharedEtcd(b))
	prefix := "bench-" + uuid.NewString()
	l := open(b, client, &etcdlock.Options{Prefix: prefix})
	defer l.Close()
	ctx := context.Background()
	granted, err := client.Grant(ctx, 600)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Revoke(ctx, granted.ID)

	i := 0
	bare := func() {
		i++
		key := fmt.Sprintf("%s/bare/%d/%s", prefix, i, uuid.NewString())
		resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "a note", clientv3.WithLease(granted.ID))).Commit()
		if err != nil || !resp.Succeeded {
			b.Fatal(resp, err)
		}
		if _, err := client.Delete(ctx, key); err != nil {
			b.Fatal(err)
		}
	}
	ours := func() {
		i++
		lease, err := l.Acquire(ctx, fmt.Sprint("key", i), &paddock.Options{TTL: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
	bare()
	ours()
	took := [2][]time.Duration{}
	for b.Loop() {
		for which, do := range []func(){bare, ours} {
			begun := time.Now()
			do()
			took[which] = append(took[which], time.Since(begun))
		}
	}
	p50 := func(ds []time.Duration) float64 {
		slices.Sort(ds)
		return float64(ds[len(ds)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(p50(took[0]), "bare-p50-us")
	b.ReportMetric(p50(took[1]), "p50-us")
	b.ReportMetric(p50(took[1])/p50(took[0]), "times-bare")
	b.ReportMetric(0, "ns/op")
}
