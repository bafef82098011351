package main

import (
	"os"
	"strings"
	"testing"

	"github.com/paddock-go/paddock/internal/servers"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(processEnv); arg != "" {
		os.Exit(process(arg))
	}
	os.Exit(m.Run())
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	play(t)
}

func TestOnRedis(t *testing.T) {
	t.Parallel()
	play(t, "-url", "redis://"+servers.Redis(t).Addr)
}

// play runs the program, which looks at the balances itself.
func play(t *testing.T, args ...string) {
	var stdout, stderr strings.Builder
	if status := run(args, &stdout, &stderr); status != 0 {
		t.Errorf("status %d: %s%s", status, stdout.String(), stderr.String())
	}
	for _, want := range []string{"A writes 110\n", "B writes 110\n", "A finds out that its lease was lost", "A writes 110, and is refused", "A writes 120\n"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, stdout.String())
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nonsense"}, {"-url", "http://h"}, {"-url", "redis://h/x"}, {"-url", "redis://127.0.0.1:1"}} {
		var stdout, stderr strings.Builder
		if status := run(args, &stdout, &stderr); status == 0 || stderr.Len() == 0 {
			t.Errorf("paused %q: status %d, and it says %q", args, status, stderr.String())
		}
	}
}
