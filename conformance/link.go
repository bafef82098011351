package conformance

import (
	"time"

	"github.com/paddock-go/paddock"
)

// spoilable returns a Locker behind a link of its own.
func (t *trial) spoilable() (paddock.Locker, *link) {
	t.Helper()
	if t.b.Faults == nil || t.b.Faults.Open == nil {
		t.skip("Faults.Open")
	}
	l, k := t.b.Faults.Open(t.T)
	t.closing(l)
	if k.Pass == nil {
		t.Fatal("conformance: Faults.Open returned a Link without Pass")
	}
	t.Cleanup(k.Pass)
	return l, &link{t, k}
}

// link is a Link whose missing faults skip the case.
type link struct {
	t *trial
	k Link
}

func (l *link) delayRequests(d time.Duration) {
	l.need(l.k.DelayRequests != nil, "DelayRequests")
	l.k.DelayRequests(d)
}

func (l *link) delayReplies(d time.Duration) {
	l.need(l.k.DelayReplies != nil, "DelayReplies")
	l.k.DelayReplies(d)
}

func (l *link) loseReplies() { l.need(l.k.LoseReplies != nil, "LoseReplies"); l.k.LoseReplies() }
func (l *link) silence()     { l.need(l.k.Silence != nil, "Silence"); l.k.Silence() }
func (l *link) cut()         { l.need(l.k.Cut != nil, "Cut"); l.k.Cut() }
func (l *link) pass()        { l.k.Pass() }

func (l *link) need(ok bool, name string) {
	if !ok {
		l.t.skip("Faults.Open with a Link." + name)
	}
}
