package zklock

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// node is what one attempt has on the servers, or may have: an ephemeral node with a sequence number under its key's
// parent. Its name holds the attempt's owner, so it is found again when the answer to its creation was lost.
type node struct {
	owner  string
	parent string
	// The ensemble's mu guards these.
	session *session    // that it hangs on
	holder  bool        // it stood first
	lost    func(error) // tells the Keeper that it is gone

	tried chan struct{} // closed when the Try is over; until then it alone uses what follows
	name  string        // "" while it is not known whether there is one
	none  bool          // there is none, and will be none
	token fencing.Token
}

func newNode(parent string, a *backend.Attempt) *node {
	return &node{owner: a.Owner, parent: parent, lost: a.Lost, tried: make(chan struct{})}
}

func (n *node) path() string { return n.parent + "/" + n.name }

// place is a node's standing in the queue for its key.
type place struct {
	name  string
	owner string
	seq   int32
}

const (
	layout     = "v1" // of everything below the prefix
	nodePrefix = "lock-"
	ownerSize  = 36 // a UUID
)

// parsePlace reads the name of a node. Other nodes under a key's parent are not ours.
func parsePlace(name string) (place, bool) {
	rest, ok := strings.CutPrefix(name, nodePrefix)
	if !ok || len(rest) < ownerSize+2 || rest[ownerSize] != '-' {
		return place{}, false
	}
	// Ten characters at least; past 2^31-1 the server goes on at -2^31.
	digits := rest[ownerSize+1:]
	seq, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || digits[0] == '+' || len(digits) < 10 || len(digits) > 10 && (digits[0] != '-' || digits[1] == '0') || len(digits) > 11 {
		return place{}, false
	}
	return place{name: name, owner: rest[:ownerSize], seq: int32(seq)}, true
}

// before compares sequence numbers, which wrap around: what is less than half the circle ahead is later.
func (p place) before(q place) bool { return p.seq-q.seq < 0 }

// queue returns the places among the names of children, first to last.
func queue(children []string) []place {
	places := make([]place, 0, len(children))
	for _, name := range children {
		if p, ok := parsePlace(name); ok {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		switch {
		case a.before(b):
			return -1
		case b.before(a):
			return 1
		}
		return 0
	})
	return places
}

// ahead returns those who stand before owner, first to last; false if owner is not there.
func ahead(children []string, owner string) ([]place, bool) {
	places := queue(children)
	for i, p := range places {
		if p.owner == owner {
			return places[:i], true
		}
	}
	return nil, false
}

// position returns owner's place.
func position(children []string, owner string) (place, bool) {
	for _, name := range children {
		if p, ok := parsePlace(name); ok && p.owner == owner {
			return p, true
		}
	}
	return place{}, false
}

// element encodes any string as one element of a path. Distinct strings have distinct elements, and none is ".", ".." or
// has a character that ZooKeeper refuses: what is not a letter, a digit or one of "-_:@.+" becomes %XX, byte by byte, and so
// does a dot in the first place.
func element(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_:@+", c) >= 0, c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
