package rediswire

import "testing"

// noScript is what a server says that does not know a script.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT No matching script." }
func (noScript) RedisError()   {}

// TestWhole: of what was sent before the whole script, only a single sending is known to have done nothing.
func TestWhole(t *testing.T) {
	for sent, twice := range map[int32]bool{1: false, 2: true} {
		owner := &Counted{Arg: "owner"}
		c := NewScript("return 1").Call(t.Context(), "1", "key", owner)
		owner.sent.Store(sent)
		c.Fail(noScript{})
		if !c.Whole(t.Context()) {
			t.Fatal("NOSCRIPT does not make a call that sends the text")
		}
		if _, err := owner.MarshalBinary(); err != nil { // as the client does
			t.Fatal(err)
		}
		if owner.Twice() != twice {
			t.Errorf("sent %d times by its digest and then whole: Twice is %v, want %v", sent, owner.Twice(), twice)
		}
	}
}
