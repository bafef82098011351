package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/paddock-go/paddock"
)

const ruleInspect = "Inspect says who holds the key, with the Note, as far as the backend can tell; ErrFree when nobody does."

var inspecting = []check{
	{name: "Inspect/Holder", rule: ruleInspect, run: inspectHolder},
	{name: "Inspect/Arguments", rule: ruleInspect, run: inspectArguments},
}

// inspectable reports whether l can tell, which is left to the backend.
func (t *trial) inspectable(l paddock.Locker) bool {
	t.Helper()
	_, err := paddock.Inspect(t.ctx, l, t.key())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Log("this backend does not support Inspect")
		return false
	}
	t.is(err, paddock.ErrFree)
	return true
}

func inspectHolder(t *trial) {
	a, b := t.open(), t.open()
	if !t.inspectable(a) {
		return
	}
	key := t.key()
	note := "für 日本 " + strings.Repeat("n", 200)
	begun := time.Now()
	lease := t.acquire(a, key, &paddock.Options{TTL: t.ttl(long), Note: note})
	for _, l := range []paddock.Locker{a, b} {
		h, err := paddock.Inspect(t.ctx, l, key)
		if err != nil {
			t.Fatalf("Inspect of a held key: %v", err)
		}
		if h.Owner != lease.Owner() || h.Note != note {
			t.Errorf("Inspect says owner %q, note %q; want %q, %q", h.Owner, h.Note, lease.Owner(), note)
		}
		if h.Token != 0 && h.Token != lease.Token() {
			t.Errorf("Inspect says token %d; want %d", h.Token, lease.Token())
		}
		if h.ExpiresIn < 0 || h.ExpiresIn > lease.TTL()+t.g.TTLStep {
			t.Errorf("Inspect says %v are left of a TTL of %v", h.ExpiresIn, lease.TTL())
		}
		if !h.Since.IsZero() && begun.Sub(h.Since).Abs() > time.Hour { // another machine's clock
			t.Errorf("Inspect says it was granted at %v; that was about %v", h.Since, begun)
		}
	}
	t.release(lease)
	_, err := paddock.Inspect(t.ctx, b, key)
	t.is(err, paddock.ErrFree)
	lease = t.acquire(b, key, nil)
	h, err := paddock.Inspect(t.ctx, a, key)
	if err != nil || h.Owner != lease.Owner() || !strings.HasSuffix(h.Note, fmt.Sprintf("/%d", os.Getpid())) {
		t.Errorf("Inspect says %+v, %v; want owner %q and this host and process", h, err, lease.Owner())
	}
	t.release(lease)
}

func inspectArguments(t *trial) {
	l := t.open()
	if !t.inspectable(l) {
		return
	}
	for _, key := range []string{"", strings.Repeat("k", 1025), "\xff"} {
		_, err := paddock.Inspect(t.ctx, l, key)
		t.is(err, paddock.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if _, err := paddock.Inspect(ctx, l, t.key()); !errors.Is(err, context.Canceled) {
		t.Errorf("Inspect with a ctx that has ended: %v", err)
	}
}
