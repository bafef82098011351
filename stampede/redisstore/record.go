package redisstore

import (
	"encoding/binary"
	"math"
	"strconv"
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
func decode(record []byte, e *stampede.Entry) bool {
	if len(record) <= len(magic) || string(record[:len(magic)]) != magic {
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
	r := reader{rest: record[len(magic)+1:]}
	e.TTL = time.Duration(r.number(maxMilliseconds/2)) * time.Millisecond // half, for the sum of both
	e.StaleFor = time.Duration(r.number(maxMilliseconds/2)) * time.Millisecond
	e.LoadTime = time.Duration(r.number(maxMicroseconds)) * time.Microsecond
	e.Fence.Token = fencing.Token(r.number(uint64(fencing.MaxToken)))
	e.Fence.Domain, e.Fence.Owner, e.Writer = r.text(), r.text(), r.text()
	e.Value = r.rest
	return !r.short
}

// A failure goes before the entry, which may be missing:
//
//	"pf1"         what it is, and the version of this layout
//	until         13 digits: the failure is remembered while more than so many ms are left of the key
//	late          13 digits: the key outlives the entry by so many ms
//	length        5 digits
//	the message
//
// put.lua writes it.
const (
	failureMagic  = "pf1"
	failureHeader = 3 + 13 + 13 + 5
	maxFailure    = 99_999
)

// failure takes a failure off a record. ok is false when it cannot be read.
func failure(record []byte, left time.Duration) (message string, rest []byte, entryLeft time.Duration, ok bool) {
	if len(record) < failureHeader || string(record[:len(failureMagic)]) != failureMagic {
		return "", record, left, true
	}
	until, ok1 := digits(record[3:16])
	late, ok2 := digits(record[16:29])
	size, ok3 := digits(record[29:34])
	rest = record[failureHeader:]
	if !ok1 || !ok2 || !ok3 || max(until, late) > maxMilliseconds || size > uint64(len(rest)) {
		return "", nil, 0, false
	}
	if left > time.Duration(until)*time.Millisecond {
		message = string(rest[:size])
	}
	return message, rest[size:], left - time.Duration(late)*time.Millisecond, true
}

const (
	maxMilliseconds = uint64(math.MaxInt64 / time.Millisecond)
	maxMicroseconds = uint64(math.MaxInt64 / time.Microsecond)
)

// digits reads a number of digits alone: no sign, no space.
func digits(text []byte) (n uint64, ok bool) {
	n, err := strconv.ParseUint(string(text), 10, 64)
	return n, err == nil
}

// read makes an entry of what was found. What go-redis has for a PTTL without time is in ns: -1 never expires, -2 was not there.
func read(left time.Duration, record []byte) stampede.Entry {
	if left == -1 { // ours all expire
		return stampede.Entry{Kind: stampede.Foreign}
	}
	var e stampede.Entry
	message, record, entryLeft, ok := failure(record, left)
	if ok && len(record) > 0 {
		ok = decode(record, &e)
	} else if message == "" {
		ok = ok && left == -2 // a failure that is forgotten would have expired with its key
	}
	switch {
	case !ok:
		return stampede.Entry{Kind: stampede.Foreign}
	case left == -2: // written between the two commands
		e.Left = e.TTL
	case entryLeft <= 0:
		e = stampede.Entry{}
	case e.Kind != stampede.Absent:
		e.Left = min(e.TTL, entryLeft-e.StaleFor)
	}
	e.Failure = message
	return e
}

// reader takes a record apart.
type reader struct {
	rest  []byte
	short bool // something was not there, or not possible
}

func (r *reader) number(most uint64) uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > most {
		r.short = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() string {
	n := r.number(uint64(len(r.rest)))
	if r.short || n > uint64(len(r.rest)) {
		r.short = true
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}
