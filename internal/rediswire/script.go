// Package rediswire is what backends on Redis have in common below their own logic: scripts that are sent by their digest,
// errors that will not pass, keys as hash tags, and subscriptions that come back.
package rediswire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"time"

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

// Did is the reply of a script that says 1 for what it did and 0 for what it found nothing to do for. Any other is an error.
func (c *Call) Did() (bool, error) {
	switch reply, err := c.Result(); {
	case err != nil:
		return false, err
	case reply == any(int64(1)):
		return true, nil
	case reply == any(int64(0)):
		return false, nil
	default:
		return false, Unexpected(reply)
	}
}

// Unexpected is the error for a reply that no script of ours gives: somebody else's proxy, or server.
func Unexpected(reply any) error { return fmt.Errorf("unexpected reply %.100q", fmt.Sprint(reply)) }

// Err is the error of Result.
func (c *Call) Err() error { return c.cmd.Err() }

// Fail sets the error of Result, of a call that cannot be sent.
func (c *Call) Fail(err error) { c.cmd.SetErr(err) }

// Key is the first key, by which the server is chosen.
func (c *Call) Key() string { return c.cmd.Args()[3].(string) }

// Add puts the call into a pipeline.
func (c *Call) Add(ctx context.Context, pipe redis.Pipeliner) { _ = pipe.Process(ctx, c.cmd) }

// Again prepares the call to be sent anew, to another server.
func (c *Call) Again(ctx context.Context) { c.cmd = redis.NewCmd(ctx, c.cmd.Args()...) }

// Whole prepares the call anew if the server did not know the script, to send all of its text, and reports whether.
func (c *Call) Whole(ctx context.Context) bool {
	if err := c.cmd.Err(); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return false
	}
	args := append([]any{"eval", c.script.text}, c.cmd.Args()[2:]...)
	for _, arg := range args {
		if counted, ok := arg.(*Counted); ok {
			counted.sent.CompareAndSwap(1, 0) // it did nothing; of several, one may still be under way
		}
	}
	c.cmd = redis.NewCmd(ctx, args...)
	return true
}

// Send makes calls: one by itself, several in a pipeline. Each then has its result.
func Send(ctx context.Context, client redis.UniversalClient, calls ...*Call) {
	for len(calls) > 0 {
		var err error
		if len(calls) == 1 {
			err = client.Process(ctx, calls[0].cmd)
		} else {
			pipe := client.Pipeline()
			for _, c := range calls {
				c.Add(ctx, pipe)
			}
			_, err = pipe.Exec(ctx)
		}
		if err == nil {
			return
		}
		Overdue(ctx)
		again := calls[:0:0]
		for _, c := range calls {
			if c.Whole(ctx) {
				again = append(again, c)
			}
		}
		calls = again
	}
}

// Overdue follows an error. It makes up for a client that ends a command at ctx's deadline, by a timer of its own, a moment
// before ctx ends: the caller looks at ctx to tell its end from a failure of the server.
func Overdue(ctx context.Context) {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
}

// Counted is a string as an argument of a Call that tells how often it was sent: go-redis repeats commands without a word, but
// it asks for the argument each time.
type Counted struct {
	Arg  string
	sent atomic.Int32
}

// Twice reports whether it was sent more than once, so that one of the commands may still be under way.
func (c *Counted) Twice() bool { return c.sent.Load() > 1 }

// Sent reports whether it was sent at all.
func (c *Counted) Sent() bool { return c.sent.Load() > 0 }

// MarshalBinary is what go-redis calls to send it.
func (c *Counted) MarshalBinary() ([]byte, error) {
	c.sent.Add(1)
	return []byte(c.Arg), nil
}

// String is for those who log commands.
func (c *Counted) String() string { return c.Arg }
