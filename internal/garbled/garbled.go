// Package garbled makes go-redis clients whose server answers whatever it is told to, for tests of what becomes of replies that no script
// of ours gives.
package garbled

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"

	"github.com/redis/go-redis/v9"
)

// Server answers every command of its Client with the same reply. It is for one goroutine.
type Server struct {
	Client *redis.Client
	reply  any
}

// New returns a Server whose Client sends nothing.
func New() *Server {
	s := &Server{Client: redis.NewClient(&redis.Options{Addr: "127.0.0.1:0", MaxRetries: -1})}
	s.Client.AddHook(s)
	return s
}

// Answer sets the reply. An error is one of the server's.
func (s *Server) Answer(reply any) { s.reply = reply }

func (s *Server) answer(cmd redis.Cmder) error {
	c, ok := cmd.(*redis.Cmd)
	switch err, failed := s.reply.(error); {
	case !ok:
		cmd.SetErr(fmt.Errorf("garbled: a %T has no reply", cmd))
	case failed:
		c.SetErr(err)
	default:
		c.SetVal(s.reply)
	}
	return cmd.Err()
}

// DialHook is that of redis.Hook.
func (s *Server) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
}

// ProcessHook is that of redis.Hook.
func (s *Server) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.answer(cmd) }
}

// ProcessPipelineHook is that of redis.Hook.
func (s *Server) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (err error) {
		for _, cmd := range cmds {
			if e := s.answer(cmd); err == nil {
				err = e
			}
		}
		return err
	}
}

// Failure is an error that a server answered with.
type Failure string

// Error is the server's text.
func (f Failure) Error() string { return string(f) }

// RedisError is how go-redis tells what a server answered.
func (Failure) RedisError() {}

// Reply makes a reply of any kind that a script may give, in either protocol, of what a fuzzer came up with.
func Reply(data []byte) any {
	r := reader{data}
	return r.reply(3)
}

// The kinds of replies, as Reply reads them.
const (
	Nil = iota
	Integer
	Text
	Array
	Error
	Float
	Bool
	Map
	kinds
)

type reader struct{ rest []byte }

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) number() int64 {
	if b := r.byte(); b < 0x80 { // small ones are what scripts answer with most
		return int64(b) - 8
	}
	var all [8]byte
	r.rest = r.rest[copy(all[:], r.rest):]
	return int64(binary.BigEndian.Uint64(all[:]))
}

func (r *reader) text() string {
	n := min(int(r.byte()), len(r.rest))
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) reply(depth int) any {
	switch kind := r.byte() % kinds; {
	case kind == Integer:
		return r.number()
	case kind == Text:
		return r.text()
	case kind == Error:
		return Failure(r.text())
	case kind == Float:
		return math.Float64frombits(uint64(r.number()))
	case kind == Bool:
		return r.byte()%2 == 1
	case kind == Array && depth > 0:
		list := make([]any, r.byte()%8)
		for i := range list {
			list[i] = r.reply(depth - 1)
		}
		return list
	case kind == Map && depth > 0:
		table := map[any]any{}
		for range r.byte() % 4 {
			table[r.text()] = r.reply(depth - 1)
		}
		return table
	}
	return nil
}

// Bytes writes a reply of these kinds as Reply reads it, for seeds.
func Bytes(reply any) []byte {
	switch v := reply.(type) {
	case int:
		return append([]byte{Integer, 0xff}, binary.BigEndian.AppendUint64(nil, uint64(v))...)
	case string:
		return append([]byte{Text, byte(len(v))}, v...)
	case Failure:
		return append([]byte{Error, byte(len(v))}, v...)
	case []any:
		b := []byte{Array, byte(len(v))}
		for _, e := range v {
			b = append(b, Bytes(e)...)
		}
		return b
	}
	return []byte{Nil}
}
