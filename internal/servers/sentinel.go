package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Sentinel is a primary with two replicas, watched by three sentinels of which
// two must agree. Replicas, sentinels and the clients who ask them know the
// primary by its proxy, Link. While that holds (Link.Hold) they take it for
// dead and follow another, yet who goes to Primary.Addr is still served: a
// split brain.
type Sentinel struct {
	Name      string   // of the primary, to ask the sentinels for
	Addrs     []string // of the sentinels
	Primary   *Process // at first; see Current
	Link      *Proxy
	Replicas  []*Process
	Sentinels []*Process
}

// RedisSentinel starts a Sentinel in which everyone knows everyone, which
// takes about three seconds; a failover takes as long. args are directives for
// the primary and its replicas.
func RedisSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	needRedis(tb)
	s := &Sentinel{Name: "paddock"}
	addr := address()
	s.Link = NewProxy(tb, addr)
	_, port := split(s.Link.Addr)
	// When it comes back as a replica, the sentinels know it by the address
	// that they know already.
	s.Primary = redisAt(addr, append([]string{"--replica-announce-port", port}, args...)...)
	if err := s.Primary.launch(); err != nil {
		tb.Fatalf("servers: %v", err)
	}
	s.Primary.adopt(tb)
	for range 2 {
		s.Replicas = append(s.Replicas, RedisReplica(tb, s.Link.Addr, args...))
	}
	for range 3 {
		p, err := startSentinel(s.Name, s.Link.Addr)
		if err != nil {
			tb.Fatalf("servers: %v", err)
		}
		s.Sentinels = append(s.Sentinels, p.adopt(tb))
		s.Addrs = append(s.Addrs, p.Addr)
	}
	for _, p := range s.Sentinels {
		client := redis.NewSentinelClient(&redis.Options{Addr: p.Addr, MaxRetries: -1, DialerRetries: 1})
		defer client.Close()
		err := p.await("acquainted with the others", func(ctx context.Context) error {
			m, err := client.Master(ctx, s.Name).Result()
			if err == nil && (m["num-other-sentinels"] != "2" || m["num-slaves"] != "2" || m["flags"] != "master") {
				err = fmt.Errorf("knows %s sentinels and %s replicas, primary %s", m["num-other-sentinels"], m["num-slaves"], m["flags"])
			}
			return err
		})
		if err != nil {
			tb.Fatalf("servers: %v", err)
		}
	}
	return s
}

// Current returns the address of the primary as the first sentinel that answers
// gives it to clients: Link's until it has heard of a failover.
func (s *Sentinel) Current(tb testing.TB) string {
	tb.Helper()
	var failures []string
	for _, addr := range s.Addrs {
		client := redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		defer cancel()
		at, err := client.GetMasterAddrByName(ctx, s.Name).Result()
		if err == nil && len(at) == 2 {
			return net.JoinHostPort(at[0], at[1])
		}
		failures = append(failures, fmt.Sprint(err))
	}
	tb.Fatalf("servers: no sentinel knows the primary: %s", strings.Join(failures, "; "))
	return ""
}

func startSentinel(name, primary string) (*Process, error) {
	ip, port := split(primary)
	var p *Process
	err := onFreshPorts(func() error {
		addr := address()
		_, own := split(addr)
		dir, err := newDir("sentinel")
		if err != nil {
			return err
		}
		conf := filepath.Join(dir, "sentinel.conf") // which it rewrites
		lines := []string{
			"bind " + ip,
			"port " + own,
			"dir " + dir,
			"sentinel announce-ip " + ip,
			"sentinel monitor " + name + " " + ip + " " + port + " 2",
			"sentinel down-after-milliseconds " + name + " 1000",
			"sentinel failover-timeout " + name + " 2000",
		}
		if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return err
		}
		p = &Process{
			Name: "redis-sentinel-" + own, Addr: addr, dir: dir,
			argv:  []string{"redis-server", conf, "--sentinel"},
			ready: redisAnswers(addr),
		}
		return p.launch()
	})
	return p, err
}
