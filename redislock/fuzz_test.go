package redislock

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/internal/garbled"
)

// FuzzReplies: what no script of ours answers is an error, never a grant, a token of zero, or the end of a lease.
func FuzzReplies(f *testing.F) {
	owner := uuid.NewString()
	for _, reply := range []any{
		0, 1, -1, -2, -3, -4, int(math.MinInt64), int(math.MaxInt64), "", "0", "0000000000000000000", "9223372036854775807", "9223372036854775808", "-1",
		nil, garbled.Failure("OOM command not allowed"), garbled.Failure("TRYAGAIN"), garbled.Failure("WRONGTYPE "),
		[]any{}, []any{owner, 1000, owner, "0000000000000000007", "1", "note"}, []any{nil, -2, nil, nil, nil, nil},
		[]any{"", 0, "", "", "", ""}, []any{1, 1, 1, 1, 1, 1}, []any{owner + "#3", 1000, owner, "-", "-", 7}, []any{owner, -1, nil, nil, nil, nil},
	} {
		f.Add(garbled.Bytes(reply))
	}
	replies := garbled.New()
	s := &server{client: replies.Client, domain: "d", keys: "p:v1:{", channel: "c", process: "me"}
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := garbled.Reply(data)
		replies.Answer(reply)
		ctx, a := t.Context(), attempt("k", time.Minute)
		g, err := s.Try(ctx, a)
		var held *paddock.HeldError
		switch {
		case err == nil && (!g.Token.Valid() || g.TTL != a.TTL || g.Domain != "d"):
			t.Errorf("Try, answered with %v: %+v", reply, g)
		case errors.As(err, &held) && held.RetryAfter <= 0:
			t.Errorf("Try, answered with %v: %+v", reply, held)
		}
		zero, one := reply == any(int64(0)), reply == any(int64(1))
		if err := s.Undo(ctx, a); (err == nil) != (zero || one) {
			t.Errorf("Undo, answered with %v: %v", reply, err)
		}
		for _, a.Slow = range []bool{false, true} {
			a.State = &lease{lock: "lock", fence: "fence"}
			if err := s.Release(ctx, a); (err == nil) != one || errors.Is(err, paddock.ErrLost) != zero {
				t.Errorf("Release, answered with %v: %v", reply, err)
			}
		}
		batch := []backend.Renewal{{Attempt: a, TTL: time.Minute}, {Attempt: a, TTL: time.Second, Shorten: true}}
		for _, batch := range [][]backend.Renewal{batch, batch[:1]} {
			s.Renew(ctx, batch)
			if err := batch[0].Err; (err == nil) != one || errors.Is(err, paddock.ErrLost) != zero {
				t.Errorf("Renew, answered with %v: %v", reply, err)
			}
			batch[0].Err = nil
		}
		h, err := s.inspect(ctx, "k")
		if err == nil && (uuid.Validate(h.Owner) != nil || h.ExpiresIn < 0 || h.Token > math.MaxInt64) {
			t.Errorf("inspect, answered with %v: %+v", reply, h)
		}
	})
}

// FuzzOpen: a URL that cannot work is ErrInvalid, and whatever it is, its password is not shown.
func FuzzOpen(f *testing.F) {
	const secret = "hunter2"
	for _, rest := range []string{
		"@h/0", "@h:1,h:2/0?prefix=a", "/x@h", "?x@h", "#x@h", "@ss/word@h/0", "@ss?word@h", "%zz@h", "%40@h", ":@h", " @h", "\u00e9@h", "", ":1", "@[::1]:2",
		"@h?pool_size=2000000000", "@h?min_idle_conns=2000000000", "@h?dial_timeout=1e9", "@h?db=1", "@h?master_name=m", "@h?prefix={}", "@h?a;b",
	} {
		f.Add(rest)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		if strings.Contains(rest, secret) {
			return
		}
		for _, begin := range []string{"redis://u:", "rediss+cluster://:", "redis+sentinel://u:"} {
			l, err := paddock.Open(t.Context(), begin+secret+rest, nil)
			switch {
			case err == nil:
				if printed := fmt.Sprintf("%v %+v", l, l); strings.Contains(printed, secret) {
					t.Errorf("the Locker of %q shows the password: %s", begin+secret+rest, printed)
				}
				_ = l.Close()
			case !errors.Is(err, paddock.ErrInvalid):
				t.Errorf("Open(%q): %v; want ErrInvalid", begin+secret+rest, err)
			case strings.Contains(err.Error(), secret):
				t.Errorf("Open(%q) shows the password: %v", begin+secret+rest, err)
			}
		}
	})
}
