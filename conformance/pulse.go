package conformance

import (
	"sync/atomic"
	"time"
)

// pulse measures how late this process gets to run: on a busy machine leases need more time to live by.
type pulse struct {
	worst atomic.Int64 // of the last seconds
	done  chan struct{}
}

const beat = 5 * time.Millisecond

func newPulse() *pulse {
	p := &pulse{done: make(chan struct{})}
	go func() {
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		last := time.Now()
		for {
			select {
			case <-ticker.C:
			case <-p.done:
				return
			}
			late := time.Since(last) - beat
			last = last.Add(beat + late)
			p.worst.Store(max(int64(late), p.worst.Load()*999/1000)) // a tenth of it is left after 12 s
		}
	}()
	return p
}

func (p *pulse) stop() { close(p.done) }

// late is how late this process has been of late.
func (p *pulse) late() time.Duration { return time.Duration(p.worst.Load()) }
