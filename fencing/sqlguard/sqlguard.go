// Package sqlguard is a fencing.Guard for data in a SQL database: PostgreSQL, MariaDB or MySQL, or SQLite, with any driver of
// database/sql.
//
//	guard, err := sqlguard.New(db, sqlguard.PostgreSQL, nil)
//	...
//	err = paddock.Do(ctx, locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
//		tx, err := db.BeginTx(ctx, nil)
//		if err != nil {
//			return err
//		}
//		defer tx.Rollback()
//		if err := guard.Check(ctx, tx, "invoice/4711", lease.Fence()); err != nil {
//			return err
//		}
//		if _, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = 4711"); err != nil {
//			return err
//		}
//		return tx.Commit()
//	})
//	if errors.Is(err, fencing.ErrStale) { // a later holder was here: stop, and undo nothing
//
// A resource is a name of the caller's choosing, for any rows that the lock protects. Check moves the mark in the caller's
// transaction: it is committed, or rolled back, together with what the caller writes. From Check to the transaction's end the
// mark is locked, so the transactions of two holders come one after the other. Whoever writes to the rows without the guard is
// not held back by it.
//
// Call Check before the transaction reads what its writes depend on, or make the work paddock.Guarded, which moves the mark
// before it begins: until the mark has moved an earlier holder may still write, and READ COMMITTED, or a snapshot of MySQL's, would have
// the transaction write over that without having seen it.
//
// # The table
//
// The marks are in a table of the caller's database, one row for each resource, never deleted. [Guard.SQL] is the statement that makes
// it, for those who have their schema under control, and [Guard.Create] runs it:
//
//	PostgreSQL    CREATE TABLE IF NOT EXISTS "paddock_marks_v1" (resource BYTEA PRIMARY KEY, domain BYTEA NOT NULL,
//	              token BIGINT NOT NULL, owner BYTEA NOT NULL)
//	MySQL         CREATE TABLE IF NOT EXISTS `paddock_marks_v1` (resource VARBINARY(1024) PRIMARY KEY, domain VARBINARY(256) NOT NULL,
//	              token BIGINT NOT NULL, owner VARBINARY(256) NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//	SQLite        CREATE TABLE IF NOT EXISTS "paddock_marks_v1" (resource BLOB NOT NULL PRIMARY KEY, domain BLOB NOT NULL,
//	              token INTEGER NOT NULL, owner BLOB NOT NULL) WITHOUT ROWID
//
// Names are bytes, since text would be compared by collations that know no case or trailing spaces, and PostgreSQL's has no
// NUL. People read them with encode(resource, 'escape') or CAST(resource AS TEXT).
//
// # What it needs of the database
//
// That it keeps what it has committed. A failover to a replica that lags loses marks together with the data beside them. It
// may be at any isolation level. Check is one statement on PostgreSQL and SQLite where the fence passes, otherwise two. It is tested on
// PostgreSQL 15, MariaDB 10.11 and SQLite 3 (modernc.org/sqlite); for MySQL it is written, and not tested.
//
//	PostgreSQL      Above READ COMMITTED a transaction whose snapshot is older than the mark's last move fails with SQLSTATE 40001. It is
//	                passed on, and is not fencing.ErrStale: run the transaction again, as always at these levels, and then it is decided.
//	MariaDB, MySQL  Locking reads see what is committed, at every level. With innodb_snapshot_isolation (the default from MariaDB 11.6.2)
//	                REPEATABLE READ fails with error 1020 as PostgreSQL does with 40001. Deadlocks with the caller's other locks are 1213, as always.
//	SQLite          Several processes may use the file. A transaction that began by reading and finds that somebody else has
//	                written is SQLITE_BUSY: begin as a writer (BEGIN IMMEDIATE; _txlock=immediate in a DSN), and set a busy_timeout.
//
// # A holder that pauses in the middle of its transaction
//
// It keeps the mark locked: the next holder's Check, or Advance, waits until the database ends the transaction or the paused one does. What
// the paused one has written is then either committed, before the next holder's, or gone. So nothing is out of order, but somebody waits: keep
// transactions short, and set idle_in_transaction_session_timeout on PostgreSQL or idle_transaction_timeout on MariaDB.
package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Table of the marks, which may be in a schema: letters, digits and underscores, with a dot between. It is quoted, so case
	// matters where the database says so. Defaults to "paddock_marks_v1".
	Table string
}

// Guard is a fencing.Guard. All methods may be called concurrently, Check on different transactions.
type Guard struct {
	db      *sql.DB
	dialect Dialect
	statements
}

// New returns a Guard for the database db, which stays the caller's to close. It sends nothing: see Create. Errors are
// fencing.ErrInvalid.
func New(db *sql.DB, dialect Dialect, opts *Options) (*Guard, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "paddock_marks_v1"
	}
	switch {
	case db == nil:
		return nil, fmt.Errorf("%w: sqlguard: the database is nil", fencing.ErrInvalid)
	case dialect < PostgreSQL || dialect > SQLite:
		return nil, fmt.Errorf("%w: sqlguard: no dialect %d", fencing.ErrInvalid, dialect)
	case !tableName.MatchString(o.Table):
		return nil, fmt.Errorf("%w: sqlguard: the Table %q; it has to be letters, digits and underscores", fencing.ErrInvalid, o.Table)
	}
	return &Guard{db: db, dialect: dialect, statements: dialect.statements(o.Table)}, nil
}

// SQL is the statement that makes the table, if it is not there.
func (g *Guard) SQL() string { return g.create }

// Create makes the table, if it is not there, also when several processes do so together. It needs the permission to; the other
// methods insert, read and update.
func (g *Guard) Create(ctx context.Context) error {
	_, err := g.db.ExecContext(ctx, g.create)
	if err != nil && ctx.Err() == nil { // PostgreSQL lets one of several that come together succeed; then the table is there
		_, err = g.db.ExecContext(ctx, g.create)
	}
	if err != nil {
		return fmt.Errorf("sqlguard: create: %w", err)
	}
	return nil
}

// Check shows f for resource within tx. When it is nil, f may pass, and the mark is f as soon as tx is committed; until tx ends nobody
// else's fence for resource passes. Errors are those of fencing.Guard's Advance: after any, roll back.
//
// An error of the database, such as a serialization failure, is passed on and is not ErrStale; begin again.
func (g *Guard) Check(ctx context.Context, tx *sql.Tx, resource string, f fencing.Fence) error {
	if err := fencing.Validate(resource, f); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("sqlguard: show %v for %q: %w", f, resource, err) }
	result, err := tx.ExecContext(ctx, g.advance, g.advanceArgs(resource, f)...)
	if err != nil {
		return fail(err)
	}
	if g.counts {
		switch n, err := result.RowsAffected(); {
		case err != nil:
			return fail(err)
		case n == 1:
			return nil
		}
	}
	seen, err := g.seen(ctx, tx, resource)
	switch {
	case err != nil:
		return fail(err)
	case seen == f:
		return nil
	}
	if err := fencing.Check(resource, seen, f); err != nil {
		return err
	}
	return fail(fmt.Errorf("the mark is %v", seen)) // somebody's trigger
}

// Advance is that of fencing.Guard, in a transaction of its own.
func (g *Guard) Advance(ctx context.Context, resource string, f fencing.Fence) error {
	return g.within(ctx, "advance", resource, func(tx *sql.Tx) error { return g.Check(ctx, tx, resource, f) })
}

// Migrate lets fences of the domain to pass for resource, whose mark is of the domain from: what an operator calls when the locks move to
// another service, and no holder of the old one is left. It is fencing.ErrDomain when the mark is of neither, and nil when there is
// nothing to do.
func (g *Guard) Migrate(ctx context.Context, resource, from, to string) error {
	if err := fencing.ValidateMigration(resource, from, to); err != nil {
		return err
	}
	return g.within(ctx, "migrate", resource, func(tx *sql.Tx) error {
		fail := func(err error) error { return fmt.Errorf("sqlguard: migrate %q: %w", resource, err) }
		if _, err := tx.ExecContext(ctx, g.lock, []byte(resource)); err != nil {
			return fail(err)
		}
		seen, err := g.seen(ctx, tx, resource)
		if err != nil {
			return fail(err)
		}
		move, err := fencing.Migration(resource, seen, from, to)
		if !move {
			return err
		}
		if _, err := tx.ExecContext(ctx, g.migrate, []byte(to), []byte(resource), []byte(from)); err != nil {
			return fail(err)
		}
		return nil
	})
}

// within runs do in a transaction, and commits if do is nil.
func (g *Guard) within(ctx context.Context, what, resource string, do func(*sql.Tx) error) error {
	tx, err := g.db.BeginTx(ctx, &sql.TxOptions{Isolation: g.isolation})
	if err != nil {
		return fmt.Errorf("sqlguard: %s %q: %w", what, resource, err)
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // there is nothing in it
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sqlguard: %s %q: %w", what, resource, err)
	}
	return nil
}

// seen reads the mark, which tx has locked.
func (g *Guard) seen(ctx context.Context, tx *sql.Tx, resource string) (fencing.Fence, error) {
	var domain, owner []byte
	var token int64
	err := tx.QueryRowContext(ctx, g.read, []byte(resource)).Scan(&domain, &token, &owner)
	if errors.Is(err, sql.ErrNoRows) {
		return fencing.Fence{}, nil
	}
	return fencing.Fence{Domain: string(domain), Token: fencing.Token(token), Owner: string(owner)}, err
}
