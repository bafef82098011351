package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "hunter2")
	var out, errs bytes.Buffer
	if status := check([]string{"../../docs/paddock.yaml"}, &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	for _, says := range []string{"settlement:*", "harmful", "safe (etcd)", "consensus", "fast (redis)"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%s\nwant it to say %s", out.String(), says)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("backends: {r: 'redis://:${REDIS_PASSWORD}@h'}\nkeys:\n  - {pattern: 'pay:*', ttl: 1m, cost: harmful, backend: r}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	errs.Reset()
	status := check([]string{"-q", bad}, &out, &errs)
	if status != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), bad+":3:") || strings.Contains(errs.String(), "hunter2") {
		t.Errorf("status %d, printed %q and %q", status, out.String(), errs.String())
	}
	if status := check(nil, &out, &errs); status != exitUsage {
		t.Errorf("without a file: status %d", status)
	}
}
