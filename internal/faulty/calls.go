package faulty

import (
	"context"
	"time"

	"github.com/paddock-go/paddock/backend"
)

// onWire is a as a request says it: without the Keeper's part.
func onWire(a *backend.Attempt, waits bool) *backend.Attempt {
	return &backend.Attempt{
		Key: a.Key, Owner: a.Owner, Note: a.Note, TTL: a.TTL, MaxHold: a.MaxHold, NoRenew: a.NoRenew, Waits: waits, Slow: a.Slow,
	}
}

// server's calls do not end with their caller.
var ever = context.Background()

// Try is that of backend.Backend.
func (l *Link) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	late := onWire(a, false)
	if err := l.request(ctx, func() { _, _ = l.Server.Try(ever, late) }); err != nil {
		return backend.Grant{}, err
	}
	if a.Waits {
		return l.queue(ctx, a)
	}
	g, err := l.Server.Try(ever, onWire(a, false))
	if lost := l.reply(ctx); lost != nil {
		return backend.Grant{}, lost
	}
	return g, err
}

// queue is a Try that may wait. It goes on asking whether the server is there.
func (l *Link) queue(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	type answer struct {
		backend.Grant
		error
	}
	answered := make(chan answer, 1)
	hung, hangUp := context.WithCancel(ever)
	defer hangUp() // the place in the queue stays until Undo
	go func() {
		g, err := l.Server.Try(hung, onWire(a, true))
		answered <- answer{g, err}
	}()
	ping := time.NewTicker(aliveWithin / 10)
	defer ping.Stop()
	for {
		now := l.state()
		switch {
		case now.broken:
			return backend.Grant{}, errReset
		case now.silent:
			if err := now.over(ctx); err != nil {
				return backend.Grant{}, err
			}
			continue
		}
		select {
		case got := <-answered:
			if lost := l.reply(ctx); lost != nil {
				return backend.Grant{}, lost
			}
			return got.Grant, got.error
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err()
		case <-now.changed:
		case <-ping.C:
			a.Contended(0)
		}
	}
}

// Undo is that of backend.Backend.
func (l *Link) Undo(ctx context.Context, a *backend.Attempt) error {
	return l.end(ctx, a, l.Server.Undo)
}

// Release is that of backend.Backend.
func (l *Link) Release(ctx context.Context, a *backend.Attempt) error {
	return l.end(ctx, a, l.Server.Release)
}

func (l *Link) end(ctx context.Context, a *backend.Attempt, call func(context.Context, *backend.Attempt) error) error {
	request := onWire(a, false)
	if err := l.request(ctx, func() { _ = call(ever, request) }); err != nil {
		return err
	}
	err := call(ever, request)
	if lost := l.reply(ctx); lost != nil {
		return lost
	}
	return err
}

// Renew is that of backend.Backend.
func (l *Link) Renew(ctx context.Context, batch []backend.Renewal) {
	request := make([]backend.Renewal, len(batch))
	for i, r := range batch {
		request[i] = backend.Renewal{Attempt: onWire(r.Attempt, false), TTL: r.TTL, Shorten: r.Shorten}
	}
	err := l.request(ctx, func() { l.Server.Renew(ever, request) })
	if err == nil {
		l.Server.Renew(ever, request)
		err = l.reply(ctx)
	}
	for i := range batch {
		if err != nil {
			batch[i].Err = err
			continue
		}
		answer := request[i]
		answer.Attempt = batch[i].Attempt
		batch[i] = answer
	}
}
