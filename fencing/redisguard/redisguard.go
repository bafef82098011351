// Package redisguard is a fencing.Guard for data in Redis: 6.2 or later, or Valkey; standalone, behind Sentinel, or a Cluster.
//
//	guard, err := redisguard.New(client, nil)
//	...
//	err = paddock.Do(ctx, locker, "cart/7", nil, func(ctx context.Context, lease *paddock.Lease) error {
//		return guard.Set(ctx, lease.Fence(), "cart/7", cart, time.Hour)
//	})
//	if errors.Is(err, fencing.ErrStale) { // a later holder was here: stop, and undo nothing
//
// The resource is the key that is written, under the name that everybody else knows it by. Set, HSet and Del compare the fence
// with the mark and write in one script, so that nothing comes between; Advance and Migrate touch the mark alone. Whoever
// writes to the key without the guard is not held back by it.
//
// # What it needs of the server
//
//	memory      A server that loses the mark lets the next fence pass, whatever its token. A mark is lost together with the data
//	            beside it: when a server without persistence restarts, when a replica is promoted that has neither yet, at
//	            FLUSHALL. What an earlier holder then writes it writes to what earlier holders left.
//	eviction    Marks have no TTL. The policies noeviction and volatile-* leave them alone; the policies allkeys-* evict them
//	            like anything else, and must not be used for data with a guard.
//	replicas    The guard writes at every call, also when the mark does not change, and a replica refuses that: a client that
//	            was connected to one by mistake gets READONLY, never a mark that is behind.
//	permission  EVALSHA and EVAL on the key and on its mark, and the commands HMGET, HSET, and SET or DEL.
//
// Tokens of redislock follow the server's clock, so they are still higher after a loss of its memory than those before.
//
// # Keys, version 1
//
//	<prefix>:v1:mark:{<tag>}:<key>    a hash of domain, token (19 digits) and owner; never expires
//
// The tag puts the mark into the slot of the key, so that a Cluster has both on one node: it is the key's own hash tag or, without
// one, the whole key, or, when that has a } in it and cannot be a tag, the least number in the same slot.
//
// A mark stays when its key is deleted or expires. To be rid of it delete it as well, once no holder of an old lease can be left.
//
// # What a caller may see
//
// While a slot of a Cluster migrates, a script cannot have a key that does not exist together with its mark. Writes to such a key
// are told TRYAGAIN until the slot has moved; the client repeats them a few times and returns that in the end. Advance goes on.
//
// A call that fails without an answer may still take effect, later too: go-redis gives up before the server does. It is then a write
// of its holder, which the guard refuses if it comes after the next holder's. A holder that does not know what became of a write
// repeats that write, or stops.
package redisguard

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix of the marks' keys: at most 128 bytes of UTF-8 without braces. Defaults to "paddock".
	Prefix string
}

const maxPrefix = 128 // bytes

// Guard is a fencing.Guard. All methods may be called concurrently.
type Guard struct {
	client redis.UniversalClient
	prefix string
}

// New returns a Guard for what client is connected to, which stays the caller's to close. It sends nothing. Errors are
// fencing.ErrInvalid.
//
// With ContextTimeoutEnabled a call ends at its context's deadline; without, go-redis waits for its own time limits.
func New(client redis.UniversalClient, opts *Options) (*Guard, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = "paddock"
	}
	if client == nil || reflect.ValueOf(client).IsNil() {
		return nil, fmt.Errorf("%w: redisguard: the client is nil", fencing.ErrInvalid)
	}
	if _, ok := client.(*redis.Ring); ok {
		return nil, fmt.Errorf("%w: redisguard: a redis.Ring sends the keys of a server that it cannot reach to another, where no "+
			"mark is", fencing.ErrInvalid)
	}
	if len(o.Prefix) > maxPrefix || !utf8.ValidString(o.Prefix) || strings.ContainsAny(o.Prefix, "{}") {
		return nil, fmt.Errorf("%w: redisguard: the Prefix %q; it has to be at most %d bytes of UTF-8 without braces",
			fencing.ErrInvalid, o.Prefix, maxPrefix)
	}
	return &Guard{client: client, prefix: o.Prefix + ":v1:mark:{"}, nil
}

var (
	//go:embed write.lua
	writeLua string
	//go:embed migrate.lua
	migrateLua string

	write   = rediswire.NewScript(writeLua)
	migrate = rediswire.NewScript(migrateLua)
)

// Advance is that of fencing.Guard, for the key resource.
func (g *Guard) Advance(ctx context.Context, resource string, f fencing.Fence) error {
	return g.write(ctx, "advance", resource, f)
}

// Set shows f for key and sets key to value, which is encoded as go-redis does, if f may pass. ttl is rounded to milliseconds;
// 0 is for ever, and redis.KeepTTL keeps what is left of the key's. Errors are those of fencing.Guard.
func (g *Guard) Set(ctx context.Context, f fencing.Fence, key string, value any, ttl time.Duration) error {
	switch {
	case ttl == 0:
		return g.write(ctx, "set", key, f, "SET", value)
	case ttl == redis.KeepTTL:
		return g.write(ctx, "set", key, f, "SET", value, "KEEPTTL")
	case ttl < time.Millisecond:
		return fmt.Errorf("%w: redisguard: set %q: a TTL of %v; it has to be at least 1 ms, 0 or redis.KeepTTL", fencing.ErrInvalid, key, ttl)
	}
	return g.write(ctx, "set", key, f, "SET", value, "PX", ttl.Milliseconds())
}

// HSet shows f for key and sets fields of the hash key, given as field, value, field, value and so on, if f may pass.
func (g *Guard) HSet(ctx context.Context, f fencing.Fence, key string, fields ...any) error {
	if len(fields) == 0 || len(fields)%2 != 0 {
		return fmt.Errorf("%w: redisguard: hset %q: %d fields and values; they go in pairs", fencing.ErrInvalid, key, len(fields))
	}
	return g.write(ctx, "hset", key, f, append([]any{"HSET"}, fields...)...)
}

// Del shows f for key and deletes it if f may pass, whether it exists or not. The mark stays.
func (g *Guard) Del(ctx context.Context, f fencing.Fence, key string) error {
	return g.write(ctx, "del", key, f, "DEL")
}

// write shows f for key and, if it may pass, runs the command on key.
func (g *Guard) write(ctx context.Context, what, key string, f fencing.Fence, command ...any) error {
	if err := fencing.Validate(key, f); err != nil {
		return err
	}
	args := append([]any{"2", g.mark(key), key}, f.Domain, fmt.Sprintf("%019d", f.Token), f.Owner)
	if len(command) == 0 { // which works while the slot migrates
		args = append([]any{"1", g.mark(key)}, args[3:]...)
	}
	seen, err := g.run(ctx, what, key, write.Call(ctx, append(args, command...)...))
	if err != nil || seen == f {
		return err
	}
	if err := fencing.Check(key, seen, f); err != nil {
		return err
	}
	return fmt.Errorf("redisguard: %s %q: %w: the mark is %v after %v", what, key, errReply, seen, f)
}

// Migrate lets fences of the domain to pass for resource, whose mark is of the domain from: what an operator calls when the locks move to
// another service, and no holder of the old one is left. It is fencing.ErrDomain when the mark is of neither, and nil when there is
// nothing to do.
func (g *Guard) Migrate(ctx context.Context, resource, from, to string) error {
	if err := fencing.ValidateMigration(resource, from, to); err != nil {
		return err
	}
	seen, err := g.run(ctx, "migrate", resource, migrate.Call(ctx, "1", g.mark(resource), from, to))
	if err != nil {
		return err
	}
	_, err = fencing.Migration(resource, seen, from, to)
	return err
}

var errReply = errors.New("a reply that no script of ours gives")

// run makes a call whose reply is the mark.
func (g *Guard) run(ctx context.Context, what, key string, c *rediswire.Call) (fencing.Fence, error) {
	fail := func(err error) (fencing.Fence, error) {
		return fencing.Fence{}, fmt.Errorf("redisguard: %s %q: %w", what, key, err)
	}
	if ctx.Err() != nil {
		return fail(ctx.Err())
	}
	rediswire.Send(ctx, g.client, c)
	reply, err := c.Result()
	switch {
	case err != nil && ctx.Err() != nil:
		return fail(errors.Join(ctx.Err(), err))
	case err != nil:
		return fail(err)
	}
	seen, ok := mark(reply)
	if !ok {
		return fail(fmt.Errorf("%w: %.100q", errReply, fmt.Sprint(reply)))
	}
	return seen, nil
}

// mark reads a mark that a script has answered with; no fields are no mark.
func mark(reply any) (seen fencing.Fence, ok bool) {
	fields, ok := reply.([]any)
	if ok && len(fields) == 0 {
		return seen, true
	}
	var text [3]string
	if len(fields) != len(text) {
		return seen, false
	}
	for i, field := range fields {
		if text[i], ok = field.(string); !ok {
			return seen, false
		}
	}
	token, err := strconv.ParseUint(text[1], 10, 63)
	return fencing.Fence{Domain: text[0], Token: fencing.Token(token), Owner: text[2]}, err == nil && text[0] != ""
}
