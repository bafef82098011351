package servertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/paddock-go/paddock/fencing/sqlguard"
	"github.com/paddock-go/paddock/internal/servers"
)

// database is a kind of database as the tests use it.
type database struct {
	name    string
	dialect sqlguard.Dialect
	driver  string
	dsn     func(tb testing.TB) string
	blob    string // the type of columns of bytes
}

var (
	postgres  = database{"PostgreSQL", sqlguard.PostgreSQL, "pgx", postgresDSN, "BYTEA"}
	mariadb   = database{"MariaDB", sqlguard.MySQL, "mysql", mariadbDSN, "VARBINARY(1024)"}
	sqlite    = database{"SQLite", sqlguard.SQLite, "sqlite", sqliteDSN, "BLOB"}
	databases = []database{postgres, mariadb, sqlite}
)

func postgresDSN(tb testing.TB) string {
	return "postgres://postgres@" + servers.SharedPostgres(tb) + "/postgres?sslmode=disable"
}

func mariadbDSN(tb testing.TB) string { return "root@tcp(" + servers.SharedMariaDB(tb) + ")/paddock" }

func sqliteDSN(tb testing.TB) string {
	return "file:" + filepath.Join(tb.TempDir(), "db") +
		"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
}

// connect returns a pool of connections, which the test closes.
func (d database) connect(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(d.driver, dsn)
	must(tb, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { db.Close() })
	return db
}

// guard returns a Guard with a table of its own.
func (d database) guard(tb testing.TB, dsn string) (*sqlguard.Guard, *sql.DB) {
	tb.Helper()
	db := d.connect(tb, dsn)
	g := d.guardOf(tb, db, fmt.Sprintf("marks_%d", rand.Uint64()))
	must(tb, g.Create(tb.Context()))
	return g, db
}

func (d database) guardOf(tb testing.TB, db *sql.DB, table string) *sqlguard.Guard {
	tb.Helper()
	g, err := sqlguard.New(db, d.dialect, &sqlguard.Options{Table: table})
	must(tb, err)
	return g
}

// place numbers the placeholders of a statement where that has to be.
func (d database) place(statement string) string {
	if d.dialect != sqlguard.PostgreSQL {
		return statement
	}
	parts := strings.Split(statement, "?")
	for i := range parts[1:] {
		parts[i] += fmt.Sprint("$", i+1)
	}
	return strings.Join(parts, "")
}

// records is an application's own table: a value for each resource.
type records struct {
	database
	table string
}

// create may be called by several together: then PostgreSQL fails all but one, and the table is there.
func (r records) create(ctx context.Context, db *sql.DB) (err error) {
	for range 2 {
		_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+r.table+" (resource "+r.blob+" PRIMARY KEY, value VARCHAR(100) NOT NULL)")
		if err == nil {
			break
		}
	}
	return err
}

func (r records) set(ctx context.Context, tx *sql.Tx, resource, value string) error {
	insert := "INSERT INTO " + r.table + " (resource, value) VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET value = excluded.value"
	if r.dialect == sqlguard.MySQL { // where a delete of what is not there would lock the gap, against other resources' inserts
		insert = "INSERT INTO " + r.table + " (resource, value) VALUES (?, ?) ON DUPLICATE KEY UPDATE value = VALUES(value)"
	}
	_, err := tx.ExecContext(ctx, r.place(insert), []byte(resource), value)
	return err
}

func (r records) get(ctx context.Context, db *sql.DB, resource string) (value string, err error) {
	err = db.QueryRowContext(ctx, r.place("SELECT value FROM "+r.table+" WHERE resource = ?"), []byte(resource)).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

// inTx runs do in a transaction, and commits if do is nil.
func inTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
