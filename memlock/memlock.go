// Package memlock is a paddock.Locker within one process: the reference that the other backends are measured against, the
// default where there is no server, and a stand-in for one in the tests of code that uses a Locker.
//
//	locker := memlock.New(nil)
//
// Waiters are served first come, first served. Tokens are max(last + 1, wall clock in microseconds), so they go on rising
// when the process is started again, as long as its clock does not go back.
//
// # For tests
//
// A test can take a lease away ([Locker.Expire]), cut the Locker off from its locks ([Locker.Cut], [Locker.Restore]), let time pass on
// the side of the locks ([Locker.Advance]), make every command take a while (Options.Latency), and give several Lockers the same
// locks (Options.Shared), as processes on one server have them. All of it works inside testing/synctest.
//
// # URL
//
// Imported, the package opens memory: as a Locker with locks of its own. Parameters: prefix, domain, close_wait.
package memlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix keeps Lockers with the same locks apart. Defaults to "paddock".
	Prefix string
	// Domain of the tokens. Defaults to "memory".
	Domain string
	// Observer defaults to none.
	Observer *paddock.Observer
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
	// Shared gives the Locker the locks of another, as two processes have those of one server. Defaults to locks of its own.
	Shared *Locker
	// Latency is what every command takes, as if there were a network. Defaults to none.
	Latency time.Duration
}

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	memory *memory
}

// New returns a Locker.
func New(opts *Options) *Locker {
	var o Options
	if opts != nil {
		o = *opts
	}
	return open(o, func(b backend.Backend) backend.Backend { return b }, true)
}

func open(o Options, link func(backend.Backend) backend.Backend, inline bool) *Locker {
	if o.Prefix == "" {
		o.Prefix = "paddock"
	}
	if o.Domain == "" {
		o.Domain = "memory"
	}
	m := &memory{prefix: o.Prefix + "/", domain: o.Domain, latency: o.Latency, broken: make(chan struct{})}
	if o.Shared != nil {
		m.table = o.Shared.memory.table
	} else {
		m.table = &table{locks: map[string]*lock{}, undone: map[string]struct{}{}}
	}
	return &Locker{memory: m, Keeper: backend.NewKeeper(paddock.Guarantees{
		Backend:   "memory",
		Exclusion: paddock.ProcessOnly,
		Fencing:   fencing.Volatile,
		Fair:      true,
		MinTTL:    10 * time.Millisecond,
		TTLStep:   time.Millisecond,
		Assumes: "Holders are goroutines of this process. Tokens rise across restarts of the process as long as its wall clock " +
			"does not go back.",
	}, link(m), &backend.KeeperOptions{Inline: inline, CloseWait: o.CloseWait, Observer: o.Observer})}
}

func init() {
	paddock.Register("memory", func(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
		p := backend.NewParams(u)
		o := Options{
			Prefix: p.String("prefix"), Domain: p.String("domain"), CloseWait: p.Duration("close_wait"), Observer: opts.Observer,
		}
		if u.Host != "" || u.User != nil || (u.Path != "" && u.Path != "/") {
			return nil, fmt.Errorf("%w: a memory: URL has parameters only, as in memory:?prefix=billing", paddock.ErrInvalid)
		}
		if err := p.Err(); err != nil {
			return nil, err
		}
		return New(&o), nil
	})
}

// Expire ends the lease on key, as its TTL would: the holder's context ends with ErrLost and the key is free. It reports
// whether there was one.
func (l *Locker) Expire(key string) bool {
	return l.memory.table.expire(l.memory.prefix+key, "", errors.New("expired by a test"))
}

// Cut makes the locks unreachable for this Locker, until Restore: its commands are not carried out, and fail after a second
// without an answer. Whoever waits for a lock hears no more of it.
func (l *Locker) Cut() {
	m := l.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restored == nil {
		m.restored = make(chan struct{})
		close(m.broken)
	}
}

// Restore ends Cut.
func (l *Locker) Restore() {
	m := l.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restored != nil {
		close(m.restored)
		m.restored, m.broken = nil, make(chan struct{})
	}
}

// Advance lets d pass on the clock of the locks, for all Lockers that share them: leases that are not renewed within their
// TTL by that clock end, as after Expire.
func (l *Locker) Advance(d time.Duration) {
	t := l.memory.table
	t.mu.Lock()
	t.ahead += d
	now := t.now()
	var over []*lock
	for _, k := range t.locks {
		if k.holder != nil && !k.expires.After(now) {
			over = append(over, k)
		} else if k.holder != nil {
			k.timer.Reset(k.expires.Sub(now))
		}
	}
	t.mu.Unlock()
	for _, k := range over {
		t.expire(k.name, "", errExpired)
	}
}

// Inspect is that of paddock.Inspector.
func (l *Locker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	if err := l.memory.reach(ctx); err != nil {
		return paddock.Holder{}, err
	}
	t := l.memory.table
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.locks[l.memory.prefix+key]
	if k == nil || k.holder == nil {
		return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
	}
	return paddock.Holder{
		Owner: k.holder.Owner, Note: k.holder.Note, Token: k.token, Since: k.since.Round(0), ExpiresIn: k.expires.Sub(t.now()),
	}, nil
}

// memory is the backend: a way to a table.
type memory struct {
	prefix, domain string
	latency        time.Duration
	table          *table

	mu       sync.Mutex
	broken   chan struct{} // closed by Cut
	restored chan struct{} // closed by Restore; nil: not cut
}

// patience is how long a command waits for an answer.
const patience = time.Second

var errCut = fmt.Errorf("%w: memlock: cut off", paddock.ErrUnavailable)

// way is how things stand between the Locker and the table.
func (m *memory) way() (broken, restored <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken, m.restored
}

// reach is the way of a command to the table.
func (m *memory) reach(ctx context.Context) error {
	if _, restored := m.way(); restored != nil {
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case <-restored:
		case <-t.C:
			return errCut
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errCut, ctx.Err())
		}
	}
	if m.latency > 0 {
		t := time.NewTimer(m.latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

func (m *memory) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	if err := m.reach(ctx); err != nil {
		return backend.Grant{}, err
	}
	broken, _ := m.way()
	k, w, err := m.table.enter(m.prefix+a.Key, a)
	if err != nil {
		return backend.Grant{}, err
	}
	if w != nil {
		select {
		case <-w.granted:
		case <-broken:
			a.Contended(0) // until now it was heard of
			return backend.Grant{}, errCut
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err() // Undo takes it out of the queue
		}
	}
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	if k.holder == nil || k.holder.Owner != a.Owner {
		return backend.Grant{}, errExpired
	}
	return backend.Grant{Token: k.token, Domain: m.domain, Sent: k.since.Add(-m.table.ahead), TTL: a.TTL}, nil
}

func (m *memory) Undo(ctx context.Context, a *backend.Attempt) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	m.table.leave(m.prefix+a.Key, a.Owner, true)
	return nil
}

func (m *memory) Release(ctx context.Context, a *backend.Attempt) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	if !m.table.leave(m.prefix+a.Key, a.Owner, a.Slow) {
		return paddock.ErrLost
	}
	return nil
}

func (m *memory) Renew(ctx context.Context, batch []backend.Renewal) {
	err := m.reach(ctx)
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	for i := range batch {
		if r := &batch[i]; err != nil {
			r.Err = err
		} else {
			r.Err = m.table.renew(m.prefix+r.Key, r)
		}
	}
}

var errExpired = errors.New("memlock: the TTL was over")

// table is what a server would hold.
type table struct {
	mu     sync.Mutex
	locks  map[string]*lock
	last   fencing.Token
	ahead  time.Duration       // by how much the table's clock was advanced
	undone map[string]struct{} // owners whose Try has to be refused
	order  []string            // of undone, oldest first
}

// maxUndone bounds how many owners are remembered. A Try that is later than so many others is not to be expected.
const maxUndone = 10_000

// lock is a key that is held or waited for.
type lock struct {
	name    string
	holder  *backend.Attempt
	token   fencing.Token
	since   time.Time
	expires time.Time
	timer   *time.Timer
	handing bool // between two holders: nobody may enter but from the queue
	queue   []*waiter
}

type waiter struct {
	a       *backend.Attempt
	granted chan struct{} // closed
}

func (t *table) now() time.Time { return time.Now().Add(t.ahead) }

// enter gives a the lock, finds that it has it, or puts it into the queue or refuses it.
func (t *table) enter(name string, a *backend.Attempt) (*lock, *waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.undone[a.Owner]; ok {
		return nil, nil, errors.New("memlock: the attempt was undone before")
	}
	k := t.locks[name]
	if k == nil {
		k = &lock{name: name}
		t.locks[name] = k
	}
	switch {
	case k.holder == nil && !k.handing:
		t.grant(k, a)
		return k, nil, nil
	case k.holder != nil && k.holder.Owner == a.Owner:
		if e := t.end(k, a.TTL); e.After(k.expires) {
			k.expires = e
			k.timer.Reset(a.TTL)
		}
		return k, nil, nil
	}
	left := time.Duration(0)
	if k.holder != nil {
		left = max(time.Millisecond, k.expires.Sub(t.now()))
	}
	if !a.Waits {
		return nil, nil, &paddock.HeldError{Key: a.Key, RetryAfter: left}
	}
	w := &waiter{a: a, granted: make(chan struct{})}
	k.queue = append(k.queue, w)
	a.Contended(left)
	return k, w, nil
}

func (t *table) grant(k *lock, a *backend.Attempt) {
	t.last = max(t.last+1, fencing.Token(time.Now().UnixMicro()))
	k.holder, k.token, k.since = a, t.last, t.now()
	k.expires = t.end(k, a.TTL)
	name, owner := k.name, a.Owner
	k.timer = time.AfterFunc(k.expires.Sub(k.since), func() { t.expire(name, owner, errExpired) })
}

// end is when a TTL that begins now is over, or MaxHold is.
func (t *table) end(k *lock, ttl time.Duration) time.Time {
	end := t.now().Add(ttl)
	if h := k.holder.MaxHold; h > 0 && k.since.Add(h).Before(end) {
		return k.since.Add(h)
	}
	return end
}

// expire takes the lock from its holder, owner if that is given, whose TTL must be over then.
func (t *table) expire(name, owner string, cause error) bool {
	t.mu.Lock()
	k := t.locks[name]
	if k == nil || k.holder == nil || (owner != "" && k.holder.Owner != owner) {
		t.mu.Unlock()
		return false
	}
	if left := k.expires.Sub(t.now()); owner != "" && left > 0 { // renewed meanwhile
		k.timer.Reset(left)
		t.mu.Unlock()
		return false
	}
	a := k.holder
	k.timer.Stop()
	k.holder, k.handing = nil, true
	t.mu.Unlock()
	a.Lost(cause) // before the next holder is told
	t.mu.Lock()
	defer t.mu.Unlock()
	k.handing = false
	t.next(k)
	return true
}

// next hands a free lock on.
func (t *table) next(k *lock) {
	if len(k.queue) == 0 {
		delete(t.locks, k.name)
		return
	}
	w := k.queue[0]
	k.queue = k.queue[1:]
	t.grant(k, w.a)
	close(w.granted)
}

// leave takes owner's hold or place in the queue away, and reports whether it had the lock.
func (t *table) leave(name, owner string, mark bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mark {
		t.undone[owner] = struct{}{}
		if t.order = append(t.order, owner); len(t.order) > maxUndone {
			delete(t.undone, t.order[0])
			t.order = t.order[1:]
		}
	}
	k := t.locks[name]
	if k == nil {
		return false
	}
	if k.holder == nil || k.holder.Owner != owner {
		k.queue = slices.DeleteFunc(k.queue, func(w *waiter) bool { return w.a.Owner == owner })
		return false
	}
	k.timer.Stop()
	k.holder = nil
	t.next(k)
	return true
}

// renew carries out r.
func (t *table) renew(name string, r *backend.Renewal) error {
	k := t.locks[name]
	if k == nil || k.holder == nil || k.holder.Owner != r.Owner {
		return paddock.ErrLost
	}
	if end := t.end(k, r.TTL); r.Shorten || end.After(k.expires) {
		k.expires = end
		k.timer.Reset(end.Sub(t.now()))
	}
	return nil
}
