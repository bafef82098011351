//go:build unix

package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// lockService is a server and a Locker on it, of which others take what they want.
func lockService(t *testing.T) (url string, locker paddock.Locker) {
	t.Helper()
	url = "redis://" + servers.SharedRedis(t) + "?prefix=" + strings.ToLower(t.Name()) + strconv.FormatInt(time.Now().UnixNano(), 36)
	locker, err := paddock.Open(context.Background(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locker.Close() })
	return url, locker
}

// behind is the server of a lockService, and its prefix.
func behind(t *testing.T, rawURL string) (*redis.Client, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: u.Host})
	t.Cleanup(func() { client.Close() })
	return client, u.Query().Get("prefix")
}

// waiters returns when so many processes wait for a lock.
func waiters(t *testing.T, url string, n int64) {
	t.Helper()
	client, prefix := behind(t, url)
	channel := prefix + ":v1:free"
	eventually(t, "others wait for the lock", func() bool {
		return client.PubSubNumSub(context.Background(), channel).Val()[channel] == n
	})
}

// hold takes key for the length of the test.
func hold(t *testing.T, locker paddock.Locker, key string) *paddock.Lease {
	t.Helper()
	lease, err := locker.TryAcquire(context.Background(), key, &paddock.Options{Note: "the test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

func mustBeFree(t *testing.T, locker paddock.Locker, key string) {
	t.Helper()
	if h, err := paddock.Inspect(context.Background(), locker, key); !errors.Is(err, paddock.ErrFree) {
		t.Errorf("%q is held after the end: %+v, %v", key, h, err)
	}
}

// held waits until a program has key.
func held(t *testing.T, locker paddock.Locker, key string) {
	t.Helper()
	eventually(t, key+" is held", func() bool {
		_, err := paddock.Inspect(context.Background(), locker, key)
		return err == nil
	})
}

func TestRunStatus(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	noExec := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(noExec, []byte("neither a script nor a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv   []string
		status int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 7"}, 7},
		{[]string{"sh", "-c", "exit 75"}, 75},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9},
		{[]string{"there is no such program"}, exitNotFound},
		{[]string{noExec}, exitNotRunnable},
	} {
		status, stdout, stderr := call(t, append([]string{"run", "-url", url, "-key", "k", "--"}, c.argv...)...)
		if status != c.status {
			t.Errorf("%q: status %d, want %d\n%s%s", c.argv, status, c.status, stdout, stderr)
		}
		if (stderr != "") != (status == exitNotFound || status == exitNotRunnable) {
			t.Errorf("%q: said %q", c.argv, stderr)
		}
		mustBeFree(t, locker, "k")
	}
}

// The command sees its fence, has the lock, and keeps its input and output.
func TestRunCommand(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	p := start(t, []string{urlEnv + "=" + url}, "run", "--", "sh", "-c", `cat; echo err >&2; echo "$PADDOCK_TOKEN $PADDOCK_OWNER $PADDOCK_DOMAIN"`)
	if status := p.status(t); status != 0 || p.err.String() != "err\n" {
		t.Fatalf("status %d: %s%s", status, p.out, p.err)
	}
	if fields := strings.Fields(p.out.String()); len(fields) != 3 || len(fields[0]) < 16 || len(fields[1]) != 36 || fields[2] == "" {
		t.Errorf("its fence is %q", fields)
	}
	// The key is the command line, and the lock is there while it runs: inspect says so, and names the same owner.
	script := `echo $PADDOCK_OWNER; "$0" inspect -json "$1"`
	key := "sh -c " + script + " " + os.Args[0]
	status, stdout, stderr := call(t, "run", "-url", url, "-key", "k", "--", "sh", "-c", script, os.Args[0], "k")
	if status != exitUsage { // inspect has no URL
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	p = start(t, []string{urlEnv + "=" + url}, "run", "--", "sh", "-c", script, os.Args[0], key)
	if status := p.status(t); status != 1 { // the key has its last argument in it, which is the key
		t.Errorf("status %d: %s%s", status, p.out, p.err)
	}
	p = start(t, []string{urlEnv + "=" + url}, "run", "-key", "k", "--", "sh", "-c", script, os.Args[0], "k")
	if status := p.status(t); status != 0 {
		t.Fatalf("status %d: %s%s", status, p.out, p.err)
	}
	owner, holder, _ := strings.Cut(p.out.String(), "\n")
	mustContain(t, `"owner":"`+owner+`"`, holder)
	mustBeFree(t, locker, "k")

	p = start(t, []string{urlEnv + "=" + url}, "run", "--", "sleep", "60")
	held(t, locker, "sleep 60")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := p.status(t); status != 128+15 {
		t.Errorf("status %d", status)
	}
	mustBeFree(t, locker, "sleep 60")
}

func TestRunHeld(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	lease := hold(t, locker, "k")
	ran := filepath.Join(t.TempDir(), "ran")
	for _, args := range [][]string{{"-try"}, {"-wait", "300ms"}} {
		status, _, stderr := call(t, append(append([]string{"run", "-url", url, "-key", "k"}, args...), "--", "touch", ran)...)
		if status != exitHeld {
			t.Errorf("%v: status %d, want %d: %s", args, status, exitHeld, stderr)
		}
		mustContain(t, "held by another", stderr)
		mustContain(t, "(the test)", stderr)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran without the lock")
	}

	// A wait that is long enough, and one without limit.
	waiting := []*program{
		start(t, nil, "run", "-url", url, "-key", "k", "-wait", "1m", "--", "echo", "done"),
		start(t, nil, "run", "-url", url, "-key", "k", "--", "echo", "done"),
	}
	waiters(t, url, 2)
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, p := range waiting {
		if status := p.status(t); status != 0 || p.out.String() != "done\n" {
			t.Errorf("%v: status %d: %s%s", p.Args[1:], status, p.out, p.err)
		}
	}
}

func TestRunUnavailable(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-try"}, {"-wait", "300ms"}} {
		status, _, stderr := call(t, append(append([]string{"run", "-url", "redis://127.0.0.1:1"}, args...), "--", "true")...)
		if status != exitUnavailable || stderr == "" {
			t.Errorf("%v: status %d, want %d: %s", args, status, exitUnavailable, stderr)
		}
	}
}

// A signal ends the wait, and is passed on to the command afterwards.
func TestRunSignals(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	lease := hold(t, locker, "k")
	p := start(t, nil, "run", "-url", url, "-key", "k", "--", "true")
	waiters(t, url, 1)
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status := p.status(t); status != 128+2 {
		t.Errorf("SIGINT in the wait: status %d: %s", status, p.err)
	}
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1} {
		p := start(t, nil, "run", "-url", url, "-key", "k", "--", "sh", "-c",
			`for s in INT TERM HUP USR1; do trap "echo got $s; exit 9" $s; done; echo ready; while :; do sleep 0.05; done`)
		eventually(t, "the command runs", func() bool { return p.out.String() == "ready\n" })
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if status := p.status(t); status != 9 || !strings.Contains(p.out.String(), "got ") {
			t.Errorf("%v: status %d: %s%s", s, status, p.out, p.err)
		}
		mustBeFree(t, locker, "k")
	}
}

// When the lease is lost, the command and what it started are ended: by SIGTERM, or by force.
func TestRunLost(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	client, _ := behind(t, url)
	for name, c := range map[string]struct{ script, says string }{
		"obedient":  {`trap 'echo ended; exit 0' TERM; echo $$; while :; do sleep 0.05; done`, "ended"},
		"stubborn":  {`trap '' TERM; echo $$; while :; do sleep 0.05; done`, ""},
		"two":       {`(trap '' TERM; sleep 300) & echo $$; wait`, ""},
		"exits 0":   {`trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done`, ""},
		"is halted": {`echo $$; kill -STOP $$; sleep 300`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, "run", "-url", url, "-key", name, "-ttl", "3s", "-grace", "1s", "--", "sh", "-c", c.script)
			eventually(t, "the command runs", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
			group, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
			if err != nil {
				t.Fatal(err)
			}
			held(t, locker, name)
			h, err := paddock.Inspect(context.Background(), locker, name)
			if err != nil {
				t.Fatal(err)
			}
			// Somebody deletes the lock.
			found := 0
			for it := client.Scan(context.Background(), 0, "*{"+name+"}", 1000).Iterator(); it.Next(context.Background()); {
				if v := client.Get(context.Background(), it.Val()).Val(); strings.HasPrefix(v, h.Owner) {
					found += int(client.Del(context.Background(), it.Val()).Val())
				}
			}
			if found != 1 {
				t.Fatalf("deleted %d locks", found)
			}
			if status := p.status(t); status != exitLost {
				t.Errorf("status %d, want %d: %s%s", status, exitLost, p.out, p.err)
			}
			mustContain(t, "lease lost", p.err.String())
			mustContain(t, c.says, p.out.String())
			eventually(t, "nothing of the command is left", func() bool { return syscall.Kill(-group, 0) == syscall.ESRCH })
		})
	}
}

// The command is told when paddock is killed: nobody renews its lock any more.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process of its parent's death")
	}
	url, _ := lockService(t)
	p := start(t, nil, "run", "-url", url, "-key", "k", "-ttl", "500ms", "--", "sh", "-c",
		`trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
	eventually(t, "the command runs", func() bool { return p.out.String() == "ready\n" })
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command has ended", func() bool { return strings.HasSuffix(p.out.String(), "ended\n") })
	if status, _, stderr := call(t, "run", "-url", url, "-key", "k", "-wait", "30s", "--", "true"); status != 0 {
		t.Errorf("status %d of the next: %s", status, stderr)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	status, stdout, _ := call(t, "inspect", "-url", url, "k")
	if status != 1 || stdout != "nobody holds \"k\"\n" {
		t.Errorf("status %d of a free key: %s", status, stdout)
	}
	status, stdout, _ = call(t, "inspect", "-json", "-url", url, "k")
	if status != 1 || stdout != `{"key":"k","held":false}`+"\n" {
		t.Errorf("status %d of a free key: %s", status, stdout)
	}
	lease := hold(t, locker, "k")
	token := strconv.FormatUint(uint64(lease.Token()), 10)
	status, stdout, stderr := call(t, "inspect", "-url", url, "k")
	if status != 0 {
		t.Errorf("status %d of a held key: %s%s", status, stdout, stderr)
	}
	for _, says := range []string{lease.Owner(), token, "the test", "since", "expires"} {
		mustContain(t, says, stdout)
	}
	status, stdout, stderr = call(t, "inspect", "-json", "-url", url, "k")
	if status != 0 {
		t.Errorf("status %d of a held key: %s%s", status, stdout, stderr)
	}
	mustContain(t, `{"key":"k","held":true,"owner":"`+lease.Owner()+`","note":"the test","token":`+token+`,"since":"`, stdout)

	status, _, stderr = call(t, "inspect", "-url", "redis://127.0.0.1:1", "-timeout", "2s", "k")
	if status != exitUnavailable || stderr == "" {
		t.Errorf("status %d without a server: %s", status, stderr)
	}
}
