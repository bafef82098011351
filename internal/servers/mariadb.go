package servers

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// MariaDB starts a MariaDB server that does not sync. Any user is let in, root for example, and there is the database paddock. args
// are options as on its command line.
func MariaDB(tb testing.TB, args ...string) *Process {
	tb.Helper()
	binary := mariadbBinary(tb)
	p, err := startMariaDB(binary, args...)
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return p.adopt(tb)
}

var sharedMariaDB shared

// SharedMariaDB returns the address of one server for all tests of the binary, or the one in PADDOCK_TEST_MARIADB. Use tables of
// your own.
func SharedMariaDB(tb testing.TB) string {
	tb.Helper()
	var binary string
	if !given(EnvMariaDB) {
		binary = mariadbBinary(tb)
	}
	return sharedMariaDB.processes(tb, EnvMariaDB, 1, func() (*Process, error) { return startMariaDB(binary) })[0]
}

func mariadbBinary(tb testing.TB) string {
	tb.Helper()
	for _, name := range []string{"mariadbd", "/usr/sbin/mariadbd"} { // which is not in everybody's PATH
		if path, err := exec.LookPath(name); err == nil && canStart {
			return path
		}
	}
	return program(tb, "mariadbd", "mariadb-server-core (10.5 or later)")
}

func startMariaDB(binary string, args ...string) (*Process, error) {
	var p *Process
	err := onFreshPorts(func() error {
		dir, err := newDir("mariadb")
		if err != nil {
			return err
		}
		// A database is a directory. Without tables of privileges there is nothing to install.
		if err := os.MkdirAll(filepath.Join(dir, "data", "paddock"), 0o700); err != nil {
			return err
		}
		addr := address()
		ip, port := split(addr)
		argv := append([]string{binary, "--no-defaults", "--datadir=" + filepath.Join(dir, "data"),
			"--bind-address=" + ip, "--port=" + port, "--socket=" + filepath.Join(dir, "socket"), "--pid-file=" + filepath.Join(dir, "pid"),
			"--skip-grant-tables", "--skip-name-resolve", "--skip-log-bin", "--max-connections=200",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=16M",
			"--innodb-log-file-size=8M", "--innodb-stats-persistent=OFF",
		}, args...)
		if os.Geteuid() == 0 {
			argv = append(argv, "--user=root") // it wants to be told
		}
		p = &Process{Name: "mariadbd-" + port, Addr: addr, dir: dir, argv: argv, ready: mariadbAnswers(addr)}
		return p.launch()
	})
	return p, err
}

// mariadbAnswers waits for the server's greeting.
func mariadbAnswers(addr string) func(context.Context) error {
	return overTCP(addr, func(conn net.Conn) error {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		if head[4] != 10 { // version of the protocol; 255 is an error
			return fmt.Errorf("greeted by %d", head[4])
		}
		return nil
	})
}
