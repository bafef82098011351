//go:build linux

package faults

import (
	"testing"

	"github.com/paddock-go/paddock/fencing"
)

// TestServed: a key counts as served only by a holder who is new, and only when every key has one.
func TestServed(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	look := func(key, owner string, token fencing.Token) {
		l.answer(Request{Key: key, Fence: fencing.Fence{Domain: "d", Token: token, Owner: owner}})
	}
	keys := []string{"a", "b"}
	began := now()
	look("a", "first", 1)
	if l.Served(keys, began) {
		t.Error("b has had no holder")
	}
	look("b", "second", 1)
	if !l.Served(keys, began) {
		t.Error("both keys have had a holder")
	}
	healed := now()
	look("a", "first", 1)
	look("b", "third", 2)
	if l.Served(keys, healed) {
		t.Error("the holder of a was there before")
	}
	l.answer(Request{Key: "a", Fence: fencing.Fence{Domain: "d", Token: 3, Owner: "fourth"}, Write: true, Value: 1})
	if l.Served(keys, healed) {
		t.Error("a write is no new holder")
	}
	look("a", "fourth", 3)
	if !l.Served(keys, healed) {
		t.Error("both keys have had a new holder")
	}
}
