package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// go-redis logs each refused dial, which is what tests with these servers
// provoke all the time.
func init() { logging.Disable() }

// Redis starts a redis-server without persistence. args are configuration
// directives as on its command line: "--maxmemory", "3mb".
func Redis(tb testing.TB, args ...string) *Process {
	tb.Helper()
	needRedis(tb)
	p, err := startRedis(nil, args...)
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return p.adopt(tb)
}

// RedisNodes starts n servers that know nothing of each other, as Redlock
// wants them.
func RedisNodes(tb testing.TB, n int, args ...string) []*Process {
	tb.Helper()
	nodes := make([]*Process, n)
	for i := range nodes {
		nodes[i] = Redis(tb, args...)
	}
	return nodes
}

// RedisReplica starts a replica of the server at address primary, which may be
// a proxy's, and returns when it has the primary's data and follows it.
func RedisReplica(tb testing.TB, primary string, args ...string) *Process {
	tb.Helper()
	ip, port := split(primary)
	p := Redis(tb, append([]string{"--replicaof", ip + " " + port}, args...)...)
	client := p.redis()
	defer client.Close()
	above := redis.NewClient(&redis.Options{Addr: primary, DialerRetries: 1})
	defer above.Close()
	_, port = split(p.Addr)
	err := p.await("in step with its primary", func(ctx context.Context) error {
		if err := infoHas(ctx, client, "master_link_status:up"); err != nil {
			return err
		}
		return infoHas(ctx, above, "port="+port+",state=online") // before that WAIT does not count it
	})
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	return p
}

// Promote makes a primary of a replica.
func Promote(tb testing.TB, replica *Process) {
	tb.Helper()
	client := replica.redis()
	defer client.Close()
	if err := client.ReplicaOf(context.Background(), "NO", "ONE").Err(); err != nil {
		tb.Fatalf("servers: promote %s: %v", replica.Name, err)
	}
}

var sharedRedis, sharedRedlock shared

// SharedRedis returns the address of one server for all tests of the binary,
// or the one in PADDOCK_TEST_REDIS. Use keys of your own, and leave its
// settings and everybody else's data alone.
func SharedRedis(tb testing.TB) string {
	tb.Helper()
	return sharedRedises(tb, &sharedRedis, EnvRedis, 1)[0]
}

// SharedRedlock returns the addresses of five independent servers for all
// tests of the binary, or those in PADDOCK_TEST_REDLOCK.
func SharedRedlock(tb testing.TB) []string {
	tb.Helper()
	return sharedRedises(tb, &sharedRedlock, EnvRedlock, 5)
}

func sharedRedises(tb testing.TB, s *shared, env string, n int) []string {
	tb.Helper()
	if !given(env) {
		needRedis(tb)
	}
	return s.processes(tb, env, n, func() (*Process, error) { return startRedis(nil) })
}

func needRedis(tb testing.TB) {
	tb.Helper()
	program(tb, "redis-server", "redis-server (7.0 or later)")
}

func startRedis(env []string, args ...string) (*Process, error) {
	var p *Process
	err := onFreshPorts(func() error {
		p = redisAt(address(), args...)
		p.env = env
		return p.launch()
	})
	return p, err
}

// redisAt describes a redis-server at addr. What it dials it dials from the
// same address, and it announces that one: others would take the source
// address of its connections for where it listens.
func redisAt(addr string, args ...string) *Process {
	ip, port := split(addr)
	argv := append([]string{"redis-server",
		"--port", port, "--bind", ip, "--bind-source-addr", ip, "--replica-announce-ip", ip,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
		"--protected-mode", "no", // which takes for local what comes from 127.0.0.1 alone
		"--enable-debug-command", "yes",
		"--repl-diskless-sync-delay", "0", // else a first sync waits 5 s for other replicas
	}, args...)
	return &Process{Name: "redis-server-" + port, Addr: addr, argv: argv, ready: redisAnswers(addr)}
}

// redisAnswers sends a PING by hand: a server that asks for a password or a
// user is as ready as one that does not.
func redisAnswers(addr string) func(context.Context) error {
	return overTCP(addr, func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
			return err
		}
		reply, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.HasPrefix(reply, "+PONG") && !strings.HasPrefix(reply, "-NOAUTH") {
			return errors.New(strings.TrimSpace(reply))
		}
		return nil
	})
}

// redis returns a client that says at once what it thinks of the server; its
// defaults spend over a second on one that refuses.
func (p *Process) redis() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: p.Addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second, DisableIdentity: true,
	})
}

func infoHas(ctx context.Context, client *redis.Client, want string) error {
	info, err := client.Info(ctx, "replication").Result()
	if err == nil && !strings.Contains(info, want) {
		err = fmt.Errorf("no %s in: %s", want, info)
	}
	return err
}
