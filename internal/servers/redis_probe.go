package servers

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Sent counts what clients have sent to a Redis server to take, keep and give up locks and to hear of them, which is not what scripts
// call.
func Sent(tb testing.TB, probe redis.UniversalClient) int64 {
	tb.Helper()
	stats, err := probe.Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Error(err)
	}
	var n int64
	for line := range strings.Lines(stats) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		switch name {
		case "evalsha", "eval", "script|load", "subscribe", "wait":
			calls, _, _ := strings.Cut(rest, ",")
			i, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				tb.Errorf("INFO commandstats says %q", line)
			}
			n += i
		}
	}
	return n
}

// LocksLeft lists the keys of a prefix on a Redis server that its backends do not document to stay: what is neither a fence record nor
// the mark of an owner that was undone.
func LocksLeft(ctx context.Context, probe redis.UniversalClient, prefix string) ([]string, error) {
	var left []string
	keys := probe.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if key := keys.Val(); !strings.HasSuffix(key, "}:fence") && !strings.Contains(key, "}:undone:") {
			left = append(left, key)
		}
	}
	return left, keys.Err()
}
