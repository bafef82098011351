package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// example is the module whose code docs/backend.md shows.
var example = filepath.Join("..", "docs", "backend")

// TestPageShowsTheExample: the page has the code that is tested, whole, and the code is as short as the page says that one can
// be, by exported names alone.
func TestPageShowsTheExample(t *testing.T) {
	code, err := os.ReadFile(filepath.Join(example, "maplock.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "backend.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```go\n"+string(code)+"```\n") {
		t.Error("docs/backend.md does not show docs/backend/maplock.go as it is")
	}
	if n := strings.Count(string(code), "\n"); n > 150 {
		t.Errorf("maplock.go has %d lines; a backend should be possible in 150", n)
	}
	if strings.Contains(string(code), "/internal/") {
		t.Error("maplock.go imports what its readers cannot")
	}
}

// TestExampleConforms runs the tests of that module, which are the suite.
func TestExampleConforms(t *testing.T) {
	t.Parallel()
	args := []string{"test", "-count=1"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-race" && s.Value == "true" {
				args = append(args, "-race")
			}
		}
	}
	cmd := exec.Command("go", append(args, "-v", "./...")...)
	cmd.Dir = example
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	for _, want := range []string{"--- PASS: TestConformance ", "--- PASS: TestConformanceByNetwork ", "Rule05/RequestsDelayedPastCleanUp"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output does not have %q:\n%s", want, out)
		}
	}
	network := string(out)[strings.Index(string(out), "--- PASS: TestConformanceByNetwork "):]
	if strings.Contains(network, "--- SKIP") {
		t.Errorf("behind a link that can be spoiled nothing needs to be skipped:\n%s", network)
	}
}
