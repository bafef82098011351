// Package etcdguard is a fencing.Guard for data in etcd, versions 3.4 to 3.7.
//
//	guard, err := etcdguard.New(client, nil)
//	...
//	err = paddock.Do(ctx, locker, "config", nil, func(ctx context.Context, lease *paddock.Lease) error {
//		return guard.Do(ctx, "config", lease.Fence(), clientv3.OpPut("config/limit", "100"))
//	})
//	if errors.Is(err, fencing.ErrStale) { // a later holder was here: stop, and undo nothing
//
// A resource is a name of the caller's choosing, for any keys that the lock protects. Do writes them in one transaction with the
// mark. A transaction with conditions of its own takes those of the guard from [Guard.Ops], and asks [Guard.Check] why it failed.
// Whoever writes to the keys without the guard is not held back by it.
//
// # What it needs of the cluster
//
// That it keeps its data, as etcd does while a majority of its members does: the mark is in the same log as what it protects. A
// cluster that is restored from a backup has the marks of that time, beside the data of that time. Tokens of etcdlock are
// revisions of the cluster: restore with --bump-revision, or they begin below the marks and every fence is stale.
//
// A user needs permission to read and write the range of the prefix. A transaction has 4 compares and 2 operations of the guard's,
// of the 128 that etcd allows by default.
//
// # Keys, version 1
//
//	<prefix>/v1/mark/<resource>/<domain>/<token, 19 digits>/<owner>    empty; never expires
//
// All but letters, digits and -_.~$&+=:@ is percent-encoded in them. There is one for each resource: the fence is in the name, since a
// transaction can ask whether there are keys in a range, and so whether there is a higher mark or one of another domain, without
// having read anything before.
package etcdguard

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix of the marks' keys: at most 128 bytes of UTF-8, without /v1/ in it or at its end. Defaults to "paddock".
	Prefix string
}

const (
	maxPrefix = 128    // bytes
	version   = "/v1/" // of the layout
)

// Guard is a fencing.Guard. All methods may be called concurrently.
type Guard struct {
	client *clientv3.Client
	prefix string
}

// New returns a Guard that uses client, which stays the caller's to close. It sends nothing. Errors are fencing.ErrInvalid.
func New(client *clientv3.Client, opts *Options) (*Guard, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = "paddock"
	}
	switch {
	case client == nil:
		return nil, fmt.Errorf("%w: etcdguard: the client is nil", fencing.ErrInvalid)
	case len(o.Prefix) > maxPrefix || !utf8.ValidString(o.Prefix):
		return nil, fmt.Errorf("%w: etcdguard: the Prefix %q; it has to be at most %d bytes of UTF-8", fencing.ErrInvalid, o.Prefix, maxPrefix)
	case strings.Contains(o.Prefix+"/", version):
		return nil, fmt.Errorf("%w: etcdguard: the Prefix %q contains %q, so its keys could be another prefix's", fencing.ErrInvalid, o.Prefix, version)
	}
	return &Guard{client: client, prefix: o.Prefix + version + "mark/"}, nil
}

// Advance is that of fencing.Guard.
func (g *Guard) Advance(ctx context.Context, resource string, f fencing.Fence) error {
	return g.Do(ctx, resource, f)
}

// Do shows f for resource and, if it may pass, does ops in the same transaction: a fenced write. Errors are those of fencing.Guard.
func (g *Guard) Do(ctx context.Context, resource string, f fencing.Fence, ops ...clientv3.Op) error {
	if err := fencing.Validate(resource, f); err != nil {
		return err
	}
	for {
		cmps, own := g.Ops(resource, f)
		resp, err := g.client.Txn(ctx).If(cmps...).Then(append(own, ops...)...).Commit()
		if err != nil {
			return fmt.Errorf("etcdguard: show %v for %q: %w", f, resource, err)
		}
		if resp.Succeeded {
			return nil
		}
		if err := g.Check(ctx, resource, f); err != nil { // nil: the mark that was in the way is gone, migrated
			return err
		}
	}
}

// Ops returns what makes a transaction of the caller's a fenced one, to be added to its conditions and to what it does if they are met:
//
//	cmps, ops := guard.Ops("config", lease.Fence())
//	resp, err := client.Txn(ctx).If(append(cmps, mine...)...).Then(append(ops, puts...)...).Commit()
//	if err == nil && !resp.Succeeded {
//		err = guard.Check(ctx, "config", lease.Fence()) // nil: mine were not met
//	}
//
// The operations move the mark to f. With a fence that no lease can have, the conditions are never met, and Check says why.
func (g *Guard) Ops(resource string, f fencing.Fence) ([]clientv3.Cmp, []clientv3.Op) {
	if fencing.Validate(resource, f) != nil {
		return []clientv3.Cmp{clientv3.Compare(clientv3.Version(g.prefix), "<", 0)}, nil
	}
	all, domain, token, mark := g.names(resource, f)
	return []clientv3.Cmp{
			none(all, domain), none(after(domain), after(all)), // of another domain
			none(token, mark), none(mark+"\x00", after(domain)), // of another owner with that token, or higher
		}, []clientv3.Op{
			clientv3.OpDelete(domain, clientv3.WithRange(token)),
			clientv3.OpPut(mark, ""),
		}
}

// names are the key of a mark, and what it begins with: that of the resource, with the domain, with the token.
func (g *Guard) names(resource string, f fencing.Fence) (all, domain, token, mark string) {
	all = g.prefix + url.PathEscape(resource) + "/"
	domain = all + url.PathEscape(f.Domain) + "/"
	token = domain + digits(f.Token) + "/"
	return all, domain, token, token + url.PathEscape(f.Owner)
}

// Check tells whether f may pass for resource, as of some moment during the call: an error is that of fencing.Guard. It moves nothing.
func (g *Guard) Check(ctx context.Context, resource string, f fencing.Fence) error {
	if err := fencing.Validate(resource, f); err != nil {
		return err
	}
	seen, _, err := g.read(ctx, resource)
	if err != nil {
		return err
	}
	return fencing.Check(resource, seen, f)
}

// Migrate lets fences of the domain to pass for resource, whose mark is of the domain from: what an operator calls when the locks move to
// another service, and no holder of the old one is left. It is fencing.ErrDomain when the mark is of neither, and nil when there is
// nothing to do.
func (g *Guard) Migrate(ctx context.Context, resource, from, to string) error {
	if err := fencing.ValidateMigration(resource, from, to); err != nil {
		return err
	}
	for {
		seen, mark, err := g.read(ctx, resource)
		if err != nil {
			return err
		}
		move, err := fencing.Migration(resource, seen, from, to)
		if !move {
			return err
		}
		// A mark has one name for each fence, and one revision of creation: if it is there, it is the mark still.
		resp, err := g.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(mark), ">", 0)).
			Then(clientv3.OpDelete(mark), clientv3.OpPut(g.prefix+url.PathEscape(resource)+"/"+url.PathEscape(to)+"/"+digits(0)+"/", "")).
			Commit()
		if err != nil {
			return fmt.Errorf("etcdguard: migrate %q: %w", resource, err)
		}
		if resp.Succeeded {
			return nil
		}
	}
}

// read returns the mark of resource, if any, and its key.
func (g *Guard) read(ctx context.Context, resource string) (seen fencing.Fence, mark string, err error) {
	all := g.prefix + url.PathEscape(resource) + "/"
	resp, err := g.client.Get(ctx, all, clientv3.WithRange(after(all)), clientv3.WithKeysOnly(), clientv3.WithLimit(2))
	switch {
	case err != nil:
		return seen, "", fmt.Errorf("etcdguard: the mark of %q: %w", resource, err)
	case len(resp.Kvs) == 0:
		return seen, "", nil
	}
	mark = string(resp.Kvs[0].Key)
	if seen, ok := g.parse(all, mark, resource); ok && len(resp.Kvs) == 1 {
		return seen, mark, nil
	}
	return seen, "", fmt.Errorf("etcdguard: below %q there are keys that are no mark", all)
}

// parse reads the key of a mark of resource, below all.
func (g *Guard) parse(all, mark, resource string) (seen fencing.Fence, ok bool) {
	parts := strings.Split(strings.TrimPrefix(mark, all), "/")
	if len(parts) != 3 {
		return seen, false
	}
	domain, e1 := url.PathUnescape(parts[0])
	token, e2 := strconv.ParseUint(parts[1], 10, 63)
	owner, e3 := url.PathUnescape(parts[2])
	seen = fencing.Fence{Domain: domain, Token: fencing.Token(token), Owner: owner}
	// A name that means the same but is written otherwise is in the way of Ops' conditions, and would pass Check: Do would never end.
	_, _, _, own := g.names(resource, seen)
	return seen, e1 == nil && e2 == nil && e3 == nil && domain != "" && own == mark
}

// none is met when there is no key from begin up to end.
func none(begin, end string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(begin), "=", 0).WithRange(end)
}

// after is what comes after all names that begin with dir, which ends in a slash.
func after(dir string) string { return dir[:len(dir)-1] + "0" }

func digits(t fencing.Token) string { return fmt.Sprintf("%019d", t) }
