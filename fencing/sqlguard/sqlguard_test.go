package sqlguard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/paddock-go/paddock/fencing"
)

// What a Guard does to a database is tested where the drivers are, in fencing/servertest.

// away is a database that cannot be reached.
type away struct{}

var errAway = errors.New("away")

func (away) Connect(context.Context) (driver.Conn, error) { return nil, errAway }
func (away) Driver() driver.Driver                        { return nil }

func TestNew(t *testing.T) {
	db := sql.OpenDB(away{})
	defer db.Close()
	for name, err := range map[string]error{
		"no database":     second(New(nil, PostgreSQL, nil)),
		"no dialect":      second(New(db, 0, nil)),
		"another dialect": second(New(db, SQLite+1, nil)),
	} {
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", name, err)
		}
	}
	for _, table := range []string{"a b", "a;", `a"`, "a`", "a.b.c", ".a", "a.", "1a", "ä", "a-b", strings.Repeat("a", 64)} {
		if _, err := New(db, SQLite, &Options{Table: table}); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("New with the table %q: %v; want ErrInvalid", table, err)
		}
	}
	for _, table := range []string{"a", "_", "A_1", "schema.order", strings.Repeat("a", 63)} {
		if _, err := New(db, SQLite, &Options{Table: table}); err != nil {
			t.Errorf("New with the table %q: %v", table, err)
		}
	}
}

// TestUnreachable: the database's own error is in the chain, and arguments are looked at first.
func TestUnreachable(t *testing.T) {
	db := sql.OpenDB(away{})
	defer db.Close()
	g, err := New(db, PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := fencing.Fence{Domain: "d", Token: 1, Owner: "a"}
	for name, err := range map[string]error{
		"Create":  g.Create(t.Context()),
		"Advance": g.Advance(t.Context(), "r", f),
		"Migrate": g.Migrate(t.Context(), "r", "a", "b"),
	} {
		if !errors.Is(err, errAway) || !strings.HasPrefix(err.Error(), "sqlguard: ") {
			t.Errorf("%s: %v; want the database's error", name, err)
		}
	}
	f.Token = 0
	for name, err := range map[string]error{
		"Check":   g.Check(t.Context(), nil, "r", f),
		"Migrate": g.Migrate(t.Context(), "r", "a", "a"),
	} {
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("%s of what is invalid: %v; want ErrInvalid", name, err)
		}
	}
}

// TestDocumentedTables: the page shows the statements as they are.
func TestDocumentedTables(t *testing.T) {
	db := sql.OpenDB(away{})
	defer db.Close()
	source, err := os.ReadFile("sqlguard.go")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(strings.ReplaceAll(string(source), "//", "")), " ")
	for d := PostgreSQL; d <= SQLite; d++ {
		g, err := New(db, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, d.String()+" "+g.SQL()) {
			t.Errorf("the package's documentation does not show the statement for %v: %s", d, g.SQL())
		}
	}
}

func second(_ *Guard, err error) error { return err }
