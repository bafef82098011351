package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Etcd starts a cluster of n nodes (1, 3 or 5), which grants leases of a second
// and more, and elects a new leader about a second after it lost one. args are
// flags for every node.
func Etcd(tb testing.TB, n int, args ...string) *Quorum {
	tb.Helper()
	binary := etcdBinary(tb)
	q, err := startQuorum(func() (*Quorum, error) { return buildEtcd(binary, n, args) })
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return q.adopt(tb)
}

var sharedEtcd shared

// SharedEtcd returns the addresses of a cluster, of one node, for all tests of
// the binary, or those in PADDOCK_TEST_ETCD.
func SharedEtcd(tb testing.TB) []string {
	tb.Helper()
	var binary string
	if !given(EnvEtcd) {
		binary = etcdBinary(tb)
	}
	return sharedEtcd.get(tb, EnvEtcd, func() ([]string, error) {
		q, err := startQuorum(func() (*Quorum, error) { return buildEtcd(binary, 1, nil) })
		if err != nil {
			return nil, err
		}
		return q.Endpoints(), nil
	})
}

// etcdBinary finds the server: ETCD_BIN, what the Makefile builds, or a
// system's own.
func etcdBinary(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv("ETCD_BIN"); path != "" {
		return program(tb, path, "it, or unset ETCD_BIN")
	}
	dir, err := os.Getwd()
	for err == nil {
		built := filepath.Join(dir, ".bin", "etcd")
		if _, err := os.Stat(built); err == nil {
			return program(tb, built, "it again with make servers")
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	return program(tb, "etcd", "it with make servers, or the package etcd-server")
}

func buildEtcd(binary string, n int, args []string) (*Quorum, error) {
	if err := checkSize(n); err != nil {
		return nil, err
	}
	q := &Quorum{serves: etcdServes, leads: etcdLeads}
	if n > 1 {
		q.withMesh(n)
	}
	peers, fronts := make([]string, n), make([]string, n)
	var members []string
	for i := range n {
		peers[i] = address()
		fronts[i] = peers[i]
		if q.mesh != nil {
			fronts[i] = address()
			if err := q.mesh.front(fronts[i], anyNode, i, peers[i], nil); err != nil {
				return q, err
			}
		}
		members = append(members, fmt.Sprintf("n%d=http://%s", i, fronts[i]))
	}
	fsync, err := etcdFsync(binary)
	if err != nil {
		return q, err
	}
	for i := range n {
		client := address()
		argv := []string{binary,
			"--name", fmt.Sprintf("n%d", i),
			"--data-dir", "data",
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
			"--listen-peer-urls", "http://" + peers[i], "--initial-advertise-peer-urls", "http://" + fronts[i],
			"--initial-cluster", strings.Join(members, ","),
			"--initial-cluster-token", members[0], // differs from that of other clusters
			"--heartbeat-interval", "50", "--election-timeout", "500",
			"--logger", "zap", "--log-level", "warn",
		}
		_, port := split(client)
		node := &Process{Name: "etcd-" + port, Addr: client, argv: append(append(argv, fsync...), args...)}
		// A node serves clients only when the cluster has a leader.
		node.ready = func(ctx context.Context) error {
			_, err := httpGet(ctx, "http://"+peers[i]+"/version")
			return err
		}
		if n == 1 {
			node.ready = func(ctx context.Context) error { return etcdServes(ctx, node) }
		}
		q.add(node)
		// One after the other: a new node asks each peer whether the cluster
		// exists already, and waits for a second for one that listens but does
		// not serve yet.
		if err := node.launch(); err != nil {
			return q, err
		}
	}
	return q, nil
}

// etcdFsync returns the flag that makes etcd fast on slow disks, which not all
// versions have. No test takes the power away, and what a killed process has
// written the kernel keeps.
func etcdFsync(binary string) ([]string, error) {
	version, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", binary, err)
	}
	if strings.Contains(string(version), "etcd Version: 3.4.") {
		return nil, nil
	}
	return []string{"--unsafe-no-fsync"}, nil
}

// etcdServes asks over HTTP: a gRPC client waits for a second after a refused
// connection.
func etcdServes(ctx context.Context, node *Process) error {
	body, err := httpGet(ctx, "http://"+node.Addr+"/health")
	if err == nil && !strings.Contains(body, `"health":"true"`) {
		err = fmt.Errorf("health: %s", body)
	}
	return err
}

func etcdLeads(ctx context.Context, node *Process) bool {
	body, err := httpDo(ctx, http.MethodPost, "http://"+node.Addr+"/v3/maintenance/status", strings.NewReader("{}"))
	if err != nil {
		return false
	}
	var status struct {
		Header struct {
			MemberID string `json:"member_id"`
		}
		Leader string
	}
	if json.Unmarshal([]byte(body), &status) != nil {
		return false
	}
	return status.Leader != "" && status.Leader == status.Header.MemberID
}

func httpGet(ctx context.Context, url string) (string, error) {
	return httpDo(ctx, http.MethodGet, url, nil)
}

func httpDo(ctx context.Context, method, url string, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	req.Close = true // leaves no connection for a leak detector to find
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
