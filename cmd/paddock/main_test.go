package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
)

// programEnv has the test binary be the program.
const programEnv = "PADDOCK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" || os.Getenv(workerEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is a run of the program in a process of its own.
type program struct {
	*exec.Cmd
	out, err *output
}

// output may be read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(os.Args[0], args...), out: &output{}, err: &output{}}
	p.Stdout, p.Stderr = p.out, p.err
	p.Env = append(append(os.Environ(), programEnv+"=1", urlEnv+"="), env...)
	p.WaitDelay = 10 * time.Second // grandchildren may have its output
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// status waits for the end of the program, for a minute at most.
func (p *program) status(t *testing.T) int {
	t.Helper()
	kill := time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() })
	defer kill.Stop()
	if err := p.Wait(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%v: %v", p.Args, err)
		}
	}
	return p.ProcessState.ExitCode()
}

// call runs the program and returns its status and output.
func call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	p := start(t, nil, args...)
	status = p.status(t)
	return status, p.out.String(), p.err.String()
}

// eventually repeats probe until it says true.
func eventually(t *testing.T, what string, probe func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !probe(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// server is a Redis server of the test's own.
func server(t *testing.T) (url string, client *redis.Client) {
	t.Helper()
	addr := servers.Redis(t).Addr
	client = redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return "redis://" + addr, client
}

func keys(t *testing.T, client redis.UniversalClient) []string {
	t.Helper()
	keys, err := client.Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		status int
		says   string // on either output
	}{
		{nil, exitUsage, "paddock demo"},
		{[]string{"-h"}, 0, "paddock demo"},
		{[]string{"dance"}, exitUsage, `no command "dance"`},
		{[]string{"demo", "-h"}, 0, "usage: paddock demo"},
		{[]string{"run", "-h"}, 0, "usage: paddock run"},
		{[]string{"inspect", "-h"}, 0, "usage: paddock inspect"},
		{[]string{"run", "-dance", "--", "true"}, exitUsage, "-dance"},
		{[]string{"run", "--", "true"}, exitUsage, urlEnv},
		{[]string{"run", "-url", "redis://localhost"}, exitUsage, "run what?"},
		{[]string{"run", "-url", "redis://localhost", "-try", "-wait", "1s", "--", "true"}, exitUsage, "exclude"},
		{[]string{"run", "-url", "redis://localhost", "-wait", "-1s", "--", "true"}, exitUsage, "negative"},
		{[]string{"run", "-url", "redis://localhost?dance=1", "--", "true"}, exitUsage, "dance"},
		{[]string{"run", "-url", "redis://localhost", "-ttl", "1ms", "--", "true"}, exitUsage, "TTL"},
		{[]string{"run", "-url", "memory:", "--", "true"}, exitUsage, "excludes nobody"},
		{[]string{"inspect", "-url", "redis://localhost"}, exitUsage, "one key"},
		{[]string{"inspect", "-url", "dance://localhost", "k"}, exitUsage, "dance"},
		{[]string{"inspect", "-url", "memory:", "k"}, exitUsage, "excludes nobody"},
		{[]string{"inspect", "k"}, exitUsage, urlEnv},
		{[]string{"demo", "more"}, exitUsage, `"more" is too much`},
		{[]string{"demo", "-processes", "0"}, exitUsage, "1 to 50"},
		{[]string{"demo", "-processes", "4"}, exitUsage, "-url"},
		{[]string{"demo", "-store", "memory:"}, exitUsage, "redis:"},
		{[]string{"demo", "-url", "redis://localhost/x"}, exitUsage, "URL"},
	} {
		status, stdout, stderr := call(t, c.args...)
		if said := stdout + stderr; status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("paddock %v: status %d, want %d, with %q in:\n%s", c.args, status, c.status, c.says, said)
		}
	}
}

// What is secret in a URL must not be seen.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, args := range [][]string{
		{"demo", "-url", "redis://user:" + secret + "@127.0.0.1:1/0"},
		{"demo", "-url", "redis://user:" + secret + "@127.0.0.1:port"},
		{"demo", "-url", "redis://user:" + secret + "@127.0.0.1:1/0?%zz"},
		{"demo", "-json", "-url", "memory:", "-store", "redis://user:" + secret + "@127.0.0.1:port"},
		{"run", "-url", "redis://user:" + secret + "@127.0.0.1:1/0", "-try", "--", "true"},
		{"inspect", "-url", "redis://user:" + secret + "@127.0.0.1:1/0", "k"},
	} {
		status, stdout, stderr := call(t, args...)
		if status != exitUnavailable && status != exitUsage {
			t.Errorf("paddock %v: status %d", args, status)
		}
		if strings.Contains(stdout+stderr, secret) {
			t.Errorf("paddock %v shows the password:\n%s%s", args, stdout, stderr)
		}
	}
	for url, want := range map[string]string{
		"":                        "memory:",
		"redis://u:p@h:1/0?a=p":   "redis://h:1/0",
		"redis://h:1":             "redis://h:1",
		"etcd://u:p@h:1,h:2":      "etcd://h:1,h:2",
		"redis://u:p%40p/@h:1/0":  "redis://h:1/0",
		"memory:?prefix=whatever": "memory:",
	} {
		if got := shown(url); got != want {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
	}
}

func mustContain(t *testing.T, what, in string) {
	t.Helper()
	if !strings.Contains(in, what) {
		t.Errorf("no %q in:\n%s", what, in)
	}
}
