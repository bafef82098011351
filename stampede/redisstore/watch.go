package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/stampede"
)

// watcher has one subscription for all watchers of a Store. The connection is made for the first of them, and from then on a
// goroutine subscribes to what is watched and unsubscribes from what is not. No lock is held while anything is sent.
type watcher struct {
	client redis.UniversalClient
	ctx    context.Context // ends at close
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running bool
	watched map[string]*channel
	changed chan string // names of channels that came into use or went out of it
}

// channel is what is watched by somebody.
type channel struct {
	hints     map[chan struct{}]struct{}
	confirmed chan struct{} // closed when the server has confirmed the subscription
	err       error         // set before confirmed is closed: there is none
}

func newWatcher(client redis.UniversalClient) *watcher {
	w := &watcher{client: client, watched: map[string]*channel{}, changed: make(chan string, 1024)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

func (w *watcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.stop()
	w.wg.Wait()
	return nil
}

func (w *watcher) watch(ctx context.Context, name string) (<-chan struct{}, error) {
	hint := make(chan struct{}, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, fmt.Errorf("redisstore: watch: %w", stampede.ErrClosed)
	}
	c := w.watched[name]
	if c == nil {
		c = &channel{hints: map[chan struct{}]struct{}{}, confirmed: make(chan struct{})}
		w.watched[name] = c
	}
	first := len(c.hints) == 0
	c.hints[hint] = struct{}{}
	if !w.running {
		w.running = true
		w.wg.Go(w.run)
	}
	w.mu.Unlock()
	context.AfterFunc(ctx, func() { w.unwatch(name, c, hint) })
	if first {
		w.tell(ctx, name)
	}
	select {
	case <-c.confirmed:
		return hint, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("redisstore: watch: %w", ctx.Err())
	case <-w.ctx.Done():
		return nil, fmt.Errorf("redisstore: watch: %w", stampede.ErrClosed)
	}
}

func (w *watcher) unwatch(name string, c *channel, hint chan struct{}) {
	w.mu.Lock()
	delete(c.hints, hint)
	last := len(c.hints) == 0 && w.watched[name] == c
	if last {
		delete(w.watched, name)
	}
	w.mu.Unlock()
	if last {
		w.tell(w.ctx, name)
	}
}

func (w *watcher) tell(ctx context.Context, name string) {
	select {
	case w.changed <- name:
	case <-ctx.Done():
	case <-w.ctx.Done():
	}
}

const (
	// confirmWait is how long the first confirmation of a new connection may take.
	confirmWait = 3 * time.Second
	// retryWait is how long after a subscription failed the next is tried.
	retryWait = time.Second
)

// run keeps a connection for as long as somebody watches; it ends when the connection cannot be made or its user may not subscribe.
func (w *watcher) run() {
	for w.ctx.Err() == nil {
		name, ok := w.next(nil)
		if !ok {
			return
		}
		if !w.wanted(name) {
			continue
		}
		if err := w.serve(name); err != nil {
			w.refuse(err)
		}
	}
}

// next is the name of a channel that has changed.
func (w *watcher) next(messages <-chan any) (string, bool) {
	for {
		select {
		case name := <-w.changed:
			return name, true
		case m, ok := <-messages:
			if !ok {
				return "", false
			}
			w.message(m)
		case <-w.ctx.Done():
			return "", false
		}
	}
}

func (w *watcher) wanted(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched[name] != nil
}

var errNoConfirmation = errors.New("no confirmation of a subscription")

// serve makes a connection, subscribes to the first channel, and then to all that change.
func (w *watcher) serve(first string) error {
	ps := w.client.Subscribe(w.ctx)
	defer ps.Close()
	if err := ps.Subscribe(w.ctx, first); err != nil {
		return err
	}
	// The confirmation is to be received before the channel is made: the other way round the two compete for it.
	m, err := ps.ReceiveTimeout(w.ctx, confirmWait)
	if err != nil {
		return err
	}
	if _, ok := m.(*redis.Subscription); !ok {
		return errNoConfirmation
	}
	w.message(m)
	messages := ps.ChannelWithSubscriptions(redis.WithChannelSize(1024))
	on := map[string]bool{first: true}
	for {
		name, ok := w.next(messages)
		if !ok {
			return w.ctx.Err()
		}
		switch want := w.wanted(name); { // after an error the client connects again, and subscribes to all
		case want && on[name]:
			w.message(&redis.Subscription{Kind: "subscribe", Channel: name})
		case want:
			_ = ps.Subscribe(w.ctx, name)
			on[name] = true
		case on[name]:
			_ = ps.Unsubscribe(w.ctx, name)
			delete(on, name)
		}
	}
}

// message takes what came on the connection.
func (w *watcher) message(m any) {
	var name string
	switch m := m.(type) {
	case *redis.Message:
		name = m.Channel
	case *redis.Subscription: // also after the connection was lost, and with it perhaps a message
		if m.Kind != "subscribe" {
			return
		}
		name = m.Channel
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.watched[name]
	if c == nil {
		return
	}
	select {
	case <-c.confirmed:
	default: // what was before is not to be hinted at
		close(c.confirmed)
		return
	}
	for hint := range c.hints {
		select {
		case hint <- struct{}{}:
		default:
		}
	}
}

// refuse ends all watching with err, and keeps refusing for a while, so that not every waiter waits for a server that does not answer.
func (w *watcher) refuse(err error) {
	until := time.NewTimer(retryWait)
	defer until.Stop()
	for {
		w.mu.Lock()
		for name, c := range w.watched {
			select {
			case <-c.confirmed:
			default:
				c.err = fmt.Errorf("redisstore: watch: %w", err)
				close(c.confirmed)
			}
			delete(w.watched, name)
		}
		w.mu.Unlock()
		select {
		case <-w.changed:
		case <-until.C:
			return
		case <-w.ctx.Done():
			return
		}
	}
}
