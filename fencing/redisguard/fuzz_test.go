package redisguard

import (
	"errors"
	"strings"
	"testing"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/garbled"
)

// FuzzNames: the mark of a key is its own, and in the key's slot.
func FuzzNames(f *testing.F) {
	for _, key := range []string{"a", "}", "{}", "{a}", "a{b}c", "{}a{b}", "a}b", "{", "a{", "{a", "\x00", "\xff}"} {
		f.Add(key, "a}")
	}
	g := &Guard{prefix: "p:v1:mark:{"}
	hashed := func(name string) string { // as Redis has it
		if _, rest, ok := strings.Cut(name, "{"); ok {
			if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
				return tag
			}
		}
		return name
	}
	f.Fuzz(func(t *testing.T, key, other string) {
		if key == "" || other == "" {
			return
		}
		if a, b := slot(hashed(key)), slot(hashed(g.mark(key))); a != b {
			t.Errorf("%q is in slot %d, its mark %q in slot %d", key, a, g.mark(key), b)
		}
		if key != other && g.mark(key) == g.mark(other) {
			t.Errorf("%q and %q have one mark", key, other)
		}
	})
}

// FuzzReplies: what no script of ours answers lets nothing pass.
func FuzzReplies(f *testing.F) {
	const digits = "0000000000000000005"
	for _, reply := range []any{
		nil, 1, "", "OK", garbled.Failure("ERR holds no mark"), []any{}, []any{"d", digits, "o"}, []any{"d", digits}, []any{"d", digits, nil},
		[]any{"d", digits, "o", "more"}, []any{"", digits, "o"}, []any{"d", "", "o"}, []any{"d", "9999999999999999999", "o"}, []any{"d", 5, "o"},
		[]any{"e", "0000000000000000000", ""}, []any{"d", "0000000000000000006", "p"},
	} {
		f.Add(garbled.Bytes(reply))
	}
	server := garbled.New()
	g, err := New(server.Client, nil)
	must(f, err)
	have := fencing.Fence{Domain: "d", Token: 5, Owner: "o"}
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := garbled.Reply(data)
		server.Answer(reply)
		fields, _ := reply.([]any)
		well := len(fields) == 3
		for _, field := range fields {
			_, text := field.(string)
			well = well && text
		}
		passed := well && fields[0] == "d" && fields[2] == "o" && strings.TrimLeft(fields[1].(string), "0") == "5"
		for _, err := range []error{g.Advance(t.Context(), "r", have), g.Set(t.Context(), have, "r", "v", 0), g.Del(t.Context(), have, "r")} {
			if (err == nil) != passed {
				t.Errorf("a write, answered with %v: %v", reply, err)
			}
		}
		err := g.Migrate(t.Context(), "r", "d", "e")
		_, none := reply.([]any)
		none = none && len(fields) == 0
		if err == nil && !well && !none || errors.Is(err, fencing.ErrDomain) && !well {
			t.Errorf("Migrate, answered with %v: %v", reply, err)
		}
	})
}
