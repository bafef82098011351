// Package redisurl makes go-redis clients of URLs: redis:, redis+sentinel: and redis+cluster:, each with rediss for TLS, as locks and
// stores of this module are opened by.
package redisurl

import (
	"cmp"
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
)

// Schemes are all that Connect knows.
var Schemes = []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}

// The parameters of go-redis that would have replicas read, or say again what the URL says elsewhere.
var refused = []string{
	"addr", "db", "username", "password",
	"read_only", "replica_only", "route_by_latency", "route_by_latency_tolerance", "route_randomly", "use_disconnected_replicas",
}

// The parameters that count connections, for which go-redis makes room when it makes the client, and how far they may.
var sizes = []string{"pool_size", "pipeline_pool_size", "min_idle_conns", "max_idle_conns", "max_active_conns", "max_concurrent_dials"}

const maxConns = 100_000

// address is a URL taken apart.
type address struct {
	url                    string   // for go-redis' parsers: the first host, its parameters, no user
	hosts                  []string // host:port; IPv6 in brackets
	user, password         string
	sentinelUser, sentinel string
	db                     int
}

// Take splits the query of u into the parameters named by ours, and a URL with the rest, which is go-redis' business.
func Take(u *url.URL, ours ...string) (mine, rest *url.URL, err error) {
	theirs, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, errors.New("its query is malformed")
	}
	own := url.Values{}
	for _, name := range ours {
		if values, ok := theirs[name]; ok {
			own[name] = values
			delete(theirs, name)
		}
	}
	mine = &url.URL{Scheme: u.Scheme, RawQuery: own.Encode()}
	copied := *u
	copied.RawQuery = theirs.Encode()
	return mine, &copied, nil
}

// Connect makes a client of u; it does not dial. Errors show nothing that may be a secret.
func Connect(u *url.URL) (redis.UniversalClient, error) {
	sentinel := strings.HasSuffix(u.Scheme, "+sentinel")
	var own []string
	if sentinel {
		own = []string{"sentinel_username", "sentinel_password"}
	}
	mine, u, err := Take(u, own...)
	if err != nil {
		return nil, err
	}
	theirs, of := u.Query(), mine.Query()
	a := address{user: u.User.Username(), hosts: hosts(u), sentinelUser: of.Get("sentinel_username"), sentinel: of.Get("sentinel_password")}
	a.password, _ = u.User.Password()
	if err := errors.Join(check(theirs), checkOnce(of)); err != nil {
		return nil, err
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if a.db, err = strconv.Atoi(path); err != nil || a.db < 0 {
			return nil, errors.New("its path is not the number of a database")
		}
	}
	scheme, _, _ := strings.Cut(u.Scheme, "+")
	a.url = (&url.URL{Scheme: scheme, Host: a.hosts[0], RawQuery: theirs.Encode()}).String()
	switch {
	case sentinel:
		return connectSentinel(a)
	case strings.HasSuffix(u.Scheme, "+cluster"):
		return connectCluster(a)
	}
	return connectServer(a)
}

// check makes up for what go-redis' parsers let pass.
func check(q url.Values) error {
	for name, values := range q {
		if slices.Contains(refused, name) {
			return fmt.Errorf("URL parameter %s has no place here", name)
		}
		most := int64(math.MaxInt32)
		if slices.Contains(sizes, name) {
			most = maxConns
		}
		if n, err := strconv.ParseInt(values[0], 10, 64); err == nil && (n > most || n < -1) {
			return fmt.Errorf("URL parameter %s=%d is out of range", name, n)
		}
	}
	return checkOnce(q)
}

func checkOnce(q url.Values) error {
	for name, values := range q {
		switch {
		case len(values) > 1:
			return fmt.Errorf("URL parameter %s is given %d times", name, len(values))
		case values[0] == "":
			return fmt.Errorf("URL parameter %s is empty", name)
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
