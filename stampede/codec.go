package stampede

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Codec turns values into bytes and back. Its methods may be called concurrently. What Decode refuses is treated as if it were not
// there; so a Codec whose format changes should refuse the old one.
type Codec[V any] interface {
	Encode(V) ([]byte, error)
	Decode([]byte) (V, error)
}

// JSON is the Codec of encoding/json.
type JSON[V any] struct{}

// Encode is json.Marshal.
func (JSON[V]) Encode(v V) ([]byte, error) { return json.Marshal(v) }

// Decode is json.Unmarshal.
func (JSON[V]) Decode(b []byte) (v V, err error) {
	err = json.Unmarshal(b, &v)
	return v, err
}

var errForeign = errors.New("not an entry of this store")

// encode is the codec's Encode, whose panics must not end the process: it runs on goroutines of the cache's.
func (c *Cache[V]) encode(v V) (b []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("encode: %w", newPanic(r))
		}
	}()
	if b, err = c.o.Codec.Encode(v); err != nil {
		err = fmt.Errorf("encode: %w", err)
	}
	return b, err
}

// decode is the codec's Decode.
func (c *Cache[V]) decode(e *Entry) (v V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("decode: %w", newPanic(r))
		}
	}()
	switch e.Kind {
	case Value:
		return c.o.Codec.Decode(e.Value)
	case Foreign:
		return v, errForeign
	}
	return v, nil
}
