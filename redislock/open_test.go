package redislock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// opened opens rawURL, which has to lead to a server.
func opened(t *testing.T, rawURL string) *Locker {
	t.Helper()
	l, err := paddock.Open(t.Context(), rawURL, nil)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	must(t, take(t, l, "k", patient).Release(t.Context()))
	return l.(*Locker)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	addr, prefix := servers.SharedRedis(t), newPrefix()
	l := opened(t, "redis://"+addr+"/1?prefix="+prefix+"&domain=d&close_wait=2s&min_replicas=0&replica_wait=50ms&protocol=2&pool_size=3&client_name=me")
	lease := take(t, l, "k", patient)
	if f := lease.Fence(); f.Domain != "d" {
		t.Errorf("the domain is %q; want %q", f.Domain, "d")
	}
	probe := redis.NewClient(&redis.Options{Addr: addr, DB: 1})
	defer probe.Close()
	lock, _ := l.server.names("k")
	if owner := probe.Get(t.Context(), lock).Val(); owner != lease.Owner() || !strings.HasPrefix(lock, prefix) {
		t.Errorf("%q in database 1 holds %q; want %q", lock, owner, lease.Owner())
	}
	must(t, lease.Release(t.Context()))
	o := l.server.client.(*redis.Client).Options()
	if o.Protocol != 2 || o.PoolSize != 3 || o.ClientName != "me" || l.server.wait != 50*time.Millisecond {
		t.Errorf("the parameters have not arrived: %+v", o)
	}
}

func TestOpenPassword(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	probe := redis.NewClient(&redis.Options{Addr: server.Addr}) // on one connection, which stays logged in
	t.Cleanup(func() { probe.Close() })
	main := probe.Conn()
	defer main.Close()
	for _, password := range []string{"pa:ss", "p@ss/w?o#rd", "100%", "a b+c&d=e", "{}[]<>\"'\\^`|~", "\u00e9\U0001F512"} {
		must(t, main.ConfigSet(t.Context(), "requirepass", password).Err())
		must(t, main.Do(t.Context(), "ACL", "SETUSER", "o'brien@x", "on", ">"+password, "~*", "&*", "+@all").Err())
		for _, user := range []*url.Userinfo{url.UserPassword("", password), url.UserPassword("o'brien@x", password)} {
			opened(t, (&url.URL{Scheme: "redis", User: user, Host: server.Addr}).String())
		}
	}
}

// TestOpenShowsNoSecrets looks for the password in all that Open and a Locker may say.
func TestOpenShowsNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	server := servers.Redis(t)
	for _, rawURL := range []string{
		"redis://u:" + secret + "@" + server.Addr + "/x",
		"redis://u:" + secret + "@" + server.Addr + "/0?nonsense=1",
		"redis://u:" + secret + "@" + server.Addr + ",other:1/0",
		"redis://u:" + secret + "@" + server.Addr + "/0?pool_size=many",
		"redis://u:" + secret + "@" + server.Addr + "/0?pool_size=99999999999",
		"redis://u:" + secret + "%zz@" + server.Addr,
		"redis://u:" + secret + "@" + server.Addr + "/0?prefix={}",
		"redis://" + server.Addr + "/0?password=" + secret,
		"redis://" + server.Addr + "/0?sentinel_password=" + secret,
		"redis+sentinel://u:" + secret + "@h/0?sentinel_password=" + secret,
		"redis+sentinel://h/0?master_name=m&sentinel_password=" + secret + "&sentinel_password=" + secret,
		"redis+sentinel://h/0?master_name=m&password=" + secret,
		"redis+sentinel://h/0?master_name=m&route_randomly=true",
		"redis+cluster://u:" + secret + "@h/1",
		"redis+cluster://u:" + secret + "@h?read_only=true",
		"redis+cluster://u:" + secret + "@h?addr=h:1",
		"redis+cluster://u:" + secret + "@h?max_retries=",
	} {
		l, err := paddock.Open(t.Context(), rawURL, nil)
		if !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("Open(%q) = %v, %v; want ErrInvalid", rawURL, l, err)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error of Open shows the password: %q", err)
		}
	}
	l, err := paddock.Open(t.Context(), "redis://u:"+secret+"@"+server.Addr, nil)
	must(t, err)
	defer l.Close()
	if _, err = l.TryAcquire(t.Context(), "k", nil); !errors.Is(err, paddock.ErrUnavailable) || strings.Contains(err.Error(), secret) {
		t.Errorf("with a password that the server does not know: %v", err)
	}
}

// TestOpenedClosesItsClient closes a Locker under a holder, whose release still works, and then no connection is left.
func TestOpenedClosesItsClient(t *testing.T) {
	t.Parallel()
	f := at(t, servers.Redis(t).Addr, redis.Options{})
	l, err := paddock.Open(t.Context(), "redis://"+f.probe.Options().Addr+"?client_name=opened", nil)
	must(t, err)
	connections := func() int {
		list, err := f.probe.ClientList(t.Context()).Result()
		must(t, err)
		return strings.Count(list, "name=opened")
	}
	lease := take(t, l, "k", patient)
	must(t, l.Close())
	if n := connections(); n == 0 {
		t.Error("the connection is gone before the holder's release")
	}
	must(t, lease.Release(t.Context()))
	until(t, "disconnected", func() bool { return connections() == 0 })
}

func TestOpenTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	must(t, listener.Close())
	server := servers.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	host, _, _ := net.SplitHostPort(server.Addr)
	opened(t, "rediss://"+host+":"+port+"?skip_verify=true")
	l, err := paddock.Open(t.Context(), "rediss://"+host+":"+port+"?close_wait=50ms", nil)
	must(t, err)
	defer l.Close()
	var unverified *tls.CertificateVerificationError
	if _, err := l.TryAcquire(t.Context(), "k", patient); !errors.As(err, &unverified) {
		t.Errorf("with a certificate that nobody vouches for: %v; want an error that says so", err)
	}
}

func certificate(t *testing.T) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", public), write("key.pem", "PRIVATE KEY", der)
}

func TestOpenHosts(t *testing.T) {
	t.Parallel()
	l, err := paddock.Open(t.Context(), "rediss+cluster://u:p@a,b:1?protocol=2", nil)
	must(t, err)
	defer l.Close()
	o := l.(*Locker).server.client.(*redis.ClusterClient).Options()
	if !slices.Equal(o.Addrs, []string{"a:6379", "b:1"}) || o.Username != "u" || o.Password != "p" || o.Protocol != 2 {
		t.Errorf("the options are %+v", o)
	}
	if o.TLSConfig == nil || o.TLSConfig.ServerName != "" {
		t.Error("the certificates of several hosts are not checked against the host that each connection goes to")
	}
}
