package memstore

import (
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// find returns the record of key without what has expired, or nil when nothing is left.
func (s *Store) find(key string) *record {
	r := s.records[key]
	if r == nil {
		return nil
	}
	now := time.Now()
	if !now.Before(r.expires) {
		r.entry = stampede.Entry{}
	}
	if !now.Before(r.fails) {
		r.failure = ""
	}
	if r.ticket != nil && !now.Before(r.ticket.expires) {
		r.ticket = nil
	}
	if r.empty() {
		s.remove(r)
		return nil
	}
	s.recent.MoveToFront(r.place)
	return r
}

// make returns the record of key, which may be a new one. It has to be settled.
func (s *Store) make(key string) *record {
	if r := s.find(key); r != nil {
		return r
	}
	r := &record{key: key}
	r.place = s.recent.PushFront(r)
	s.records[key] = r
	return r
}

// settle counts r's bytes after a change, removes it if nothing is left, and makes room.
func (s *Store) settle(r *record) {
	if r.empty() {
		s.remove(r)
		return
	}
	s.bytes -= r.bytes
	r.bytes = len(r.key) + len(r.entry.Value) + len(r.failure)
	s.bytes += r.bytes
	for len(s.records) > s.o.MaxKeys || s.bytes > s.o.MaxBytes {
		s.remove(s.recent.Back().Value.(*record))
	}
}

func (s *Store) remove(r *record) {
	delete(s.records, r.key)
	s.recent.Remove(r.place)
	s.bytes -= r.bytes
}

func (r *record) empty() bool {
	return r.entry.Kind == stampede.Absent && r.failure == "" && r.ticket == nil
}

// write puts e in the place of entry and failure.
func (r *record) write(e stampede.Entry) {
	e.Value = append([]byte(nil), e.Value...)
	e.Failure = ""
	r.entry, r.failure = e, ""
	r.expires = time.Now().Add(e.TTL + e.StaleFor)
}

// read is what Get returns of r, which may be nil.
func (r *record) read() stampede.Entry {
	if r == nil {
		return stampede.Entry{}
	}
	e := r.entry
	if e.Kind != stampede.Absent {
		e.Left = time.Until(r.expires) - e.StaleFor
	}
	e.Failure = r.failure
	return e
}
