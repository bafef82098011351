// Package servers gives tests real servers to work against: redis-server
// (alone, replicated, under Sentinel, as a Cluster), etcd, ZooKeeper,
// PostgreSQL and MariaDB, as child processes on loopback, with the means to
// pause, kill, restart and cut them off, and a TCP proxy that delays, holds or
// loses what passes it.
//
// A server started for a test ends with the test. A shared one (SharedRedis,
// SharedRedlock, SharedEtcd, SharedZooKeeper, SharedPostgres, SharedMariaDB) is
// started at its first use and ends with the test binary, however that ends.
// Addresses in the environment (see the Env constants) take the place of shared
// servers; the others are always processes, since a test that asks for a server
// of its own means to harm it.
//
// Where a program is missing the test is skipped, with a line that names what
// to install; with CI=true in the environment it fails instead.
package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Addresses of servers that run already, as host:port; lists are separated by
// commas. The shared functions return them instead of starting anything, and
// set the variable otherwise, so that a test binary which runs itself as a
// child process finds the same server in both.
const (
	EnvRedis     = "PADDOCK_TEST_REDIS"
	EnvRedlock   = "PADDOCK_TEST_REDLOCK"
	EnvEtcd      = "PADDOCK_TEST_ETCD"
	EnvZooKeeper = "PADDOCK_TEST_ZOOKEEPER"
	EnvPostgres  = "PADDOCK_TEST_POSTGRES" // user postgres, no password, database postgres
	EnvMariaDB   = "PADDOCK_TEST_MARIADB"  // user root, no password, database paddock
)

// missing ends the test: as a failure in CI, where a silent skip would hide
// that nothing was tested, else as a skip.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf("servers: %s", what)
	}
	tb.Skipf("servers: %s", what)
}

// Full skips a test of the full suite: on clusters, with members down, for minutes. PADDOCK_SUITE=full runs it.
func Full(tb testing.TB) {
	tb.Helper()
	if os.Getenv("PADDOCK_SUITE") != "full" {
		tb.Skip("full suite: PADDOCK_SUITE=full runs it")
	}
}

// program finds an executable, or ends the test naming the package to install.
func program(tb testing.TB, name, install string) string {
	tb.Helper()
	if !canStart {
		missing(tb, "processes are started on Linux only; elsewhere use docker compose and the PADDOCK_TEST_ variables")
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(tb, fmt.Sprintf("%s not found: install %s", name, install))
	}
	return path
}

// given tells whether the environment names running servers.
func given(env string) bool { return os.Getenv(env) != "" }

// shared is a server, or several, that all tests of the binary use.
type shared struct {
	once  sync.Once
	addrs []string
	err   error
}

// get returns the addresses in the environment variable env; where there are
// none it calls start, once.
func (s *shared) get(tb testing.TB, env string, start func() ([]string, error)) []string {
	tb.Helper()
	s.once.Do(func() {
		if given(env) {
			for addr := range strings.SplitSeq(os.Getenv(env), ",") {
				s.addrs = append(s.addrs, strings.TrimSpace(addr))
			}
			return
		}
		if s.addrs, s.err = start(); s.err == nil {
			s.err = os.Setenv(env, strings.Join(s.addrs, ","))
		}
	})
	if s.err != nil {
		tb.Fatalf("servers: %v", s.err)
	}
	return append([]string(nil), s.addrs...)
}

// processes is get for n servers of which each is one process.
func (s *shared) processes(tb testing.TB, env string, n int, start func() (*Process, error)) []string {
	tb.Helper()
	return s.get(tb, env, func() ([]string, error) {
		var addrs []string
		for range n {
			p, err := start()
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, p.Addr)
		}
		return addrs, nil
	})
}

var (
	lastPort atomic.Int64

	// host is a loopback address of this binary alone, so that packages whose
	// tests run at the same time cannot take each other's ports.
	host = sync.OnceValue(func() string {
		lastPort.Store(10_000 + rand.Int64N(10_000))
		if !canStart {
			return "127.0.0.1"
		}
		return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
	})
)

// address returns an address of this binary's that nobody listens on. Ports
// are below the range that the kernel gives to outgoing connections, and none
// is handed out twice: a killed server finds its port free at its restart.
func address() string {
	ip := host()
	for {
		port := lastPort.Add(1)
		addr := net.JoinHostPort(ip, strconv.FormatInt(port, 10))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		} else if !errors.Is(err, syscall.EADDRINUSE) || port > 32_000 {
			panic(fmt.Sprintf("servers: no address to listen on: %v", err))
		}
	}
}

// listenAt listens on an address of this binary's. One that was closed a moment
// ago may still be taken: a process that is being started has a copy of every
// socket until it executes its own program.
func listenAt(addr string) (net.Listener, error) {
	for end := time.Now().Add(startLimit); ; time.Sleep(pollEvery) {
		l, err := net.Listen("tcp", addr)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}

// split returns the two halves of an address that this package made.
func split(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(fmt.Sprintf("servers: %v", err))
	}
	return host, port
}

// onFreshPorts calls start again, which takes new addresses, when one was
// taken from under it.
func onFreshPorts(start func() error) error {
	var err error
	for range 3 {
		if err = start(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return err
}

const dirPrefix = "paddock-servers-"

// baseDir holds the data of all servers of this binary. Nothing runs when a
// test binary is killed, nor when the last test with a shared server ends, so
// each binary removes what dead ones left.
var baseDir = sync.OnceValues(func() (string, error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && !alive(n) {
			os.RemoveAll(dir)
		}
	}
	return os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"-")
})

func newDir(name string) (string, error) {
	base, err := baseDir()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(base, name+"-")
}
