package paddock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testRef = regexp.MustCompile("`([a-z/]+) (Test[A-Za-z0-9]+|Rule[0-9]+/[A-Za-z]+|Wire/[A-Za-z]+|Do/[A-Za-z]+)`")
	docRef  = regexp.MustCompile("`([a-z/]+)` says so")
)

// Every row of docs/lessons.md names a test that holds it, or the package whose documentation says what cannot be helped. What it
// names has to be there.
func TestLessonsAreHeld(t *testing.T) {
	page, err := os.ReadFile("docs/lessons.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	source := func(dir string) string {
		if s, ok := sources[dir]; ok {
			return s
		}
		var all strings.Builder
		files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		sources[dir] = all.String()
		return sources[dir]
	}
	rows := 0
	for line := range strings.SplitSeq(string(page), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| What happened") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		held := cells[len(cells)-1]
		refs := testRef.FindAllStringSubmatch(held, -1)
		if len(cells) != 3 || (len(refs) == 0 && !docRef.MatchString(held)) {
			t.Errorf("a row that names neither a test nor a page: %s", line)
		}
		for _, ref := range refs {
			dir, name := ref[1], ref[2]
			if ref[1] == "paddock" {
				dir = "."
			}
			want := "func " + name + "("
			if !strings.HasPrefix(name, "Test") {
				want = `"` + name + `"`
			}
			if !strings.Contains(source(dir), want) {
				t.Errorf("%s has no %s, which is to hold: %s", dir, name, cells[0])
			}
		}
		for _, ref := range docRef.FindAllStringSubmatch(held, -1) {
			if source(ref[1]) == "" {
				t.Errorf("there is no package %s, which is to say: %s", ref[1], cells[0])
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were found: has the page changed its form?", rows)
	}
}
