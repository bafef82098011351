package sqlguard

import (
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/paddock-go/paddock/fencing"
)

// Dialect is the SQL that a database speaks. There is no default.
type Dialect int

// The dialects.
const (
	PostgreSQL Dialect = iota + 1 // 9.5 or later, and what is like it
	MySQL                         // MySQL 5.7 or later, MariaDB 10.2 or later; InnoDB
	SQLite                        // 3.24 or later
)

// String returns the name of the constant.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// statements are what a Guard says.
type statements struct {
	create  string
	advance string // makes the fence the mark if it may pass; locks the mark in any case
	read    string // the locked mark
	lock    string // the mark, if there is one
	migrate string

	advanceArgs func(resource string, f fencing.Fence) []any
	counts      bool               // advance says by the rows that it affected whether the fence passed
	isolation   sql.IsolationLevel // of the Guard's own transactions
}

func (d Dialect) statements(table string) statements {
	quote := `"`
	if d == MySQL {
		quote = "`"
	}
	table = quote + strings.ReplaceAll(table, ".", quote+"."+quote) + quote
	s := statements{
		read:    "SELECT domain, token, owner FROM " + table + " WHERE resource = ?",
		lock:    "UPDATE " + table + " SET token = token WHERE resource = ?",
		migrate: "UPDATE " + table + " SET domain = ?, token = 0, owner = '' WHERE resource = ? AND domain = ?",
		advanceArgs: func(resource string, f fencing.Fence) []any {
			return []any{[]byte(resource), []byte(f.Domain), int64(f.Token), []byte(f.Owner)}
		},
		counts: true,
	}
	// One row is affected where the fence passes, none where the condition is not met.
	upsert := "INSERT INTO " + table + " AS mark (resource, domain, token, owner) VALUES (?, ?, ?, ?)" +
		" ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner" +
		" WHERE mark.domain = excluded.domain AND (mark.token < excluded.token" +
		" OR (mark.token = excluded.token AND mark.owner = excluded.owner))"
	switch d {
	case PostgreSQL:
		s.create = "CREATE TABLE IF NOT EXISTS " + table + " (resource BYTEA PRIMARY KEY, domain BYTEA NOT NULL," +
			" token BIGINT NOT NULL, owner BYTEA NOT NULL)"
		s.advance, s.read, s.lock, s.migrate = numbered(upsert), numbered(s.read), numbered(s.lock), numbered(s.migrate)
		s.isolation = sql.LevelReadCommitted // else a concurrent fence would be a serialization failure
	case MySQL:
		s.create = "CREATE TABLE IF NOT EXISTS " + table + " (resource VARBINARY(1024) PRIMARY KEY, domain VARBINARY(256) NOT NULL," +
			" token BIGINT NOT NULL, owner VARBINARY(256) NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
		// It counts rows that changed, or if the connection says so those that were found: neither tells the holder's second
		// write, which changes nothing, from a stale one. So the mark is read. Assignments are made in order: owner by the old
		// token.
		s.advance = "INSERT INTO " + table + " (resource, domain, token, owner) VALUES (?, ?, ?, ?)" +
			" ON DUPLICATE KEY UPDATE owner = IF(domain = ? AND token < ?, ?, owner), token = IF(domain = ? AND token < ?, ?, token)"
		s.advanceArgs = func(resource string, f fencing.Fence) []any {
			domain, token, owner := []byte(f.Domain), int64(f.Token), []byte(f.Owner)
			return []any{[]byte(resource), domain, token, owner, domain, token, owner, domain, token, token}
		}
		s.counts = false
		s.read += " FOR UPDATE" // what is committed, not what the transaction's snapshot has
	case SQLite:
		s.create = "CREATE TABLE IF NOT EXISTS " + table + " (resource BLOB NOT NULL PRIMARY KEY, domain BLOB NOT NULL," +
			" token INTEGER NOT NULL, owner BLOB NOT NULL) WITHOUT ROWID"
		s.advance = upsert
		s.migrate = strings.ReplaceAll(s.migrate, "''", "X''") // a text is no blob
	}
	return s
}

// numbered returns the statement with PostgreSQL's placeholders.
func numbered(statement string) string {
	parts := strings.Split(statement, "?")
	for i := range parts[1:] {
		parts[i] += fmt.Sprintf("$%d", i+1)
	}
	return strings.Join(parts, "")
}
