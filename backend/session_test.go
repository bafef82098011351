package backend

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
)

// synctest1 is bubble for a backend that is made over the server.
func synctest1(t *testing.T, over func(*testing.T, *server) Backend, f func(t *testing.T, s *server, k *Keeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		b := over(t, s)
		k := NewKeeper(testGuarantees, b, nil)
		if l, ok := b.(*lives); ok {
			l.keeper = k
		}
		f(t, s, k)
		if err := k.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		<-k.Done()
	})
}

// lives is a server whose locks hang on one session.
type lives struct {
	*server
	keeper  *Keeper
	session *Session
	beats   atomic.Int32
	beatErr atomic.Pointer[error]
	moved   *Session    // that Renew moves to
	silent  atomic.Bool // Renew moves, and does not answer
}

const sessionTTL = 6 * time.Second

func (l *lives) start() *Session {
	return l.keeper.Session(time.Now(), sessionTTL, func(ctx context.Context) (time.Duration, error) {
		l.beats.Add(1)
		if err := l.beatErr.Load(); err != nil {
			return 0, *err
		}
		return sessionTTL, nil
	})
}

func (l *lives) Try(ctx context.Context, a *Attempt) (Grant, error) {
	if l.session == nil {
		l.session = l.start()
	}
	g, err := l.server.Try(ctx, a)
	g.TTL, g.Session = sessionTTL, l.session
	if err == nil {
		l.server.mu.Lock()
		l.server.locks[a.Key].expires = time.Now().Add(time.Hour)
		l.server.mu.Unlock()
	}
	return g, err
}

func (l *lives) Renew(_ context.Context, batch []Renewal) {
	for i := range batch {
		batch[i].Session, batch[i].Granted = l.moved, sessionTTL
		if l.silent.Load() {
			batch[i].Err = errors.New("no answer")
		}
	}
}

func inSession(t *testing.T, f func(t *testing.T, l *lives, k *Keeper)) {
	t.Helper()
	var l *lives
	synctest1(t, func(_ *testing.T, s *server) Backend {
		l = &lives{server: s}
		return l
	}, func(t *testing.T, _ *server, k *Keeper) { f(t, l, k) })
}

func TestLeasesShareASession(t *testing.T) {
	inSession(t, func(t *testing.T, l *lives, k *Keeper) {
		a, b := mustAcquire(t, k, "a", nil), mustAcquire(t, k, "b", nil)
		time.Sleep(time.Minute)
		if n := l.beats.Load(); n < 28 || n > 34 {
			t.Errorf("%d beats in a minute with a TTL of 6s", n)
		}
		if a.Err() != nil || !a.Deadline().Equal(b.Deadline()) || time.Until(a.Deadline()) > sessionTTL {
			t.Errorf("a: %v until %v, b: until %v", a.Err(), a.Deadline(), b.Deadline())
		}
		a.Release(t.Context())
		bad := errors.New("no leader")
		l.beatErr.Store(&bad)
		begun := time.Now()
		<-b.Context().Done()
		if d := time.Since(begun); d < 3*time.Second || d > sessionTTL {
			t.Errorf("lost %v after the last beat that could be answered", d)
		}
		time.Sleep(time.Second)
		if l.owner("b") != "" {
			t.Error("a lock on a session that goes on was not released in the background")
		}
		// The session is not over: beats are tried, and what is granted later is good again.
		l.beatErr.Store(nil)
		time.Sleep(sessionTTL)
		c := mustAcquire(t, k, "c", nil)
		if c.Err() != nil || b.Err() == nil {
			t.Errorf("after the silence: new lease %v, old lease %v", c.Err(), b.Err())
		}
		gone := errors.Join(paddock.ErrLost, errors.New("requested lease not found"))
		l.beatErr.Store(&gone)
		begun = time.Now()
		<-c.Context().Done()
		if d := time.Since(begun); d > sessionTTL/3 {
			t.Errorf("lost %v after the server knew of the session no more", d)
		}
		wantErr(t, "the cause", c.Err(), paddock.ErrLost, gone)
	})
}

func TestNoRenewOnASession(t *testing.T) {
	inSession(t, func(t *testing.T, l *lives, k *Keeper) {
		begun := time.Now()
		a := mustAcquire(t, k, "a", &paddock.Options{TTL: 10 * time.Second, NoRenew: true})
		<-a.Context().Done()
		if d := time.Since(begun); d < 5*time.Second || d > 10*time.Second {
			t.Errorf("ended after %v; its process has to end it at 10s", d)
		}
		time.Sleep(time.Second)
		if l.owner("a") != "" {
			t.Error("the lock still hangs on the session")
		}
	})
}

func TestExtendOntoAnotherSession(t *testing.T) {
	inSession(t, func(t *testing.T, l *lives, k *Keeper) {
		a := mustAcquire(t, k, "a", nil)
		l.moved = l.start()
		if err := a.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatalf("Extend: %v", err)
		}
		l.session.Lost(errors.New("the old session is over")) // which is nothing to a any more
		time.Sleep(time.Minute)
		if err := a.Err(); err != nil {
			t.Errorf("after it moved: %v", err)
		}
		// An Extend that is not answered may or may not have moved it: both windows count until it is known.
		old := l.moved
		l.moved = l.start()
		l.silent.Store(true)
		wantErr(t, "Extend", a.Extend(t.Context(), 20*time.Second), paddock.ErrUnavailable)
		latest := old.Deadline()
		if a.Deadline().After(latest) || a.Deadline().After(l.moved.Deadline()) {
			t.Error("the window is longer than that of a session that it may hang on")
		}
		l.silent.Store(false)
		time.Sleep(time.Minute)
		if err := a.Err(); err != nil {
			t.Errorf("after it was asked again: %v", err)
		}
		old.Lost(errors.New("over"))
		if err := a.Err(); err != nil {
			t.Errorf("it was moved, and lost with its old session: %v", err)
		}
		l.moved.Lost(errors.New("over too"))
		wantErr(t, "Err", a.Err(), paddock.ErrLost)
	})
}

func TestSessionEndStopsItsBeats(t *testing.T) {
	inSession(t, func(t *testing.T, l *lives, k *Keeper) {
		mustAcquire(t, k, "a", nil).Release(t.Context())
		l.session.End()
		n := l.beats.Load()
		time.Sleep(time.Minute)
		if l.beats.Load() != n {
			t.Error("beats after End")
		}
		_, err := k.TryAcquire(t.Context(), "a", nil)
		wantErr(t, "a grant on a session that has ended", err, paddock.ErrUnavailable)
	})
}
