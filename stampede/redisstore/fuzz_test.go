package redisstore

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/garbled"
	"github.com/paddock-go/paddock/stampede"
)

// FuzzNames: the records and the channel of a key are its own, and in one hash slot.
func FuzzNames(f *testing.F) {
	for _, key := range []string{"a", "}", "{a}", "a}:e1", "}:t1", "a\x00", "\xff"} {
		f.Add(key, "a}")
	}
	s := &Store{prefix: "p"}
	f.Fuzz(func(t *testing.T, key, other string) {
		names := append(s.keys(key), s.channel(key))
		tag := func(name string) string { // as Redis finds it
			_, rest, _ := strings.Cut(name, "{")
			tag, _, ok := strings.Cut(rest, "}")
			if !ok || tag == "" {
				t.Fatalf("%q has no hash tag", name)
			}
			return tag
		}
		for _, name := range names {
			if tag(name) != tag(names[0]) {
				t.Errorf("%q and %q may be in two slots", name, names[0])
			}
		}
		if names[0] != s.entry(key) {
			t.Errorf("the entry of %q is %q and %q", key, names[0], s.entry(key))
		}
		if key == other {
			return
		}
		for i, name := range append(s.keys(other), s.channel(other)) {
			for j, mine := range names {
				if name == mine && (i < 2) == (j < 2) { // a channel may be called what a record is
					t.Errorf("%q and %q meet in %q", key, other, name)
				}
			}
		}
	})
}

// FuzzRecord: what is no record of ours is Foreign, and what is ours comes back.
func FuzzRecord(f *testing.F) {
	full := encode(stampede.Entry{
		Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute, StaleFor: time.Hour, LoadTime: time.Second,
		Fence: fencing.Fence{Domain: "d", Token: 7, Owner: "o"}, Writer: "w",
	})
	failed := append([]byte("pf1"+"0000000000000"+"0000000060000"+"00003"+"bad"), full...)
	for _, record := range [][]byte{
		nil, full, full[:9], failed, failed[:37], encode(stampede.Entry{Kind: stampede.NotFound, TTL: time.Second}), []byte("pk1v"),
		[]byte("pf1" + "0000000000000" + "0000000000000" + "-0001" + "x"), []byte("pf1" + "9999999999999" + "9999999999999" + "00001" + "x"),
		[]byte("pk1v" + strings.Repeat("\xff", 9) + "\x01"),
	} {
		f.Add(record, int64(time.Minute))
		f.Add(record, int64(-2))
		f.Add(record, int64(math.MaxInt64))
	}
	f.Fuzz(func(t *testing.T, record []byte, left int64) {
		if left < -2 {
			left = -1
		}
		e := read(time.Duration(left), record)
		switch e.Kind {
		case stampede.Absent, stampede.Foreign:
		case stampede.Value, stampede.NotFound:
			if e.TTL < 0 || e.StaleFor < 0 || e.TTL+e.StaleFor < 0 || e.LoadTime < 0 || e.Fence.Token > fencing.MaxToken || e.Left > e.TTL {
				t.Errorf("%q was read as %+v", record, e)
			}
			again := stampede.Entry{}
			if !decode(encode(e), &again) {
				t.Fatalf("%+v does not decode", e)
			}
			e.Left, e.Failure = 0, ""
			e.Value, again.Value = append([]byte{}, e.Value...), append([]byte{}, again.Value...)
			if !reflect.DeepEqual(e, again) {
				t.Errorf("%+v comes back as %+v", e, again)
			}
		default:
			t.Errorf("%q is of kind %v", record, e.Kind)
		}
	})
}

// FuzzReplies: what no script of ours answers is an error.
func FuzzReplies(f *testing.F) {
	record := string(encode(stampede.Entry{Kind: stampede.Value, TTL: time.Minute}))
	for _, reply := range []any{
		1, 3, 4, "", "id/1", garbled.Failure("OOM"), []any{-2, nil, "id/1", 1}, []any{60000, record, "id/1", 2}, []any{-2, nil, "", 0},
		[]any{int(math.MaxInt64), record, "id/1", 1}, []any{"1", record, "id/1", "1"},
	} {
		f.Add(garbled.Bytes(reply))
	}
	server := garbled.New()
	s, err := New(server.Client, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := garbled.Reply(data)
		server.Answer(reply)
		e, ticket, err := s.Begin(t.Context(), "k", "id", time.Minute)
		if err == nil && (ticket.ID == "" || ticket.Turn < 1 || e.Left > e.TTL) {
			t.Errorf("Begin, answered with %v: %+v, %+v", reply, e, ticket)
		}
		o, err := s.Put(t.Context(), "k", stampede.Ticket{ID: "id", Turn: 1}, stampede.Entry{Kind: stampede.Value, TTL: time.Minute})
		if known := o == stampede.Stored || o == stampede.Superseded || o == stampede.Invalidated; known != (err == nil) {
			t.Errorf("Put, answered with %v: %v, %v", reply, o, err)
		}
		if failed, ok := reply.(error); ok && !errors.Is(err, failed) {
			t.Errorf("Put, answered with the error %v: %v", reply, err)
		}
		_ = s.Set(t.Context(), "k", stampede.Entry{Kind: stampede.Value, TTL: time.Minute})
	})
}
