package redislock

import (
	"context"
	_ "embed"

	"github.com/paddock-go/paddock/internal/rediswire"
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

	acquire = rediswire.NewScript(acquireLua)
	claim   = rediswire.NewScript(claimLua)
	release = rediswire.NewScript(releaseLua)
	undo    = rediswire.NewScript(undoLua)
	renew   = rediswire.NewScript(renewLua)
	inspect = rediswire.NewScript(inspectLua)
)

// eval makes one call that needs no replicas.
func (s *server) eval(ctx context.Context, c *rediswire.Call) (any, error) {
	rediswire.Send(ctx, s.client, c)
	return c.Result()
}

// did makes one call, to a script that says whether it found what it is about.
func (s *server) did(ctx context.Context, c *rediswire.Call) (bool, error) {
	rediswire.Send(ctx, s.client, c)
	return c.Did()
}

// send makes calls, in one round trip to each server, and has replicas confirm them if Options say so. Each call then has its
// result. short has an error for those that were carried out and that too few replicas have.
func (s *server) send(ctx context.Context, calls ...*rediswire.Call) (short map[*rediswire.Call]error) {
	if s.replicas > 0 {
		return s.sendConfirmed(ctx, calls)
	}
	rediswire.Send(ctx, s.client, calls...)
	return nil
}
