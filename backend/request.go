package backend

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/paddock-go/paddock"
)

const (
	defaultTTL = 15 * time.Second
	maxTTL     = 10 * 365 * 24 * time.Hour // what every server can count in milliseconds
	maxKey     = 1024                      // bytes
	maxNote    = 256                       // bytes
)

// request is a checked acquisition: options with their defaults, TTLs rounded.
type request struct {
	key     string
	note    string
	ttl     time.Duration
	maxHold time.Duration
	noRenew bool
}

func (k *Keeper) check(key string, opts *paddock.Options) (request, error) {
	if err := CheckKey(key); err != nil {
		return request{}, err
	}
	r := request{key: key, note: k.note, ttl: max(defaultTTL, k.g.MinTTL)}
	if opts != nil {
		if opts.TTL != 0 {
			r.ttl = opts.TTL
		}
		if opts.Note != "" {
			r.note = opts.Note
		}
		r.maxHold, r.noRenew = opts.MaxHold, opts.NoRenew
	}
	var err error
	if r.ttl, err = k.checkTTL(r.ttl); err != nil {
		return request{}, err
	}
	if r.maxHold < 0 {
		return request{}, fmt.Errorf("%w: MaxHold %v of key %q is negative", paddock.ErrInvalid, r.maxHold, key)
	}
	if r.maxHold > 0 {
		r.ttl = min(r.ttl, max(k.g.MinTTL, k.roundUp(r.maxHold)))
	}
	if len(r.note) > maxNote || !utf8.ValidString(r.note) {
		return request{}, fmt.Errorf("%w: Note of key %q has %d bytes; it has to be at most %d of UTF-8",
			paddock.ErrInvalid, key, len(r.note), maxNote)
	}
	return r, nil
}

// CheckKey returns an ErrInvalid that says what is wrong with key, or nil. The Keeper calls it for acquisitions; a backend
// calls it for its other methods that take a key.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", paddock.ErrInvalid)
	case len(key) > maxKey:
		return fmt.Errorf("%w: a key of %d bytes (%q...); it has to have at most %d", paddock.ErrInvalid, len(key), key[:32], maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: key %q is not UTF-8", paddock.ErrInvalid, key)
	}
	return nil
}

func (k *Keeper) checkTTL(ttl time.Duration) (time.Duration, error) {
	if ttl < k.g.MinTTL || ttl > maxTTL {
		return 0, fmt.Errorf("%w: TTL %v; %s takes %v to %v", paddock.ErrInvalid, ttl, k.g.Backend, k.g.MinTTL, maxTTL)
	}
	return k.roundUp(ttl), nil
}

func (k *Keeper) roundUp(d time.Duration) time.Duration {
	if rest := d % k.g.TTLStep; rest != 0 {
		d += k.g.TTLStep - rest
	}
	return d
}

// processNote is the default Note: "host/pid".
func processNote() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	pid := fmt.Sprintf("/%d", os.Getpid())
	host = strings.ToValidUTF8(host, "?")
	for len(host)+len(pid) > maxNote {
		_, n := utf8.DecodeLastRuneInString(host)
		host = host[:len(host)-n]
	}
	return host + pid
}
