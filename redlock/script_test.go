package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
	"github.com/paddock-go/paddock/internal/servers"
)

// scripts is one node and one key, asked by hand.
type scripts struct {
	tb     testing.TB
	client redis.UniversalClient
	names
}

func newScripts(tb testing.TB) scripts {
	q := &quorum{keys: newPrefix() + ":redlock:v1:"}
	client := clientsFor(servers.SharedRedlock(tb)[:1], impatient)[0]
	tb.Cleanup(func() { client.Close() })
	return scripts{tb, client, q.names("key")}
}

func (s scripts) call(c *rediswire.Call) *rediswire.Call {
	s.tb.Helper()
	rediswire.Send(context.Background(), s.client, c)
	if _, err := c.Result(); err != nil {
		s.tb.Fatal(err)
	}
	return c
}

func (s scripts) number(c *rediswire.Call) int64 {
	s.tb.Helper()
	reply, _ := s.call(c).Result()
	n, ok := reply.(int64)
	if !ok {
		s.tb.Fatalf("the reply is %v; want a number", reply)
	}
	return n
}

func (s scripts) grant(owner string, ttl time.Duration) answer {
	s.tb.Helper()
	a, err := parseGrant(s.call(grantScript.Call(context.Background(), "3", s.lock, s.fence, s.mark(owner), owner, ttl.Milliseconds(),
		"note", keepFence.Milliseconds())))
	if err != nil {
		return answer{ballot: failed, err: err}
	}
	return a
}

func (s scripts) write(owner string, read, token fencing.Token) bool {
	s.tb.Helper()
	return s.number(fenceScript.Call(context.Background(), "2", s.lock, s.fence, owner, digits(read), digits(token),
		keepFence.Milliseconds())) == 1
}

func (s scripts) release(owner string, mark bool) bool {
	s.tb.Helper()
	keep := int64(0)
	if mark {
		keep = keepMark.Milliseconds()
	}
	return s.number(releaseScript.Call(context.Background(), "2", s.lock, s.mark(owner), owner, "channel", "message", keep)) == 1
}

func (s scripts) renew(owner string, ttl time.Duration, shorten bool, number int64) int64 {
	s.tb.Helper()
	flag := "0"
	if shorten {
		flag = "1"
	}
	return s.number(renewScript.Call(context.Background(), "1", s.lock, owner, ttl.Milliseconds(), flag, number))
}

func (s scripts) restore(owner string, ttl time.Duration, number int64, token fencing.Token) bool {
	s.tb.Helper()
	return s.number(restoreScript.Call(context.Background(), "3", s.lock, s.fence, s.mark(owner), owner, ttl.Milliseconds(), "note",
		keepFence.Milliseconds(), number, digits(token))) == 1
}

// left is what is left of the lock's TTL.
func (s scripts) left() time.Duration { return s.client.PTTL(context.Background(), s.lock).Val() }

// TestModelIsTheScripts does random things to a model and, by the scripts, to a real server, and compares every reply and what
// is left of the lock.
func TestModelIsTheScripts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 40 {
		s, m := newScripts(t), model{}
		var owners []string
		for range 4 {
			owners = append(owners, uuid.NewString())
		}
		tokens := []fencing.Token{0, 1, 7, 1 << 53, 1<<53 + 1, fencing.MaxToken - 1}
		var trace []string
		for range 80 {
			owner, ttl, now := owners[r.IntN(len(owners))], time.Duration(1+r.IntN(5))*time.Hour, time.Now()
			read, token := tokens[r.IntN(len(tokens))], tokens[1+r.IntN(len(tokens)-1)]
			if r.IntN(2) == 0 {
				read = m.token // else it is nearly always refused
			}
			yes, no, number := r.IntN(2) == 0, r.IntN(4) == 0, int64(r.IntN(6))
			var got, want string
			switch op := r.IntN(12); op {
			case 0, 1, 2, 3:
				a, b := s.grant(owner, ttl), m.grant(now, 0, owner, ttl)
				got = fmt.Sprint("grant ", owner, ttl, a.ballot, a.read, a.holder, a.err, a.left.Round(time.Minute))
				want = fmt.Sprint("grant ", owner, ttl, b.ballot, b.read, b.holder, b.err, b.left.Round(time.Minute))
			case 4, 5:
				got = fmt.Sprint("write ", owner, read, token, s.write(owner, read, token))
				want = fmt.Sprint("write ", owner, read, token, m.write(owner, read, token))
			case 6, 7:
				got = fmt.Sprint("release ", owner, no, s.release(owner, no))
				want = fmt.Sprint("release ", owner, no, m.release(owner, no))
			case 8, 9:
				got = fmt.Sprint("renew ", owner, ttl, yes, number, s.renew(owner, ttl, yes, number))
				want = fmt.Sprint("renew ", owner, ttl, yes, number, m.renew(now, owner, ttl, yes, number))
			case 10:
				got = fmt.Sprint("restore ", owner, ttl, number, token, s.restore(owner, ttl, number, token))
				want = fmt.Sprint("restore ", owner, ttl, number, token, m.restore(now, owner, ttl, number, token))
			case 11: // its time is over
				must(t, s.client.Del(context.Background(), s.lock).Err())
				m.lock = ""
			}
			if m.lock != "" {
				got += fmt.Sprint(" left ", s.left().Round(time.Minute))
				want += fmt.Sprint(" left ", m.end.Sub(now).Round(time.Minute))
			}
			if trace = append(trace, got); got != want {
				t.Fatalf("seed %d, round %d: the scripts say\n%s\nthe model says\n%s\nafter\n%q", seed, round, got, want, trace)
			}
		}
	}
}
