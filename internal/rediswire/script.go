// Package rediswire is what backends on Redis have in common below their own logic: scripts that are sent by their digest,
// errors that will not pass, keys as hash tags, and subscriptions that come back.
package rediswire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// Script is known to a server by its digest, once that server has seen it whole. Safe for concurrent use.
type Script struct {
	text   string
	digest any // a string; converted once
}

// NewScript returns the script with this text.
func NewScript(text string) *Script {
	sum := sha1.Sum([]byte(text)) // what EVALSHA wants
	return &Script{text: text, digest: hex.EncodeToString(sum[:])}
}

// Call is one execution of a script.
type Call struct {
	script *Script
	cmd    *redis.Cmd
}

// Call prepares an execution. args are the number of keys, the keys and the arguments.
func (s *Script) Call(ctx context.Context, args ...any) *Call {
	all := make([]any, 2, 2+len(args))
	all[0], all[1] = "evalsha", s.digest
	return &Call{script: s, cmd: redis.NewCmd(ctx, append(all, args...)...)}
}

// Result is the reply, once sent.
func (c *Call) Result() (any, error) { return c.cmd.Val(), c.cmd.Err() }

// whole prepares the call anew if the server did not know the script, to send all of its text, and reports whether.
func (c *Call) whole(ctx context.Context) bool {
	if err := c.cmd.Err(); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return false
	}
	args := append([]any{"eval", c.script.text}, c.cmd.Args()[2:]...)
	c.cmd = redis.NewCmd(ctx, args...)
	return true
}

// Send makes calls: one by itself, several in a pipeline. Each then has its result.
func Send(ctx context.Context, client redis.UniversalClient, calls ...*Call) {
	for len(calls) > 0 {
		if len(calls) == 1 {
			_ = client.Process(ctx, calls[0].cmd) // which has the error too
		} else {
			pipe := client.Pipeline()
			for _, c := range calls {
				_ = pipe.Process(ctx, c.cmd)
			}
			_, _ = pipe.Exec(ctx) // each command has its own error
		}
		again := calls[:0:0]
		for _, c := range calls {
			if c.whole(ctx) {
				again = append(again, c)
			}
		}
		calls = again
	}
}
