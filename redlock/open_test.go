package redlock

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.each(func(i int) {
		must(t, c.probes[i].Do(t.Context(), "ACL", "SETUSER", "me", "on", ">p@ss/w", "~*", "&*", "+@all").Err())
	})
	prefix := newPrefix()
	granted := make(chan *paddock.Lease, 1)
	u := url.URL{Scheme: "redlock", User: url.UserPassword("me", "p@ss/w"), Host: strings.Join(c.addrs, ","), Path: "/1",
		RawQuery: "prefix=" + prefix + "&domain=d&close_wait=2s&fence_quorum=4&node_timeout=2s&pool_size=3&client_name=us"}
	opened, err := paddock.Open(t.Context(), u.String(), &paddock.OpenOptions{Observer: &paddock.Observer{
		Acquired: func(l *paddock.Lease, _ time.Duration) { granted <- l },
	}})
	must(t, err)
	l := opened.(*Locker)
	lease := take(t, l, "k")
	if told := <-granted; told != lease || lease.Fence().Domain != "d" {
		t.Errorf("the observer was told of %v; the lease is %v", told, lease.Fence())
	}
	q := l.quorum
	if q.fences != 4 || q.timeout != 2*time.Second || l.closeWait != 2*time.Second {
		t.Errorf("the parameters have not arrived: fence quorum %d, node timeout %v, close wait %v", q.fences, q.timeout, l.closeWait)
	}
	for i, n := range q.nodes {
		o := n.client.(*redis.Client).Options()
		if o.Addr != c.addrs[i] || o.Username != "me" || o.DB != 1 || o.PoolSize != 3 || o.ClientName != "us" || o.MaxRetries > 0 {
			t.Errorf("client %d has the options %+v", i, o)
		}
	}
	must(t, lease.Release(t.Context()))
	must(t, l.Close())
	until(t, "without connections", func() bool {
		for i := range c.addrs {
			if strings.Contains(c.probes[i].ClientList(t.Context()).Val(), "name=us ") {
				return false
			}
		}
		return true
	})
}

// TestOpenKeepsConnectionsForHolders closes a Locker under a lease.
func TestOpenKeepsConnectionsForHolders(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	prefix := newPrefix()
	l, err := paddock.Open(t.Context(), "redlock://"+strings.Join(c.addrs, ",")+"?prefix="+prefix+"&no_fence=true", nil)
	must(t, err)
	lease := take(t, l, "k")
	if lease.Token() != 0 || l.Guarantees().Fencing != 0 {
		t.Errorf("a lease without a fence has the token %d", lease.Token())
	}
	must(t, l.Close())
	must(t, lease.Release(t.Context()))
	c.empty(t, prefix)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, rawURL := range []string{
		"redlock://", "redlock://a", "redlock://a,b", "redlock://a,b,c,d", "redlock://a,b,a", "redlock://a,b,c,a:6379,d", "redlock://a,b,c/x",
		"redlock://a,b,c?prefx=x", "redlock://a,b,c?prefix=x&prefix=y", "redlock://a,b,c?prefix=", "redlock://a,b,c?prefix={x}",
		"redlock://a,b,c?close_wait=5", "redlock://a,b,c?node_timeout=-1s", "redlock://a,b,c?fence_quorum=1",
		"redlock://a,b,c?fence_quorum=4", "redlock://a,b,c?fence_quorum=2&no_fence=true", "redlock://a,b,c?no_fence=perhaps",
		"redlock://a,b,c?pool_size=many", "redlock://a,b,c?pool_size=1&pool_size=2", "redlock://a,b,c?max_retries=", "redlock://a,b,c?db=1",
	} {
		withPassword := strings.Replace(rawURL, "//", "//user:hunter2@", 1)
		l, err := paddock.Open(t.Context(), withPassword, nil)
		if !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("Open(%q) = %v, %v; want ErrInvalid", rawURL, l, err)
		}
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("the error for %q shows the password: %v", rawURL, err)
		}
	}
}

func TestOpenTLS(t *testing.T) {
	t.Parallel()
	l, err := paddock.Open(t.Context(), "redlocks://a:1,[::1]:2,c?skip_verify=true&max_retries=2", nil)
	must(t, err)
	for i, addr := range []string{"a:1", "[::1]:2", "c:6379"} {
		o := l.(*Locker).quorum.nodes[i].client.(*redis.Client).Options()
		if o.Addr != addr || o.TLSConfig == nil || !o.TLSConfig.InsecureSkipVerify || o.MaxRetries != 2 || !o.ContextTimeoutEnabled {
			t.Errorf("client %d has the options %+v", i, o)
		}
	}
	must(t, l.Close())
}
