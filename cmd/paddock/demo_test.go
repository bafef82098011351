package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

var rowNames = []string{
	"none", "check-then-set", "plain-del", "token-no-renewal", "paddock-wait", "paddock-stale", "paddock-renewed",
}

// checkJSON holds what -json printed to what it promises, and the rows to what they are there for.
func checkJSON(t *testing.T, printed, url string) {
	t.Helper()
	var report struct {
		URL      string `json:"url"`
		Variants []map[string]any
	}
	dec := json.NewDecoder(strings.NewReader(printed))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		t.Fatalf("%v in:\n%s", err, printed)
	}
	if dec.More() {
		t.Errorf("more than one value:\n%s", printed)
	}
	if report.URL != url {
		t.Errorf("url is %q, want %q", report.URL, url)
	}
	if len(report.Variants) != len(rowNames) {
		t.Fatalf("%d variants, want %d", len(report.Variants), len(rowNames))
	}
	for i, v := range report.Variants {
		number := func(name string) float64 {
			n, ok := v[name].(float64)
			if !ok || n < 0 {
				t.Errorf("%s: %s is %v, want a number", rowNames[i], name, v[name])
			}
			return n
		}
		if v["name"] != rowNames[i] || len(v) != 7 {
			t.Errorf("variant %d is %v, want the seven fields of %s", i, v, rowNames[i])
		}
		recomputes, holders, stale := number("recomputes"), number("max_holders"), number("stale")
		if n := number("requests"); n != 50 {
			t.Errorf("%s: %v requests, want 50", rowNames[i], n)
		}
		if p50, most := number("p50_ms"), number("max_ms"); p50 > most || most == 0 {
			t.Errorf("%s: p50 %v, max %v", rowNames[i], p50, most)
		}
		switch protected := strings.HasPrefix(rowNames[i], "paddock-"); {
		case protected && (recomputes != 1 || holders != 1):
			t.Errorf("%s: %v recomputes, %v holders, want one", rowNames[i], recomputes, holders)
		case !protected && (recomputes < 2 || holders < 2):
			t.Errorf("%s: %v recomputes, %v holders, want more than one", rowNames[i], recomputes, holders)
		}
		if rowNames[i] == "paddock-stale" {
			if stale != 50 {
				t.Errorf("paddock-stale: %v stale answers, want all 50", stale)
			}
		} else if stale != 0 {
			t.Errorf("%s: %v stale answers, want none", rowNames[i], stale)
		}
	}
}

// The demos are not made side by side: they are about time.

func TestDemo(t *testing.T) {
	for range 3 {
		var out, errs bytes.Buffer
		begun := time.Now()
		if status := demo([]string{"-json"}, &out, &errs); status != 0 || errs.Len() > 0 {
			t.Fatalf("status %d:\n%s%s", status, &out, &errs)
		}
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
		checkJSON(t, out.String(), "memory:")
	}
}

func TestDemoOnRedis(t *testing.T) {
	url, client := server(t)
	for _, args := range [][]string{
		{"demo", "-json", "-url", url},
		{"demo", "-json", "-url", url, "-processes", "4"},
		{"demo", "-json", "-store", url},
		{"demo", "-json", "-url", "memory:", "-store", url},
		{"demo", "-json", "-url", "memory:?prefix=x"},
	} {
		status, out, errs := call(t, args...)
		if status != 0 || errs != "" {
			t.Fatalf("paddock %v: status %d:\n%s%s", args, status, out, errs)
		}
		if args[3] == url && args[2] == "-url" {
			checkJSON(t, out, url)
		} else {
			checkJSON(t, out, "memory:")
		}
		if left := keys(t, client); len(left) > 0 {
			t.Errorf("paddock %v left %q", args, left)
		}
	}
}

// Every lock service will do, and the store is chosen apart from it.
func TestDemoOnEveryBackend(t *testing.T) {
	store, client := server(t)
	nodes := servers.RedisNodes(t, 3)
	redlock := "redlock://" + nodes[0].Addr + "," + nodes[1].Addr + "," + nodes[2].Addr
	cluster := "redis+cluster://" + strings.Join(servers.RedisCluster(t, 0).Addrs, ",")
	for _, args := range [][]string{
		{"-url", redlock, "-store", store, "-processes", "2"},
		{"-url", cluster},
		{"-url", "etcd://" + strings.Join(servers.SharedEtcd(t), ",")},
		{"-url", "zk://" + strings.Join(servers.SharedZooKeeper(t), ",")},
	} {
		status, out, errs := call(t, append([]string{"demo", "-json"}, args...)...)
		if status != 0 || errs != "" {
			t.Errorf("paddock %v: status %d:\n%s%s", args, status, out, errs)
			continue
		}
		checkJSON(t, out, args[1])
	}
	left := keys(t, client)
	for _, p := range nodes {
		clients, err := connect("redis://" + p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, keys(t, clients[0])...)
		closeAll(clients)
	}
	clients, err := connect(cluster)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(clients)
	var mu sync.Mutex
	if err := each(context.Background(), clients[0], func(ctx context.Context, c *redis.Client) error {
		found := keys(t, c)
		mu.Lock()
		defer mu.Unlock()
		left = append(left, found...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// Others may use the server, and the demo keeps to the prefix that it is given.
func TestDemoBesideOthers(t *testing.T) {
	url, client := server(t)
	ctx := context.Background()
	for _, key := range []string{"mine", "pa*d-mine", "paXd-demo-mine", "paddock-demo-other"} {
		if err := client.Set(ctx, key, 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Do(ctx, "ACL", "SETUSER", "guest", "on", ">pass", `~pa\*d-demo-*`, "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	guest := strings.Replace(url, "redis://", "redis://guest:pass@", 1) + "?prefix=pa*d"
	status, out, errs := call(t, "demo", "-url", guest, "-json")
	if status == 0 {
		checkJSON(t, out, url)
	} else {
		t.Errorf("status %d:\n%s%s", status, out, errs)
	}
	if left := keys(t, client); len(left) != 4 {
		t.Errorf("there were 4 keys of others, now there are %q", left)
	}
}

func TestDemoOnTheTerminal(t *testing.T) {
	status, out, errs := call(t, "demo")
	if status != 0 || errs != "" {
		t.Fatalf("status %d:\n%s%s", status, out, errs)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, name := range rowNames {
		if n := strings.Count(out, "\n"+name); n < 2 {
			t.Errorf("%s is mentioned %d times, want in the table and with its timeline", name, n)
		}
	}
	mustContain(t, "500µs", out)
	mustContain(t, "=====", out)
	if strings.ContainsRune(out, '\x1b') {
		t.Errorf("colour without a terminal:\n%s", out)
	}
}

func TestDemoUnreachable(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"demo", "-url", "redis://127.0.0.1:1"},
		{"demo", "-url", "redis://127.0.0.1:1", "-processes", "4"},
		{"demo", "-store", "redis://127.0.0.1:1"},
	} {
		begun := time.Now()
		status, _, errs := call(t, args...)
		if took := time.Since(begun); status != exitUnavailable || took > 15*time.Second {
			t.Errorf("paddock %v: status %d after %v, want %d", args, status, took, exitUnavailable)
		}
		mustContain(t, "127.0.0.1:1", errs)
	}
}

// A demo that is told to end leaves nothing behind.
func TestDemoInterrupted(t *testing.T) {
	url, client := server(t)
	for _, c := range []struct {
		signal syscall.Signal
		row    string // that it is in then
		args   []string
	}{
		{syscall.SIGINT, "plain-del", nil},
		{syscall.SIGTERM, "paddock-wait", nil},
		{syscall.SIGINT, "paddock-wait", []string{"-processes", "4"}},
		{syscall.SIGHUP, "none", []string{"-processes", "4"}},
	} {
		p := start(t, nil, append([]string{"demo", "-url", url}, c.args...)...)
		eventually(t, c.row+" begins", func() bool { return strings.Contains(strings.Join(keys(t, client), "\n"), c.row) })
		if err := p.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		if status := p.status(t); status != exitSignal+int(c.signal) {
			t.Errorf("%v during %s: status %d:\n%s%s", c.signal, c.row, status, p.out, p.err)
		}
		if left := keys(t, client); len(left) > 0 {
			t.Errorf("%v during %s left %q", c.signal, c.row, left)
		}
	}
}

// The processes of a demo end with it, also when it is killed.
func TestDemoKilled(t *testing.T) {
	url, client := server(t)
	p := start(t, nil, "demo", "-url", url, "-processes", "3")
	eventually(t, "it begins", func() bool { return len(keys(t, client)) > 0 })
	clients := func() string {
		list, err := client.ClientList(context.Background()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if n := strings.Count(clients(), "\n"); n < 4 {
		t.Fatalf("%d connections:\n%s", n, clients())
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all but the test's connections are closed", func() bool { return strings.Count(clients(), "\n") == 1 })
}

func TestRow(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	computes := func(intervals ...int) (cs []compute) {
		for i := 0; i < len(intervals); i += 2 {
			cs = append(cs, compute{From: at(intervals[i]), To: at(intervals[i+1])})
		}
		return cs
	}
	good := make([]answer, requests)
	for i := range good {
		good[i] = answer{Took: time.Duration(i+1) * time.Millisecond, Stale: i < 3}
	}
	safe, broken := variant{name: "safe"}, variant{name: "broken", recipe: none}
	for _, c := range []struct {
		name     string
		v        variant
		answers  []answer
		computes []compute
		holders  int
		ok       bool
	}{
		{"one", safe, good, computes(0, 200), 1, true},
		{"one after the other", safe, good, computes(0, 200, 200, 400), 1, false},
		{"two at once", safe, good, computes(0, 200, 199, 400), 2, false},
		{"none", safe, good, nil, 0, false},
		{"an answer is missing", safe, good[1:], computes(0, 200), 1, false},
		{"one, by luck", broken, good, computes(0, 200), 1, false},
		{"one after the other, by luck", broken, good, computes(0, 200, 200, 400), 1, false},
		{"two at once, as it should", broken, good, computes(0, 200, 100, 300), 2, true},
		{"three, two at once", broken, good, computes(0, 200, 100, 300, 250, 450), 2, true},
	} {
		r := row{variant: c.v, outcome: outcome{Answers: c.answers, Computes: c.computes}}
		if r.maxHolders() != c.holders || r.asItShould() != c.ok {
			t.Errorf("%s: %d holders, %v; want %d, %v", c.name, r.maxHolders(), r.asItShould(), c.holders, c.ok)
		}
	}
	r := row{variant: safe, outcome: outcome{Answers: good}}
	if p50, most := r.latency(); p50 != 25*time.Millisecond || most != 50*time.Millisecond || r.stale() != 3 {
		t.Errorf("p50 %v, max %v, stale %d of 1 to 50 ms, the first three stale", p50, most, r.stale())
	}
}

// A row that fails says so, in words and in the exit status.
func TestVerdict(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out, siteConfig{}, 1)
	rows := []row{{variant: variants[0], lucky: 2}, {variant: variants[6], void: []string{"it stood still"}}}
	s.begin(paddock.Guarantees{MinTTL: 2 * time.Second})
	for _, r := range rows {
		s.row(r)
	}
	s.end(rows)
	for _, says := range []string{"NOT BROKEN", "FAILED", "none did not show", "paddock-renewed did not show", "2 expiries", "it stood still", "TTL of 2s"} {
		mustContain(t, says, out.String())
	}
	s.colour = true
	if got := s.paint(red, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("painted %q", got)
	}
	if f, err := os.Open(os.DevNull); err != nil || isTerminal(&out) {
		t.Errorf("a buffer is no terminal; %v", err)
	} else {
		f.Close()
	}
}

// The bare commands are the same on a server and within the process.
func TestCommands(t *testing.T) {
	t.Parallel()
	addr := servers.SharedRedis(t)
	clients, err := connect("redis://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(clients) })
	for name, c := range map[string]commands{"memory": newMemory(time.Microsecond), "redis": bareRedis{clients[0]}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			key := t.Name() + time.Now().String()
			ok := func(what string, got bool, err error, want bool) {
				t.Helper()
				if err != nil || got != want {
					t.Errorf("%s: %v, %v; want %v", what, got, err, want)
				}
			}
			set := func(value string, ttl time.Duration) {
				t.Helper()
				if err := c.set(ctx, key, value, ttl); err != nil {
					t.Fatal(err)
				}
			}
			_, found, err := c.get(ctx, key)
			ok("GET of nothing", found, err, false)
			taken, err := c.setNX(ctx, key, "a", time.Minute)
			ok("first SET NX", taken, err, true)
			taken, err = c.setNX(ctx, key, "b", time.Minute)
			ok("second SET NX", taken, err, false)
			v, found, err := c.get(ctx, key)
			ok("GET", found && v == "a", err, true)
			found, err = c.exists(ctx, key)
			ok("EXISTS", found, err, true)
			deleted, err := c.compareAndDel(ctx, key, "b")
			ok("compare and DEL of another's", deleted, err, false)
			deleted, err = c.compareAndDel(ctx, key, "a")
			ok("compare and DEL", deleted, err, true)
			deleted, err = c.del(ctx, key)
			ok("DEL of nothing", deleted, err, false)
			set("c", time.Minute)
			deleted, err = c.del(ctx, key)
			ok("DEL", deleted, err, true)
			set("d", 20*time.Millisecond)
			eventually(t, "the key expires", func() bool {
				found, err := c.exists(ctx, key)
				return err == nil && !found
			})
			taken, err = c.setNX(ctx, key, "e", time.Minute)
			ok("SET NX after it expired", taken, err, true)
			deleted, err = c.del(ctx, key)
			ok("last DEL", deleted, err, true)

			over, cancel := context.WithCancel(ctx)
			cancel()
			if _, _, err := c.get(over, key); err == nil {
				t.Error("GET on a context that has ended: no error")
			}
		})
	}
}
