package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Postgres starts a PostgreSQL server that does not sync. Its user postgres needs no password and has the database postgres. args are
// as on its command line: "-c", "deadlock_timeout=10ms".
func Postgres(tb testing.TB, args ...string) *Process {
	tb.Helper()
	bin := postgresBin(tb)
	p, err := startPostgres(bin, args...)
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return p.adopt(tb)
}

var sharedPostgres shared

// SharedPostgres returns the address of one server for all tests of the binary, or the one in PADDOCK_TEST_POSTGRES. Use tables of
// your own.
func SharedPostgres(tb testing.TB) string {
	tb.Helper()
	var bin string
	if !given(EnvPostgres) {
		bin = postgresBin(tb)
	}
	return sharedPostgres.processes(tb, EnvPostgres, 1, func() (*Process, error) { return startPostgres(bin) })[0]
}

// postgresBin finds the directory of the server's programs, which Debian keeps out of the way, one for each version.
func postgresBin(tb testing.TB) string {
	tb.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) > 0 && canStart {
		return filepath.Dir(slices.Max(found))
	}
	return filepath.Dir(program(tb, "postgres", "postgresql (12 or later)"))
}

func startPostgres(bin string, args ...string) (*Process, error) {
	dir, err := newDir("postgres")
	if err != nil {
		return nil, err
	}
	asUser, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	initdb := append(asUser, filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"),
		"-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd := exec.Command(initdb[0], initdb[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	var p *Process
	err = onFreshPorts(func() error {
		addr := address()
		ip, port := split(addr)
		argv := append(asUser, filepath.Join(bin, "postgres"), "-D", "data", "-h", ip, "-p", port)
		for _, setting := range []string{
			"unix_socket_directories=", "fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB",
			"max_connections=200", "autovacuum=off",
			"dynamic_shared_memory_type=mmap", // within its directory, which is removed
		} {
			argv = append(argv, "-c", setting)
		}
		p = &Process{Name: "postgres-" + port, Addr: addr, dir: dir, argv: append(argv, args...), ready: postgresAnswers(addr)}
		p.after = func() { postgresGone(filepath.Join(dir, "data")) }
		return p.launch()
	})
	return p, err
}

// postgresGone follows the death of a server. Its children notice and end, until when no other can start on the data; nobody
// removes the shared memory that tells the next server of them.
func postgresGone(data string) {
	at := func(pid string) bool {
		cwd, err := os.Readlink(pid + "/cwd")
		return err == nil && cwd == data
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(pollEvery) {
		if all, _ := filepath.Glob("/proc/[0-9]*"); !slices.ContainsFunc(all, at) {
			break
		}
	}
	pidFile, _ := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if lines := strings.Split(string(pidFile), "\n"); len(lines) > 6 {
		if memory := strings.Fields(lines[6]); len(memory) == 2 { // key and id
			_ = exec.Command("ipcrm", "-m", memory[1]).Run() // or it is gone
		}
	}
}

// unprivileged returns what to put before a command so that it runs as a user that may own a database, and gives dir to that user:
// PostgreSQL refuses root. The server is told to go, rather than killed, when this process ends, so that it takes its children
// and its shared memory along.
func unprivileged(dir string) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	const user = "postgres" // the package has made it
	if out, err := exec.Command("chown", user, dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("chown %s: %w: %s", user, err, out)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // to pass through
		return nil, err
	}
	return []string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--pdeathsig", "SIGQUIT"}, nil
}

// postgresAnswers begins a session: a server that still starts up says so with an error.
func postgresAnswers(addr string) func(context.Context) error {
	return overTCP(addr, func(conn net.Conn) error {
		startup := "\x00\x03\x00\x00" + "user\x00postgres\x00\x00" // protocol 3.0
		if _, err := conn.Write(append([]byte{0, 0, 0, byte(4 + len(startup))}, startup...)); err != nil {
			return err
		}
		var reply [1]byte
		if _, err := io.ReadFull(conn, reply[:]); err != nil {
			return err
		}
		if reply[0] != 'R' { // authentication
			return errors.New("no session yet")
		}
		return nil
	})
}
