package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/servers"
)

const (
	envServers = "PADDOCK_ZKLOCK_SERVERS" // that a child process is to use
	envPrefix  = "PADDOCK_ZKLOCK_PREFIX"  // and the prefix
)

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		l, err := New(strings.Split(os.Getenv(envServers), ","), options(os.Getenv(envPrefix)))
		if err != nil {
			panic(err)
		}
		return l
	})
	os.Exit(m.Run())
}

// options are those of the tests, whose servers have a tick of 200 ms.
func options(prefix string) *Options {
	return &Options{Prefix: prefix, SessionTimeout: 2 * time.Second, TickTime: 200 * time.Millisecond}
}

func TestConformance(t *testing.T) {
	for name, down := range map[string]func(testing.TB, *servers.Quorum){
		"Single":   nil,
		"Ensemble": func(testing.TB, *servers.Quorum) {},
		"LeaderKilled": func(tb testing.TB, q *servers.Quorum) {
			q.Nodes[q.Leader(tb)].Kill() // and not replaced: a minority is down
			q.Leader(tb)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Ensemble" { // one that has lost its leader shows more
				servers.Full(t)
			}
			nodes := 3
			if down == nil {
				nodes = 1
			}
			q := tidying(t, nodes)
			if down != nil {
				down(t, q)
			}
			conform(t, q)
		})
	}
}

// tidying starts an ensemble that looks for empty containers all the time, and not once a minute.
func tidying(t *testing.T, nodes int) *servers.Quorum {
	t.Setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=200 -Dznode.container.maxPerMinute=1000000")
	return servers.ZooKeeper(t, nodes, "syncLimit=15") // or a machine that stalls costs it its leader
}

func conform(t *testing.T, q *servers.Quorum) {
	const prefix = "conformance"
	t.Setenv(envServers, strings.Join(q.Endpoints(), ","))
	t.Setenv(envPrefix, prefix)
	up := func() (nodes []*servers.Process) {
		for _, node := range q.Nodes {
			if node.Running() {
				nodes = append(nodes, node)
			}
		}
		return nodes
	}
	restart := func(tb testing.TB, meanwhile func(*servers.Process)) {
		nodes := up()
		for _, node := range nodes {
			node.Kill()
		}
		for _, node := range nodes {
			meanwhile(node)
			node.Restart()
		}
		q.AwaitReady(tb)
	}
	var sent atomic.Int64
	open := func(tb testing.TB, addrs []string) *Locker {
		o := options(prefix)
		o.Dialer = counting(&sent)
		l, err := New(addrs, o)
		if err != nil {
			tb.Fatal(err)
		}
		return l
	}
	conformance.Run(t, conformance.Backend{
		Open:  func(tb testing.TB) paddock.Locker { return open(tb, q.Endpoints()) },
		Child: true,
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				proxies := q.Proxies(tb)
				all := func(f func(*servers.Proxy)) func() {
					return func() {
						for _, p := range proxies {
							f(p)
						}
					}
				}
				var addrs []string
				for _, p := range proxies {
					addrs = append(addrs, p.Addr)
				}
				return open(tb, addrs), conformance.Link{
					DelayRequests: func(d time.Duration) { all(func(p *servers.Proxy) { p.DelayRequests(d) })() },
					DelayReplies:  func(d time.Duration) { all(func(p *servers.Proxy) { p.DelayReplies(d) })() },
					LoseReplies:   all((*servers.Proxy).LoseReplies),
					Silence:       all((*servers.Proxy).Hold),
					Cut:           all((*servers.Proxy).Cut),
					Pass:          all((*servers.Proxy).Pass),
				}
			},
			Restart: func(tb testing.TB) { restart(tb, func(*servers.Process) {}) },
			Forget: func(tb testing.TB) {
				data := map[*servers.Process]string{}
				for _, node := range up() {
					data[node] = dataDir(tb, node)
				}
				restart(tb, func(node *servers.Process) {
					if err := os.RemoveAll(filepath.Join(data[node], "version-2")); err != nil {
						tb.Error(err)
					}
				})
			},
		},
		Commands: sent.Load,
		Costs:    conformance.Costs{Acquire: 2, Contended: 3, Release: 1},
		Left:     func(ctx context.Context) ([]string, error) { return left(ctx, q.Endpoints(), "/"+prefix) },
	})
}

// dataDir is where a running server keeps its data.
func dataDir(tb testing.TB, node *servers.Process) string {
	tb.Helper()
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", node.Pid()))
	if err != nil {
		tb.Fatal(err)
	}
	args := strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")
	return filepath.Join(filepath.Dir(args[len(args)-1]), "data")
}

// counting counts the requests that are sent, less those that keep a session alive.
func counting(sent *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
	return spying(func(opcode int32, packet []byte) {
		if !heartbeatPacket(opcode, packet) {
			sent.Add(1)
		}
	})
}

// Opcodes of ZooKeeper's protocol.
const (
	opDelete    = 2
	opGetData   = 4
	opPing      = 11
	opChildren2 = 12
	opCheck     = 13
)

// heartbeatPacket tells what keeps a session alive: pings of go-zookeeper, and beats of ours.
func heartbeatPacket(opcode int32, packet []byte) bool {
	return opcode == opPing || strings.Contains(string(packet), "/beat") ||
		opcode == opMulti && binary.BigEndian.Uint32(packet[atOperation:]) == opCheck
}

// spying is a Dialer that shows every request but the first of a connection, which has no opcode.
func spying(see func(opcode int32, packet []byte)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &spied{Conn: conn, see: see}, err
	}
}

type spied struct {
	net.Conn
	see    func(int32, []byte)
	joined bool
}

func (c *spied) Write(b []byte) (int, error) {
	if c.joined {
		c.see(int32(binary.BigEndian.Uint32(b[atOpcode:])), b)
	}
	c.joined = true
	return c.Conn.Write(b)
}

// left lists the nodes from at on.
func left(ctx context.Context, addrs []string, at string) ([]string, error) {
	conn, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)() // calls do not end by themselves
	if _, err := conn.Sync("/"); err != nil {
		return nil, err
	}
	var found []string
	var walk func(string) error
	walk = func(path string) error {
		children, _, err := conn.Children(path)
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		found = append(found, path)
		for _, child := range children {
			if err == nil {
				err = walk(path + "/" + child)
			}
		}
		return err
	}
	err = walk(at)
	return found, err
}
