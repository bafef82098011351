package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

func init() {
	for scheme, connect := range map[string]func(address) (redis.UniversalClient, error){
		"redis": connectServer, "redis+sentinel": connectSentinel, "redis+cluster": connectCluster,
	} {
		tls := strings.Replace(scheme, "redis", "rediss", 1)
		for _, scheme := range []string{scheme, tls} {
			paddock.Register(scheme, func(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
				return open(u, opts, connect)
			})
		}
	}
}

// The parameters that are not go-redis' business.
var ours = []string{"prefix", "domain", "close_wait", "min_replicas", "replica_wait", "sentinel_username", "sentinel_password"}

// The parameters of go-redis that would have locks read from replicas, or say again what the URL says elsewhere.
var refused = []string{
	"addr", "db", "username", "password",
	"read_only", "replica_only", "route_by_latency", "route_by_latency_tolerance", "route_randomly", "use_disconnected_replicas",
}

// address is a URL taken apart.
type address struct {
	url                    string   // for go-redis' parsers: the first host, its parameters, no user
	hosts                  []string // host:port; IPv6 in brackets
	user, password         string
	sentinelUser, sentinel string
	db                     int
}

func open(u *url.URL, opts *paddock.OpenOptions, connect func(address) (redis.UniversalClient, error)) (paddock.Locker, error) {
	theirs, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: the query of a %s: URL is malformed", paddock.ErrInvalid, u.Scheme)
	}
	mine := url.Values{}
	for _, name := range ours {
		if values, ok := theirs[name]; ok {
			mine[name] = values
			delete(theirs, name)
		}
	}
	p := backend.NewParams(&url.URL{Scheme: u.Scheme, RawQuery: mine.Encode()})
	o := Options{
		Prefix: p.String("prefix"), Domain: p.String("domain"), Observer: opts.Observer, CloseWait: p.Duration("close_wait"),
		MinReplicas: p.Int("min_replicas"), ReplicaWait: p.Duration("replica_wait"),
	}
	a := address{user: u.User.Username()}
	a.password, _ = u.User.Password()
	if strings.HasSuffix(u.Scheme, "+sentinel") {
		a.sentinelUser, a.sentinel = p.String("sentinel_username"), p.String("sentinel_password")
	}
	if err := errors.Join(p.Err(), checkTheirs(theirs)); err != nil {
		return nil, err
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if a.db, err = strconv.Atoi(path); err != nil || a.db < 0 {
			return nil, fmt.Errorf("%w: the path of a %s: URL is not the number of a database", paddock.ErrInvalid, u.Scheme)
		}
	}
	a.hosts = hosts(u)
	scheme, _, _ := strings.Cut(u.Scheme, "+")
	a.url = (&url.URL{Scheme: scheme, Host: a.hosts[0], RawQuery: theirs.Encode()}).String()
	client, err := connect(a)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
	}
	l, err := newLocker(client, &o, true)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return l, nil
}

// checkTheirs makes up for what go-redis' parsers let pass.
func checkTheirs(q url.Values) error {
	for name, values := range q {
		switch {
		case slices.Contains(refused, name):
			return fmt.Errorf("%w: URL parameter %s has no place in a Locker's URL", paddock.ErrInvalid, name)
		case len(values) > 1:
			return fmt.Errorf("%w: URL parameter %s is given %d times", paddock.ErrInvalid, name, len(values))
		case values[0] == "":
			return fmt.Errorf("%w: URL parameter %s is empty", paddock.ErrInvalid, name)
		}
		if n, err := strconv.ParseInt(values[0], 10, 64); err == nil && (n > math.MaxInt32 || n < -1) {
			return fmt.Errorf("%w: URL parameter %s=%d is out of range", paddock.ErrInvalid, name, n)
		}
	}
	return nil
}

// hosts are those of u, completed: host:port.
func hosts(u *url.URL) []string {
	port := "6379"
	if strings.HasSuffix(u.Scheme, "+sentinel") {
		port = "26379"
	}
	var hosts []string
	for host := range strings.SplitSeq(u.Host, ",") {
		h := url.URL{Host: host}
		hosts = append(hosts, net.JoinHostPort(cmp.Or(h.Hostname(), "localhost"), cmp.Or(h.Port(), port)))
	}
	return hosts
}

// dials is how often a command tries to connect, for each of its attempts. The default of five, 100 ms apart, has a try wait
// over a second for a server that refuses.
const dials = 1

func connectServer(a address) (redis.UniversalClient, error) {
	if len(a.hosts) > 1 {
		return nil, errors.New("it names several hosts; redis+sentinel: and redis+cluster: may")
	}
	o, err := redis.ParseURL(a.url)
	if err != nil {
		return nil, err
	}
	o.Username, o.Password, o.DB = a.user, a.password, a.db
	o.ContextTimeoutEnabled, o.DialerRetries = true, dials
	return redis.NewClient(o), nil
}

func connectSentinel(a address) (redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(a.url)
	if err != nil {
		return nil, err
	}
	if o.MasterName == "" {
		return nil, errors.New("it lacks the parameter master_name")
	}
	o.SentinelAddrs = a.hosts
	o.Username, o.Password, o.DB = a.user, a.password, a.db
	o.SentinelUsername, o.SentinelPassword = a.sentinelUser, a.sentinel
	o.ContextTimeoutEnabled, o.DialerRetries = true, cmp.Or(o.DialerRetries, dials)
	if o.TLSConfig != nil { // it is for the data servers as well
		o.TLSConfig.ServerName = ""
	}
	return redis.NewFailoverClient(o), nil
}

// reloadCluster is how often a Cluster client of ours asks for the topology: nothing tells it of a failover.
const reloadCluster = 5 * time.Second

func connectCluster(a address) (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(a.url)
	if err != nil {
		return nil, err
	}
	if a.db != 0 {
		return nil, errors.New("a Cluster has database 0 only")
	}
	o.Addrs = a.hosts
	o.Username, o.Password = a.user, a.password
	o.ContextTimeoutEnabled, o.DialerRetries = true, cmp.Or(o.DialerRetries, dials)
	o.ClusterStateReloadInterval = reloadCluster
	if o.TLSConfig != nil && len(a.hosts) > 1 {
		o.TLSConfig.ServerName = ""
	}
	return redis.NewClusterClient(o), nil
}
