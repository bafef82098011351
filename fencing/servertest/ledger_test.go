package servertest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/etcdguard"
	"github.com/paddock-go/paddock/fencing/redisguard"
	"github.com/paddock-go/paddock/fencing/sqlguard"
	"github.com/paddock-go/paddock/internal/servers"
)

// ledger is what the holders of a lock write to.
type ledger struct {
	fencing.Guard
	read    func(ctx context.Context, account string) (string, error)
	fenced  func(ctx context.Context, account, value string, f fencing.Fence) error
	blindly func(ctx context.Context, account, value string) error // as people write who trust in their lock
}

// ledgers are all kinds, each by where it is and how it is opened there, by this process and by others.
var ledgers = map[string]struct {
	at   func(tb testing.TB) string
	open func(at string) (ledger, error)
}{
	"Redis":      {func(tb testing.TB) string { return servers.SharedRedis(tb) }, redisLedger},
	"etcd":       {func(tb testing.TB) string { return strings.Join(servers.SharedEtcd(tb), ",") }, etcdLedger},
	"PostgreSQL": {postgres.dsn, postgres.ledger},
	"MariaDB":    {mariadb.dsn, mariadb.ledger},
	"SQLite":     {sqlite.dsn, sqlite.ledger},
}

func redisLedger(at string) (ledger, error) {
	client := redis.NewClient(&redis.Options{Addr: at})
	g, err := redisguard.New(client, nil)
	return ledger{
		Guard: g,
		read: func(ctx context.Context, account string) (string, error) {
			value, err := client.Get(ctx, account).Result()
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return value, err
		},
		fenced: func(ctx context.Context, account, value string, f fencing.Fence) error {
			return g.Set(ctx, f, account, value, 0)
		},
		blindly: func(ctx context.Context, account, value string) error {
			return client.Set(ctx, account, value, 0).Err()
		},
	}, err
}

func etcdLedger(at string) (ledger, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(at, ","), Logger: zap.NewNop()})
	if err != nil {
		return ledger{}, err
	}
	g, err := etcdguard.New(client, nil)
	return ledger{
		Guard: g,
		read: func(ctx context.Context, account string) (string, error) {
			resp, err := client.Get(ctx, account)
			if err != nil || len(resp.Kvs) == 0 {
				return "", err
			}
			return string(resp.Kvs[0].Value), nil
		},
		fenced: func(ctx context.Context, account, value string, f fencing.Fence) error {
			return g.Do(ctx, account, f, clientv3.OpPut(account, value))
		},
		blindly: func(ctx context.Context, account, value string) error {
			_, err := client.Put(ctx, account, value)
			return err
		},
	}, err
}

func (d database) ledger(dsn string) (ledger, error) {
	db, err := sql.Open(d.driver, dsn)
	if err != nil {
		return ledger{}, err
	}
	g, err := sqlguard.New(db, d.dialect, nil)
	if err != nil {
		return ledger{}, err
	}
	ctx, data := context.Background(), records{d, "paused"}
	if err := errors.Join(g.Create(ctx), data.create(ctx, db)); err != nil {
		return ledger{}, err
	}
	return ledger{
		Guard: g,
		read:  func(ctx context.Context, account string) (string, error) { return data.get(ctx, db, account) },
		fenced: func(ctx context.Context, account, value string, f fencing.Fence) error {
			return inTx(ctx, db, nil, func(tx *sql.Tx) error {
				if err := g.Check(ctx, tx, account, f); err != nil {
					return err
				}
				return data.set(ctx, tx, account, value)
			})
		},
		blindly: func(ctx context.Context, account, value string) error {
			return inTx(ctx, db, nil, func(tx *sql.Tx) error { return data.set(ctx, tx, account, value) })
		},
	}, nil
}
