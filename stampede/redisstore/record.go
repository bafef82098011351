package redisstore

import (
	"encoding/binary"
	"time"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

// An entry is kept as
//
//	"pk1"                     what it is, and the version of this layout
//	'v' or 'n'                a value, or the answer that there is none
//	TTL                       in ms
//	stale window              in ms
//	load time                 in us
//	token
//	domain, owner, writer     each with its length before it
//	the value                 to the end
//
// where numbers and lengths are unsigned varints (encoding/binary).
const magic = "pk1"

const (
	kindValue    = 'v'
	kindNotFound = 'n'
)

func encode(e stampede.Entry) []byte {
	f := e.Fence
	b := make([]byte, 0, len(magic)+1+7*binary.MaxVarintLen64+len(f.Domain)+len(f.Owner)+len(e.Writer)+len(e.Value))
	b = append(b, magic...)
	if e.Kind == stampede.NotFound {
		b = append(b, kindNotFound)
	} else {
		b = append(b, kindValue)
	}
	for _, n := range []int64{milliseconds(e.TTL), milliseconds(e.StaleFor), e.LoadTime.Microseconds(), int64(f.Token)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, s := range []string{f.Domain, f.Owner, e.Writer} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return append(b, e.Value...)
}

// decode reads a record into e, and reports whether it is one.
func decode(record string, e *stampede.Entry) bool {
	if len(record) <= len(magic) || record[:len(magic)] != magic {
		return false
	}
	switch record[len(magic)] {
	case kindValue:
		e.Kind = stampede.Value
	case kindNotFound:
		e.Kind = stampede.NotFound
	default:
		return false
	}
	r := reader{rest: []byte(record[len(magic)+1:])}
	e.TTL = time.Duration(r.number()) * time.Millisecond
	e.StaleFor = time.Duration(r.number()) * time.Millisecond
	e.LoadTime = time.Duration(r.number()) * time.Microsecond
	e.Fence.Token = fencing.Token(r.number())
	e.Fence.Domain, e.Fence.Owner, e.Writer = r.text(), r.text(), r.text()
	e.Value = r.rest
	return !r.short
}

// reader takes a record apart.
type reader struct {
	rest  []byte
	short bool // something was not there
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.short = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() string {
	n := r.number()
	if r.short || n > uint64(len(r.rest)) {
		r.short = true
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}
