package etcdlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
)

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for _, file := range []string{cert, key} {
		if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, url := range []string{
		"etcd://localhost/path", "etcd://localhost?prefx=a", "etcd://localhost?prefix=a&prefix=b", "etcd://localhost?prefix=",
		"etcd://localhost?close_wait=5", "etcd://user@localhost", "etcd://user:@localhost", "etcd://:secret@localhost",
		"etcd://localhost?prefix=a/v1/b", "etcd://localhost?ca_file=" + cert, "etcds://localhost?ca_file=" + cert,
		"etcds://localhost?ca_file=/no/such/file", "etcds://localhost?cert_file=" + cert, "etcds://localhost?key_file=" + key,
		"etcds://localhost?cert_file=" + cert + "&key_file=" + key,
	} {
		l, err := paddock.Open(t.Context(), url, nil)
		if !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("Open(%q) = %v, %v; want ErrInvalid", url, l, err)
		}
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("the error for %q shows a password: %v", url, err)
		}
	}
}

// use acquires a key twice, once with each Locker, which have to meet.
func use(t *testing.T, l, other paddock.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	lease, err := l.Acquire(ctx, "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.TryAcquire(ctx, "k", nil); !errors.Is(err, paddock.ErrHeld) {
		t.Errorf("the key is held, and another Locker says: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	seen := make(chan string, 1)
	url := "etcd://127.0.0.1:1," + b.admin.Endpoints()[0] + "?domain=mine&close_wait=1s&prefix=" + b.prefix
	l, err := paddock.Open(b.ctx, url, &paddock.OpenOptions{Observer: &paddock.Observer{
		Acquired: func(lease *paddock.Lease, _ time.Duration) { seen <- lease.Fence().Domain },
	}})
	if err != nil {
		t.Fatal(err)
	}
	use(t, l, b.open())
	if domain := <-seen; domain != "mine" {
		t.Errorf("the domain is %q", domain)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	if l, err := paddock.Open(ended, "etcd://user:password@"+b.admin.Endpoints()[0], nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Open after its context has ended: %v, %v", l, err)
	}
}

// A Locker that opened its connection keeps it for a holder that is inside when it is closed.
func TestOpenedConnectionOutlivesClose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, err := paddock.Open(b.ctx, "etcd://"+b.admin.Endpoints()[0]+"?prefix="+b.prefix, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease := b.acquire(l, "k", ttl(time.Minute))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.queued("k", 1)
	b.release(lease)
	b.queued("k", 0)
	b.eventually("nothing left", func() bool { return len(b.under("/")) == 0 })
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	endpoints := servers.Etcd(t, 1, "--auth-token-ttl", "2", "--bcrypt-cost", "4").Endpoints()
	root := connect(t, endpoints)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.UserAdd(ctx, "root", "root"))
	must(root.UserGrantRole(ctx, "root", "root"))
	must(root.RoleAdd(ctx, "locks"))
	must(root.RoleGrantPermission(ctx, "locks", "paddock/", "paddock0", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(root.UserAdd(ctx, "user", "p@ss/word"))
	must(root.UserGrantRole(ctx, "user", "locks"))
	must(root.AuthEnable(ctx))

	host := endpoints[0]
	url := "etcd://user:p%40ss%2Fword@" + host
	a, err := paddock.Open(ctx, url, nil)
	must(nil, err)
	defer a.Close()
	other, err := paddock.Open(ctx, url, nil)
	must(nil, err)
	defer other.Close()
	use(t, a, other)

	t.Run("ExpiredToken", func(t *testing.T) {
		lease, err := a.Acquire(ctx, "long", ttl(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			next, err := other.Acquire(ctx, "long", nil)
			if err == nil {
				err = next.Release(ctx)
			}
			got <- err
		}()
		time.Sleep(6 * time.Second) // tokens that are not used live for 2 s
		if err := lease.Err(); err != nil {
			t.Errorf("a lease held for longer than a token lives: %v", err)
		}
		use(t, a, other)
		if err := errors.Join(lease.Release(ctx), <-got); err != nil {
			t.Error(err)
		}
	})
	t.Run("NoPermission", func(t *testing.T) {
		l, err := paddock.Open(ctx, url+"?prefix=elsewhere", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for what, acquire := range map[string]func(context.Context, string, *paddock.Options) (*paddock.Lease, error){
			"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
		} {
			begun := time.Now()
			if _, err := acquire(ctx, "k", nil); !errors.Is(err, paddock.ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s without permission: %v; want ErrUnavailable", what, err)
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("%s without permission took %v; want an error at once", what, took)
			}
		}
	})
	t.Run("NoPassword", func(t *testing.T) {
		l := open(t, connect(t, endpoints), nil)
		defer l.Close()
		if _, err := l.Acquire(ctx, "k", nil); !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("Acquire without a password: %v; want ErrUnavailable", err)
		}
		if _, err := paddock.Inspect(ctx, l, "k"); !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("Inspect without a password: %v; want ErrUnavailable", err)
		}
	})
	t.Run("WrongPassword", func(t *testing.T) {
		l, err := paddock.Open(ctx, "etcd://user:secret@"+host, nil)
		if !errors.Is(err, paddock.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open with a wrong password: %v, %v; want ErrUnavailable", l, err)
		}
	})
}

// certificate makes one for 127.0.0.1, signed by itself, in two files.
func certificate(t *testing.T, name string) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	certFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	return pair, certFile, keyFile
}

// tlsFront accepts TLS connections for a server without TLS.
func tlsFront(t *testing.T, target string, config *tls.Config) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					_, _ = io.Copy(client, server)
					client.Close()
				}()
				_, _ = io.Copy(server, client)
			}()
		}
	}()
	return listener.Addr().String()
}

func TestOpenTLS(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	serverPair, serverCert, _ := certificate(t, "etcd.test")
	_, clientCert, clientKey := certificate(t, "client")
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(clientCert)
	if err != nil {
		t.Fatal(err)
	}
	trusted.AppendCertsFromPEM(text)
	addr := tlsFront(t, b.admin.Endpoints()[0], &tls.Config{
		Certificates: []tls.Certificate{serverPair}, NextProtos: []string{"h2"},
		ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	query := "&prefix=" + b.prefix + "&cert_file=" + clientCert + "&key_file=" + clientKey
	l, err := paddock.Open(b.ctx, "etcds://"+addr+"?ca_file="+serverCert+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	use(t, l, b.open())
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]string{
		"an authority that has not signed": addr + "?ca_file=" + clientCert + query, "no certificate": addr + "?ca_file=" + serverCert,
		"another name": "localhost:" + port + "?ca_file=" + serverCert + query,
	} {
		l, err := paddock.Open(b.ctx, "etcds://"+at+"&close_wait=1ms", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(b.ctx, "k", ttl(time.Second)); !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("TryAcquire over TLS with %s: %v; want ErrUnavailable", what, err)
		}
		_ = l.Close() // with an attempt that it cannot clean up after
	}
}

// What New is given it does not close.
func TestCloseLeavesTheClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := open(t, b.admin, &etcdlock.Options{Prefix: "test-" + uuid.NewString()})
	b.release(b.acquire(l, "k", nil))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.Get(b.ctx, "k"); err != nil {
		t.Errorf("the client after the Locker's Close: %v", err)
	}
}
