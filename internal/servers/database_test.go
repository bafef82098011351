package servers

import (
	"net"
	"testing"
)

// What the databases say is tested where their drivers are, in fencing/servertest.

func TestPostgresKillAndRestart(t *testing.T) {
	t.Parallel()
	restarts(t, Postgres(t))
}

func TestMariaDBKillAndRestart(t *testing.T) {
	t.Parallel()
	restarts(t, MariaDB(t))
}

func restarts(t *testing.T, p *Process) {
	must(t, p.ready(t.Context()))
	p.Kill()
	if conn, err := net.Dial("tcp", p.Addr); err == nil {
		conn.Close()
		t.Fatal("a killed server took a connection")
	}
	p.Restart()
	must(t, p.ready(t.Context()))
	p.Pause()
	p.Resume()
	must(t, p.ready(t.Context()))
}
