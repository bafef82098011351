package etcdlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

func init() {
	paddock.Register("etcd", open)
	paddock.Register("etcds", open)
}

const (
	defaultPort = "2379"
	dialTimeout = 5 * time.Second  // for the first authentication
	pingEvery   = 10 * time.Second // the shortest that servers allow by default is 5 s
	pingWait    = 3 * time.Second
	maxBackoff  = 2 * time.Second // between two attempts to connect
)

// open is a paddock.Opener.
func open(ctx context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
	p := backend.NewParams(u)
	o := Options{
		Prefix: p.String("prefix"), Domain: p.String("domain"), CloseWait: p.Duration("close_wait"), Observer: opts.Observer,
	}
	cfg := clientv3.Config{
		DialTimeout: dialTimeout, DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingWait,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryWait, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: dialTimeout,
		})},
		Logger: zap.NewNop(), // what fails is an error or an Observer's event
	}
	if d := p.Duration("dial_timeout"); d > 0 {
		cfg.DialTimeout = d
	}
	var files tlsFiles
	if u.Scheme == "etcds" {
		files = tlsFiles{ca: p.String("ca_file"), cert: p.String("cert_file"), key: p.String("key_file")}
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	var err error
	if cfg.Username, cfg.Password, err = user(u); err != nil {
		return nil, err
	}
	if u.Path != "" && u.Path != "/" {
		return nil, fmt.Errorf("%w: an %s: URL has no path; the prefix of the keys is a parameter", paddock.ErrInvalid, u.Scheme)
	}
	transport := "http"
	if u.Scheme == "etcds" {
		transport = "https"
		if cfg.TLS, err = files.config(); err != nil {
			return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
		}
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		cfg.Endpoints = append(cfg.Endpoints, transport+"://"+withPort(host))
	}
	client, err := connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrUnavailable, u.Scheme, err)
	}
	l, err := newLocker(client, o, true)
	if err != nil {
		_ = client.Close() // the error that matters is the other
		return nil, err
	}
	return l, nil
}

// connect makes a client, which authenticates at once if there is a password. ctx bounds that and not the client's life.
func connect(ctx context.Context, cfg clientv3.Config) (*clientv3.Client, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cfg.Context = life
	stop := context.AfterFunc(ctx, end)
	client, err := clientv3.New(cfg)
	if !stop() {
		if err == nil {
			_ = client.Close()
		}
		end()
		return nil, ctx.Err()
	}
	if err != nil {
		end()
	}
	return client, err
}

func user(u *url.URL) (name, password string, err error) {
	name = u.User.Username()
	password, given := u.User.Password()
	if (name == "") != (password == "") || given && password == "" {
		return "", "", fmt.Errorf("%w: an %s: URL has a user and a password, or neither", paddock.ErrInvalid, u.Scheme)
	}
	return name, password, nil
}

// withPort completes host.
func withPort(host string) string {
	h := url.URL{Host: host}
	name, port := h.Hostname(), h.Port()
	if name == "" {
		name = "localhost"
	}
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(name, port)
}

// tlsFiles are the parameters of an etcds: URL.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca_file: it holds no certificate in PEM")
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("cert_file and key_file go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
