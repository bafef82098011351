// Package config makes lockers and policies of a YAML file:
//
//	backends:
//	  fast: redis://:${REDIS_PASSWORD}@cache.internal:6379/0
//	  safe: etcd://etcd-1:2379,etcd-2:2379,etcd-3:2379
//	store: redis://:${REDIS_PASSWORD}@cache.internal:6379/1
//	keys:
//	  - pattern: "trending:*"
//	    cost: wasteful
//	    backend: fast
//	    ttl: 60s
//	    stale_for: 5m
//	  - pattern: "*"
//	    ttl: 1m
//
// docs/paddock.yaml has every field. What is in the file is checked as strictly as it can be: a field that is not known, a
// backend that is not there, a pattern that an earlier one shadows, a cost that its backend cannot bear, is an [Error] with
// line and column that says what is wrong and what would be right; several are joined.
//
// # Values
//
// Times are written as people write them: 250ms, 30s, 5m, 2h, 7d. Fractions are 10% or 0.1. What is left out has the default of
// stampede.Policy, while a zero that is written is a zero: jitter 0% is none, error_ttl 0s remembers no errors.
//
// # Backends and stores
//
// URLs are opened by paddock.Open and stampede.OpenStore, so the program has to import the packages of their schemes; an error
// says which import is missing. In a URL ${NAME} stands for an environment variable, percent-encoded, so that a password may have any
// character; a URL that is nothing but ${NAME} is taken as it is. No error shows a URL or a variable's value.
package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/stampede"
)

// ErrInvalid is for errors.Is; the error is an *Error, or several that are joined.
var ErrInvalid = errors.New("config: invalid")

// Error is what is wrong at one place of the file.
type Error struct {
	File         string
	Line, Column int // from 1; 0: not known
	Err          error
}

// Error is "file:line:column: what is wrong".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

// Unwrap returns ErrInvalid and the cause.
func (e *Error) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// Options of Load and Parse; nil is the zero Options.
type Options struct {
	// Observer is given to all backends. Defaults to none.
	Observer *paddock.Observer
	// LookupEnv finds the variables of URLs. Defaults to os.LookupEnv.
	LookupEnv func(name string) (string, bool)
}

// Config is what a file says, checked and opened.
type Config struct {
	Lockers  map[string]paddock.Locker // by the name of the backend
	Store    stampede.Store            // nil when the file has none
	Policies stampede.Policies         // those of keys, in order
	Backends []string                  // of Policies: the name of each one's backend, or ""
}

// Load is Parse of a file.
func Load(ctx context.Context, path string, opts *Options) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(ctx, path, data, opts)
}

// Parse checks data, which errors call name, and opens what it names. ctx bounds the opening, which waits for no server that its
// package can reach later. Close the Config when it is used no more.
func Parse(ctx context.Context, name string, data []byte, opts *Options) (*Config, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	f := &file{name: name, env: o.LookupEnv}
	f.read(data)
	if err := f.err(); err != nil {
		return nil, err
	}
	c := &Config{Lockers: map[string]paddock.Locker{}}
	for _, b := range f.backends {
		l, err := paddock.Open(ctx, b.url, &paddock.OpenOptions{Observer: o.Observer})
		if err != nil {
			f.fail(b.node, "backend %q: %w", b.name, err)
			continue
		}
		c.Lockers[b.name] = l
	}
	if f.store != nil {
		s, err := stampede.OpenStore(ctx, f.store.url)
		if err != nil {
			f.fail(f.store.node, "store: %w", err)
		}
		c.Store = s
	}
	if f.err() == nil {
		f.policies(c)
	}
	if err := f.err(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close closes the lockers and the store. A Cache that uses them is to be closed first.
func (c *Config) Close() error {
	var errs []error
	for _, l := range c.Lockers {
		errs = append(errs, l.Close())
	}
	if s, ok := c.Store.(io.Closer); ok {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
