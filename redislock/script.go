package redislock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

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
	c.cmd = redis.NewCmd(ctx, args...)
	return true
}

// eval makes one call that needs no replicas.
func (s *server) eval(ctx context.Context, c *call) (any, error) {
	err := s.client.Process(ctx, c.cmd)
	if err != nil && c.whole(ctx) {
		err = s.client.Process(ctx, c.cmd)
	}
	return c.cmd.Val(), err
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
		_, _ = pipe.Exec(ctx) // each command has its own error
		again := calls[:0:0]
		for _, c := range calls {
			if c.whole(ctx) {
				again = append(again, c)
			}
		}
		calls = again
	}
}
