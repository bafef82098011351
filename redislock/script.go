package redislock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed acquire.lua
	acquireLua string
	//go:embed claim.lua
	claimLua string
	//go:embed release.lua
	releaseLua string
	//go:embed undo.lua
	undoLua string
	//go:embed renew.lua
	renewLua string
	//go:embed inspect.lua
	inspectLua string

	acquire = newScript(acquireLua)
	claim   = newScript(claimLua)
	release = newScript(releaseLua)
	undo    = newScript(undoLua)
	renew   = newScript(renewLua)
	inspect = newScript(inspectLua)
)

// script is known to servers by its digest, once one of them has seen it whole.
type script struct {
	text   string
	digest any // a string; converted once
}

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text)) // what EVALSHA wants
	return &script{text: text, digest: hex.EncodeToString(sum[:])}
}

// owner is the owner as an argument. go-redis repeats commands without a word; but it asks for the argument each time.
type owner struct {
	name string
	sent atomic.Int32
}

// MarshalBinary is what go-redis calls to send the argument.
func (o *owner) MarshalBinary() ([]byte, error) {
	o.sent.Add(1)
	return []byte(o.name), nil
}

// String is for those who log commands.
func (o *owner) String() string { return o.name }

// twice reports whether the owner was sent more than once, so that one of the commands may still be under way.
func (o *owner) twice() bool { return o.sent.Load() > 1 }

// call is one execution of a script.
type call struct {
	script *script
	cmd    *redis.Cmd
	short  error // carried out, but too few replicas have it
}

// call prepares an execution; args are the number of keys, the keys and the arguments.
func (s *script) call(ctx context.Context, args ...any) *call {
	all := make([]any, 2, 2+len(args))
	all[0], all[1] = "evalsha", s.digest
	return &call{script: s, cmd: redis.NewCmd(ctx, append(all, args...)...)}
}

func (c *call) err() error { return c.cmd.Err() }

// key that the server is chosen by.
func (c *call) key() string { return c.cmd.Args()[3].(string) }

// whole prepares the call anew if the server did not know the script, to send all of its text, and reports whether.
func (c *call) whole(ctx context.Context) bool {
	if err := c.err(); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return false
	}
	args := append([]any{"eval", c.script.text}, c.cmd.Args()[2:]...)
	for _, arg := range args {
		if o, ok := arg.(*owner); ok {
			o.sent.Store(0) // what there was did nothing
		}
	}
	c.cmd = redis.NewCmd(ctx, args...)
	return true
}

// eval makes one call that needs no replicas.
func (s *server) eval(ctx context.Context, c *call) (any, error) {
	err := s.client.Process(ctx, c.cmd)
	if err != nil && c.whole(ctx) {
		err = s.client.Process(ctx, c.cmd)
	}
	if err != nil {
		overdue(ctx)
	}
	return c.cmd.Val(), err
}

// overdue makes up for a client that ends a command at ctx's deadline, by a timer of its own, a moment before ctx ends: the caller
// looks at ctx to tell its end from a failure of the server.
func overdue(ctx context.Context) {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
}

// send makes calls, in one round trip to each server, and has replicas confirm them if Options say so. Each call then has
// its reply or error.
func (s *server) send(ctx context.Context, calls ...*call) {
	if s.replicas > 0 {
		s.sendConfirmed(ctx, calls)
		return
	}
	if len(calls) == 1 {
		_, _ = s.eval(ctx, calls[0])
		return
	}
	for len(calls) > 0 {
		pipe := s.client.Pipeline()
		for _, c := range calls {
			_ = pipe.Process(ctx, c.cmd)
		}
		if _, err := pipe.Exec(ctx); err != nil { // each command has its own
			overdue(ctx)
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
