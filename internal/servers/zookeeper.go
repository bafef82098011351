package servers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// As Debian installs them. The first names in its manifest all that it needs;
// the second makes it log.
const (
	zooKeeperJar = "/usr/share/java/zookeeper.jar"
	simpleLogJar = "/usr/share/java/slf4j-simple.jar"
)

// ZooKeeper starts an ensemble of n nodes (1, 3 or 5) with a tick of 200 ms:
// sessions last from 400 ms to a minute, as clients ask. config are lines for
// every node's configuration and take precedence over those here.
func ZooKeeper(tb testing.TB, n int, config ...string) *Quorum {
	tb.Helper()
	needZooKeeper(tb)
	q, err := startQuorum(func() (*Quorum, error) { return buildZooKeeper(n, config) })
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return q.adopt(tb)
}

var sharedZooKeeper shared

// SharedZooKeeper returns the addresses of an ensemble, of one node, for all
// tests of the binary, or those in PADDOCK_TEST_ZOOKEEPER.
func SharedZooKeeper(tb testing.TB) []string {
	tb.Helper()
	if !given(EnvZooKeeper) {
		needZooKeeper(tb)
	}
	return sharedZooKeeper.get(tb, EnvZooKeeper, func() ([]string, error) {
		q, err := startQuorum(func() (*Quorum, error) { return buildZooKeeper(1, nil) })
		if err != nil {
			return nil, err
		}
		return q.Endpoints(), nil
	})
}

func needZooKeeper(tb testing.TB) {
	tb.Helper()
	program(tb, "java", "a Java runtime, such as openjdk-17-jre-headless")
	for jar, pkg := range map[string]string{zooKeeperJar: "zookeeper", simpleLogJar: "libslf4j-java"} {
		if _, err := os.Stat(jar); err != nil {
			missing(tb, fmt.Sprintf("%s not found: install %s", jar, pkg))
		}
	}
}

func buildZooKeeper(n int, config []string) (*Quorum, error) {
	if err := checkSize(n); err != nil {
		return nil, err
	}
	q := &Quorum{serves: zooKeeperServes, leads: zooKeeperLeads}
	var servers [][]string
	if n > 1 {
		q.withMesh(n)
		var err error
		if servers, err = zooKeeperMesh(q.mesh); err != nil {
			return q, err
		}
	}
	for i := range n {
		client := address()
		ip, port := split(client)
		dir, err := newDir("zookeeper")
		if err != nil {
			return q, err
		}
		node := &Process{Name: "zookeeper-" + port, Addr: client, dir: dir}
		q.add(node)
		conf := append([]string{
			"tickTime=200",
			"initLimit=10", // times the tick: for so long a node clings to a leader that is gone
			"syncLimit=5",
			"maxSessionTimeout=60000",
			"dataDir=" + filepath.Join(dir, "data"),
			"clientPort=" + port, "clientPortAddress=" + ip,
			"admin.enableServer=false", // or all want port 8080
			"4lw.commands.whitelist=*",
			"maxClientCnxns=0",
			"forceSync=no", // no test takes the power away
		}, config...)
		if servers != nil {
			conf = append(conf, servers[i]...)
		}
		if err := writeZooKeeper(dir, i, conf); err != nil {
			return q, err
		}
		node.argv = []string{"java", "-Xms16m", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
			"-Dzookeeper.jmx.log4j.disable=true",
			// How long a node that looks for a leader waits before it asks again;
			// it doubles from try to try, up to a minute unless told otherwise.
			"-Dzookeeper.fastleader.maxNotificationInterval=800",
			"-cp", zooKeeperJar + ":" + simpleLogJar,
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg"),
		}
		// A node of several serves only when there is a leader.
		node.ready = func(ctx context.Context) error {
			_, err := fourLetters(ctx, client, "ruok")
			return err
		}
		if n == 1 {
			node.ready = func(ctx context.Context) error { return zooKeeperServes(ctx, node) }
		}
	}
	return q, together(q.Nodes)
}

// zooKeeperMesh puts fronts between all nodes and returns, for each node, the
// configuration's list of servers as it is to see them: itself where it
// listens, the others by its fronts to them.
func zooKeeperMesh(m *mesh) ([][]string, error) {
	type ports struct{ quorum, election string }
	seen := make([][]ports, m.nodes) // by the first, of the second
	for i := range seen {
		for range m.nodes {
			seen[i] = append(seen[i], ports{address(), address()})
		}
	}
	servers := make([][]string, m.nodes)
	for i := range seen {
		for j, to := range seen[i] {
			_, election := split(to.election)
			servers[i] = append(servers[i], fmt.Sprintf("server.%d=%s:%s", j+1, to.quorum, election))
			if i == j {
				continue
			}
			if err := m.front(to.quorum, i, j, seen[j][j].quorum, nil); err != nil {
				return nil, err
			}
			back := seen[j][i].election
			err := m.front(to.election, i, j, seen[j][j].election, func(dst io.Writer, src io.Reader) error {
				return greetFrom(back, dst, src)
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return servers, nil
}

// greetFrom passes on the first message on an election port: version, id and
// the sender's address, where the other may call back. The address is replaced
// by one that leads through the mesh.
func greetFrom(addr string, dst io.Writer, src io.Reader) error {
	head := make([]byte, 8+8+4)
	if _, err := io.ReadFull(src, head); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[16:])
	if _, err := io.CopyN(io.Discard, src, int64(length)); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(head[16:], uint32(len(addr)))
	_, err := dst.Write(append(head, addr...))
	return err
}

func writeZooKeeper(dir string, i int, conf []string) error {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "myid"), fmt.Appendln(nil, i+1), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(strings.Join(conf, "\n")+"\n"), 0o600)
}

func zooKeeperServes(ctx context.Context, node *Process) error {
	_, err := zooKeeperMode(ctx, node)
	return err
}

func zooKeeperLeads(ctx context.Context, node *Process) bool {
	mode, err := zooKeeperMode(ctx, node)
	return err == nil && (mode == "leader" || mode == "standalone")
}

// zooKeeperMode returns standalone, leader or follower; a node that does not
// serve has none.
func zooKeeperMode(ctx context.Context, node *Process) (string, error) {
	status, err := fourLetters(ctx, node.Addr, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(status) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", errors.New(strings.TrimSpace(status))
}

// fourLetters asks a node by one of ZooKeeper's four-letter words.
func fourLetters(ctx context.Context, addr, word string) (answer string, err error) {
	err = overTCP(addr, func(conn net.Conn) error {
		if _, err := io.WriteString(conn, word); err != nil {
			return err
		}
		all, err := io.ReadAll(conn)
		answer = string(all)
		return err
	})(ctx)
	return answer, err
}
