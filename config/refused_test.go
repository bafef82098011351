package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/paddock-go/paddock/config"
)

// TestHarmfulKeyOnOneRedis: the documented file with its settlements on a single Redis is refused, with the place and the reason.
func TestHarmfulKeyOnOneRedis(t *testing.T) {
	file := documented(t, "cost: harmful\n    backend: safe", "cost: harmful\n    backend: fast")
	_, err := config.Parse(t.Context(), "paddock.yaml", []byte(file), &config.Options{LookupEnv: env})
	if !errors.Is(err, config.ErrInvalid) {
		t.Fatalf("it was accepted: %v", err)
	}
	line := 1 + strings.Count(file[:strings.Index(file, "cost: harmful\n")], "\n")
	for what, says := range map[string]string{
		"pattern": `keys "settlement:*"`, "need": "a harmful key needs a Locker with exclusion by quorum or better and volatile fencing or better",
		"offer": "redis offers single server and volatile",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v\ndoes not say its %s: %s", err, what, says)
		}
	}
	if at := (*config.Error)(nil); !errors.As(err, &at) || at.Line != line {
		t.Errorf("%v\nis not at line %d", err, line)
	}
}
