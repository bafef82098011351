package sqlguard_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/sqlguard"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A lock in etcd over rows in PostgreSQL, which only its latest holder can write.
func Example() {
	db, err := sql.Open("pgx", "postgres://localhost/billing") // import _ "github.com/jackc/pgx/v5/stdlib"
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker, err := etcdlock.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	guard, err := sqlguard.New(db, sqlguard.PostgreSQL, nil)
	if err != nil {
		log.Fatal(err)
	}

	pay := func(ctx context.Context, lease *paddock.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Check(ctx, tx, "invoice/4711", lease.Fence()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = 4711"); err != nil {
			return err
		}
		return tx.Commit()
	}
	err = paddock.Do(context.Background(), locker, "invoice/4711", nil, paddock.Guarded(guard, "invoice/4711", pay))
	if errors.Is(err, fencing.ErrStale) {
		log.Print("somebody else took over in the meantime")
	}
}
