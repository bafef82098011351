package backend

import (
	"context"
	"sync/atomic"
)

// idleCallers is how many goroutines a Keeper keeps between calls. A new one costs a call on a fast server a tenth of its
// time, most of it for growing its stack to what clients of servers need.
const idleCallers = 16

// caller is a goroutine that makes calls, so that whoever waits for a call can abandon it.
type caller struct {
	jobs  chan func()
	done  chan struct{} // has room for one
	state atomic.Int32
}

const (
	calling int32 = iota
	returned
	abandoned
)

// call runs f and returns true, or returns false at ctx's end while f goes on. asker is the context that ctx was made of: one that cannot
// end leaves ctx its deadline only.
func (k *Keeper) call(ctx, asker context.Context, f func()) bool {
	if k.o.Inline || (k.o.Deadlines && asker.Done() == nil) {
		f()
		return true
	}
	k.mu.Lock()
	k.refs++
	var c *caller
	if n := len(k.idle); n > 0 {
		c = k.idle[n-1]
		k.idle = k.idle[:n-1]
	}
	k.mu.Unlock()
	if c == nil {
		c = &caller{jobs: make(chan func(), 1), done: make(chan struct{}, 1)}
		go k.makeCalls(c)
	}
	c.state.Store(calling)
	c.jobs <- f
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.state.CompareAndSwap(calling, abandoned) {
			return false // the goroutine ends when f does, and drops the reference
		}
		<-c.done
	}
	k.mu.Lock()
	if len(k.idle) < idleCallers && !k.closed {
		k.idle = append(k.idle, c)
	} else {
		close(c.jobs)
	}
	k.unref()
	k.mu.Unlock()
	return true
}

func (k *Keeper) makeCalls(c *caller) {
	for f := range c.jobs {
		f()
		if !c.state.CompareAndSwap(calling, returned) {
			k.mu.Lock()
			k.unref()
			k.mu.Unlock()
			return
		}
		c.done <- struct{}{}
	}
}
