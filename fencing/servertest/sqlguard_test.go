package servertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/guardtest"
	"github.com/paddock-go/paddock/fencing/sqlguard"
)

func TestSQLGuard(t *testing.T) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.suite(t, d.dsn(t))
		})
	}
}

// TestMySQLFoundRows is the suite on connections that count rows which were found, where others count those that changed.
func TestMySQLFoundRows(t *testing.T) {
	t.Parallel()
	mariadb.suite(t, mariadb.dsn(t)+"?clientFoundRows=true&interpolateParams=true")
}

// TestPostgresSimpleProtocol is the suite on connections that write arguments into the statements, as connection poolers need it.
func TestPostgresSimpleProtocol(t *testing.T) {
	t.Parallel()
	postgres.suite(t, postgres.dsn(t)+"&default_query_exec_mode=simple_protocol")
}

// TestSQLiteRollbackJournal is the suite on a file without a write-ahead log, in transactions that begin as readers.
func TestSQLiteRollbackJournal(t *testing.T) {
	t.Parallel()
	sqlite.suite(t, "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=busy_timeout(60000)&_pragma=synchronous(OFF)")
}

// opened is a Guard and its connections.
type opened struct {
	*sqlguard.Guard
	db *sql.DB
}

func (d database) suite(t *testing.T, dsn string) {
	data, marks := records{d, fmt.Sprintf("data_%d", rand.Uint64())}, fmt.Sprintf("marks_%d", rand.Uint64())
	db := d.connect(t, dsn)
	must(t, data.create(t.Context(), db))
	must(t, d.guardOf(t, db, marks).Create(t.Context()))
	guardtest.Run(t, guardtest.Guard{
		Open: func(tb testing.TB) guardtest.Migrater {
			db := d.connect(tb, dsn)
			return opened{d.guardOf(tb, db, marks), db}
		},
		Write: func(ctx context.Context, m guardtest.Migrater, resource string, f fencing.Fence, value string) error {
			g := m.(opened)
			return inTx(ctx, g.db, nil, func(tx *sql.Tx) error {
				if err := g.Check(ctx, tx, resource, f); err != nil {
					return err
				}
				return data.set(ctx, tx, resource, value)
			})
		},
		Read: func(ctx context.Context, m guardtest.Migrater, resource string) (string, error) {
			return data.get(ctx, m.(opened).db, resource)
		},
	})
}

// marksOf is the name of a guard's table, as its statement quotes it.
func marksOf(g *sqlguard.Guard) string { return strings.Fields(g.SQL())[5] }

func fence(token fencing.Token, owner string) fencing.Fence {
	return fencing.Fence{Domain: "servertest", Token: token, Owner: owner}
}

// Levels at which a transaction sees the database as it was at its first read.
var snapshots = []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable}

// eachSnapshot runs check in a transaction whose snapshot was taken before the mark moved to 9: from 1, or from nothing.
func (d database) eachSnapshot(t *testing.T, dsn string, check func(name string, g *sqlguard.Guard, tx *sql.Tx, resource string)) {
	g, db := d.guard(t, dsn)
	ctx := t.Context()
	for _, level := range snapshots {
		for _, seen := range []bool{true, false} {
			resource := fmt.Sprint("resource/", level, seen)
			if seen {
				must(t, g.Advance(ctx, resource, fence(1, "before")))
			}
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			must(t, err)
			var n int
			must(t, tx.QueryRow("SELECT 1").Scan(&n))
			if level != sql.LevelSerializable || d.dialect != sqlguard.MySQL { // where this read would be a lock
				must(t, tx.QueryRow("SELECT COUNT(*) FROM "+marksOf(g)).Scan(&n))
			}
			must(t, g.Advance(ctx, resource, fence(9, "b")))
			check(fmt.Sprintf("%v, with a mark before: %t", level, seen), g, tx, resource)
			must(t, tx.Rollback())
			err = inTx(ctx, db, &sql.TxOptions{Isolation: level}, func(tx *sql.Tx) error { return g.Check(ctx, tx, resource, fence(5, "a")) })
			if !errors.Is(err, fencing.ErrStale) {
				t.Errorf("%s: the next transaction: %v; want ErrStale", resource, err)
			}
			must(t, inTx(ctx, db, &sql.TxOptions{Isolation: level}, func(tx *sql.Tx) error { return g.Check(ctx, tx, resource, fence(9, "b")) }))
		}
	}
}

// TestPostgresSerialization: a transaction whose snapshot is older than the mark's move is told 40001, and not that it is stale.
func TestPostgresSerialization(t *testing.T) {
	t.Parallel()
	postgres.eachSnapshot(t, postgres.dsn(t), func(name string, g *sqlguard.Guard, tx *sql.Tx, resource string) {
		err := g.Check(t.Context(), tx, resource, fence(5, "a"))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "40001" || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: a mark that moved after the snapshot: %v; want SQLSTATE 40001", name, err)
		}
	})
}

// TestMySQLSnapshot: what a transaction has read before does not hide the mark from it.
func TestMySQLSnapshot(t *testing.T) {
	t.Parallel()
	mariadb.eachSnapshot(t, mariadb.dsn(t)+"?innodb_snapshot_isolation=OFF", func(name string, g *sqlguard.Guard, tx *sql.Tx, resource string) {
		if err := g.Check(t.Context(), tx, resource, fence(5, "a")); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: a mark that moved after the snapshot: %v; want ErrStale", name, err)
		}
	})
}

// TestMariaDBSnapshotIsolation is for servers that have REPEATABLE READ fail as PostgreSQL's does, with an error of their own.
func TestMariaDBSnapshotIsolation(t *testing.T) {
	t.Parallel()
	dsn := mariadb.dsn(t) + "?innodb_snapshot_isolation=ON"
	mariadb.eachSnapshot(t, dsn, func(name string, g *sqlguard.Guard, tx *sql.Tx, resource string) {
		err := g.Check(t.Context(), tx, resource, fence(5, "a"))
		var changed *mysql.MySQLError
		repeatable := strings.HasPrefix(name, sql.LevelRepeatableRead.String())
		if repeatable && (!errors.As(err, &changed) || changed.Number != 1020 || errors.Is(err, fencing.ErrStale)) {
			t.Errorf("%s: a mark that moved after the snapshot: %v; want error 1020", name, err)
		} else if !repeatable && !errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: a mark that moved before Check: %v; want ErrStale", name, err)
		}
	})
	mariadb.suite(t, dsn)
}

// TestSQLiteBusy: a transaction that began by reading, before somebody else wrote, is told to begin again, and not that it is stale.
func TestSQLiteBusy(t *testing.T) {
	t.Parallel()
	g, db := sqlite.guard(t, "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=journal_mode(WAL)")
	ctx := t.Context()
	must(t, g.Advance(ctx, "r", fence(1, "before")))
	tx, err := db.Begin()
	must(t, err)
	defer tx.Rollback()
	var n int
	must(t, tx.QueryRow("SELECT COUNT(*) FROM "+marksOf(g)).Scan(&n))
	must(t, g.Advance(ctx, "r", fence(9, "b")))
	err = g.Check(ctx, tx, "r", fence(5, "a"))
	var busy *sqlitedriver.Error
	if !errors.As(err, &busy) || busy.Code() != sqlite3.SQLITE_BUSY_SNAPSHOT || errors.Is(err, fencing.ErrStale) {
		t.Errorf("a mark that moved after the snapshot: %v; want SQLITE_BUSY_SNAPSHOT", err)
	}
}

// TestTransactionsTakeTurns: a fence is decided on when the transaction in which another has passed is over. If that is rolled
// back, so is the mark.
func TestTransactionsTakeTurns(t *testing.T) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			g, db := d.guard(t, d.dsn(t))
			ctx := t.Context()
			for _, end := range []struct {
				name string
				do   func(*sql.Tx) error
				want error
			}{{"committed", (*sql.Tx).Commit, fencing.ErrStale}, {"rolled back", (*sql.Tx).Rollback, nil}} {
				tx, err := db.BeginTx(ctx, nil)
				must(t, err)
				must(t, g.Check(ctx, tx, end.name, fence(5, "a")))
				lower := make(chan error, 1)
				go func() { lower <- g.Advance(ctx, end.name, fence(4, "b")) }()
				select {
				case err := <-lower:
					t.Fatalf("%s: a fence was decided on, %v, before the transaction ended", end.name, err)
				case <-time.After(100 * time.Millisecond): // it waits
				}
				must(t, end.do(tx))
				if err := <-lower; !errors.Is(err, end.want) {
					t.Errorf("%s: a lower fence after the transaction: %v; want %v", end.name, err, end.want)
				}
			}
		})
	}
}

// TestPausedInTransaction: a holder that pauses after Check, in the middle of its transaction, keeps the next one waiting until the
// database ends that transaction; then what it has written is gone, and it learns so.
func TestPausedInTransaction(t *testing.T) {
	for _, c := range []struct {
		database
		limit string
	}{
		{postgres, "SET idle_in_transaction_session_timeout = 1000"}, // milliseconds
		{mariadb, "SET idle_transaction_timeout = 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g, db := c.guard(t, c.dsn(t))
			ctx, data := t.Context(), records{c.database, fmt.Sprintf("data_%d", rand.Uint64())}
			must(t, data.create(ctx, db))
			conn, err := db.Conn(ctx)
			must(t, err)
			defer conn.Close()
			_, err = conn.ExecContext(ctx, c.limit)
			must(t, err)
			tx, err := conn.BeginTx(ctx, nil)
			must(t, err)
			defer tx.Rollback()
			must(t, g.Check(ctx, tx, "r", fence(5, "a")))
			must(t, data.set(ctx, tx, "r", "a's"))

			must(t, inTx(ctx, db, nil, func(tx *sql.Tx) error { // waits for it
				if err := g.Check(ctx, tx, "r", fence(6, "b")); err != nil {
					return err
				}
				return data.set(ctx, tx, "r", "b's")
			}))
			if err := tx.Commit(); err == nil {
				t.Error("the transaction that was ended committed")
			}
			if got, err := data.get(ctx, db, "r"); err != nil || got != "b's" {
				t.Errorf("the value is %q, %v; want b's", got, err)
			}
		})
	}
}

// TestCreateTogether: of several processes that start together, none fails.
func TestCreateTogether(t *testing.T) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			db := d.connect(t, d.dsn(t))
			for range 5 {
				g := d.guardOf(t, db, fmt.Sprintf("marks_%d", rand.Uint64()))
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						if err := g.Create(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				must(t, g.Create(t.Context())) // and later, which does nothing
			}
		})
	}
}

// TestNoTable: a table that is not there is an error of the database, and lets nothing pass.
func TestNoTable(t *testing.T) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			g := d.guardOf(t, d.connect(t, d.dsn(t)), "no_such_table")
			if err := g.Advance(t.Context(), "r", fence(1, "a")); err == nil || errors.Is(err, fencing.ErrStale) {
				t.Errorf("Advance without a table: %v", err)
			}
			if err := g.Migrate(t.Context(), "r", "a", "b"); err == nil || errors.Is(err, fencing.ErrDomain) {
				t.Errorf("Migrate without a table: %v", err)
			}
		})
	}
}

// TestSchemaAndCase: a table may be in a schema, and keeps the case of its name.
func TestSchemaAndCase(t *testing.T) {
	t.Parallel()
	db := postgres.connect(t, postgres.dsn(t))
	schema := fmt.Sprintf("Schema_%d", rand.Uint64())
	_, err := db.Exec(`CREATE SCHEMA "` + schema + `"`)
	must(t, err)
	g := postgres.guardOf(t, db, schema+".Order")
	must(t, g.Create(t.Context()))
	must(t, g.Advance(t.Context(), "r", fence(1, "a")))
	var resource string
	must(t, db.QueryRow(`SELECT encode(resource, 'escape') FROM "`+schema+`"."Order"`).Scan(&resource))
	if resource != "r" {
		t.Errorf("the table has the resource %q", resource)
	}
}
