package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

const aboutDemo = `usage: paddock demo [flags]

A cached value expires, and 50 requests for it come at once. Seven ways to meet them:
four that people write, which recompute it more than once, and three of paddock's,
which recompute it once. Takes about 5 seconds.

Without flags all of it happens in this process and needs nothing else. -url runs it
on real servers, where it uses keys that begin with PREFIX-demo-, PREFIX being that
of the URL or else paddock, and removes them in the end.

Exit status: 0 if every row showed what it should, 1 if not, 64 for a call that
cannot work, 69 when a server cannot be reached, 128+n when signal n ended it.`

const (
	requests  = 50
	instances = 5                // that this process plays when it is the only one
	rowsLimit = 11 * time.Second // for all rows
	lastLimit = 3 * time.Second  // for the clean-up
)

var errTooSlow = fmt.Errorf("the demo is not done after %v", rowsLimit)

func demo(args []string, stdout, stderr io.Writer) int {
	flags := newFlags("demo", aboutDemo, stderr)
	lock := flags.String("url", "", "a lock service, as in redis://localhost:6379 (default: in this process)")
	store := flags.String("store", "", "a Redis server for the cached values (default: that of -url, if it is one, else in this process)")
	processes := flags.Int("processes", 1, "how many processes the requests are spread over; needs servers")
	asJSON := flags.Bool("json", false, "print JSON")
	if status, ok := parse(flags, args); !ok {
		return status
	}
	complain := func(status int, err any) int {
		fmt.Fprintln(stderr, "paddock demo:", err)
		return status
	}
	if schemeOf(*lock) == "memory" { // of which every Locker would have its own
		*lock = ""
	}
	c := siteConfig{Lock: *lock, Store: *store, Prefix: prefixOf(*lock) + "-demo-" + strings.ToLower(rand.Text()[:8])}
	if c.Store == "" && isRedis(c.Lock) {
		c.Store = c.Lock
	}
	switch {
	case flags.NArg() > 0:
		return complain(exitUsage, fmt.Sprintf("%q is too much; see paddock demo -h", flags.Arg(0)))
	case *processes < 1 || *processes > requests:
		return complain(exitUsage, fmt.Sprintf("-processes is 1 to %d", requests))
	case *processes > 1 && c.Lock == "":
		return complain(exitUsage, "several processes need a lock service that all of them reach: give -url, as in -url redis://localhost:6379")
	case *processes > 1 && c.Store == "":
		return complain(exitUsage, "several processes need a server for the cached values that all of them reach: give -store, as in -store redis://localhost:6379")
	case c.Store != "" && !isRedis(c.Store):
		return complain(exitUsage, "-store takes a URL of Redis: redis:, redis+sentinel:, redis+cluster:, or rediss for TLS")
	}
	logging.Disable() // what go-redis has to say comes back as errors

	ctx, cancel := context.WithTimeoutCause(context.Background(), rowsLimit, errTooSlow)
	defer cancel()
	ctx, stop := untilSignal(ctx)
	defer stop()
	rows, err := play(ctx, c, *processes, func() printer {
		if *asJSON {
			return silent{}
		}
		return newScreen(stdout, c, *processes)
	}())
	var s signalled
	switch {
	case errors.As(err, &s):
		return s.status()
	case err != nil:
		return complain(statusOf(err), err)
	}
	if *asJSON {
		if err := printJSON(stdout, c, rows); err != nil {
			return complain(exitUnavailable, err)
		}
	}
	for _, r := range rows {
		if !r.asItShould() {
			return 1
		}
	}
	return 0
}

// untilSignal ends ctx when the process is told to end. The next signal then ends the process.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endings...)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// play makes all rows, one after the other.
func play(ctx context.Context, c siteConfig, processes int, p printer) (rows []row, err error) {
	s, err := openSite(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.Background(), lastLimit)
		defer cancel()
		err = errors.Join(err, s.clean(cctx))
		s.close()
	}()
	var all crew = &team{site: s, instances: instances, requests: requests}
	if processes > 1 {
		f, err := startFleet(c, processes, requests)
		if err != nil {
			return nil, err
		}
		defer f.stop() // before the clean-up
		all = f
	}
	g, err := s.guarantees(ctx)
	if err != nil {
		return nil, err
	}
	p.begin(g)
	for _, v := range variants {
		r := row{variant: v}
		if err := r.play(ctx, s, all); err != nil {
			return nil, err
		}
		p.row(r)
		rows = append(rows, r)
	}
	p.end(rows)
	return rows, nil
}

// expiriesLimit is how often a value expires in one row at most.
const expiriesLimit = 8

// play lets the value expire, and once more where that proved nothing:
//
// Without paddock, because on a server that answers within microseconds, and a machine that is busy with other things, one
// request may be through before the others begin. That no two recomputed at once is luck then.
//
// With paddock, because a process that is not let run cannot renew a lock, nor a server that is not. That is what the TTL is there for; but
// the question of the row with the short one is what happens to those who do run.
func (r *row) play(ctx context.Context, s *site, all crew) error {
	for n := 1; ; n++ {
		err := r.expire(ctx, s, all, expiry{r.variant, n})
		if err != nil {
			err = fmt.Errorf("%s: %w", r.variant.name, err)
		}
		if ctx.Err() != nil || n == expiriesLimit {
			return err
		}
		switch {
		case err == nil && r.asItShould():
			return nil
		case err == nil && !r.variant.safe():
			r.lucky++
		case r.variant.policy.LockTTL == 0:
			return err
		case err != nil:
			r.void = append(r.void, err.Error())
		case r.Stood > r.variant.policy.LockTTL/3:
			r.void = append(r.void, fmt.Sprintf("a process or the server stood still for %d ms", r.Stood.Milliseconds()))
		default:
			return err
		}
	}
}

// expire lets the value expire once.
func (r *row) expire(ctx context.Context, s *site, all crew, x expiry) (err error) {
	if err = all.prepare(ctx, x); err != nil {
		return err
	}
	if r.start, err = s.seed(ctx, x); err != nil {
		return err
	}
	stood := standstill(10*lookEvery, s.ask)
	r.outcome, err = all.run(ctx, r.start)
	r.Stood = max(r.Stood, stood())
	return err
}

// prefixOf is the prefix in a Locker's URL, so that the demo stays within what its user may write to.
func prefixOf(rawURL string) string {
	_, query, _ := strings.Cut(rawURL, "?")
	if values, err := url.ParseQuery(query); err == nil && values.Get("prefix") != "" {
		return values.Get("prefix")
	}
	return "paddock"
}

// shown is a URL as it may be shown: without what may be secret.
func shown(rawURL string) string {
	if rawURL == "" {
		return "memory:"
	}
	rawURL, _, _ = strings.Cut(rawURL, "?")
	if scheme, rest, ok := strings.Cut(rawURL, "://"); ok {
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			return scheme + "://" + rest[at+1:]
		}
	}
	return rawURL
}

func printJSON(w io.Writer, c siteConfig, rows []row) error {
	type line struct {
		Name       string  `json:"name"`
		Requests   int     `json:"requests"`
		Recomputes int     `json:"recomputes"`
		MaxHolders int     `json:"max_holders"`
		Stale      int     `json:"stale"`
		P50        float64 `json:"p50_ms"`
		Max        float64 `json:"max_ms"`
	}
	out := struct {
		URL      string `json:"url"`
		Variants []line `json:"variants"`
	}{URL: shown(c.Lock)}
	for _, r := range rows {
		p50, most := r.latency()
		out.Variants = append(out.Variants, line{
			Name: r.variant.name, Requests: len(r.Answers), Recomputes: len(r.Computes), MaxHolders: r.maxHolders(),
			Stale: r.stale(), P50: ms(p50), Max: ms(most),
		})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
