package stampede

import (
	"math"
	"time"
)

// early draws whether a reader of f is to replace it before it expires: XFetch, from Vattani, Chierichetti and Lowenstein, "Optimal
// Probabilistic Cache Stampede Prevention", VLDB 2015. A reader is drawn when what is left of the TTL is at most
//
//	beta * delta * E,
//
// where delta is how long the load took and E is drawn from the exponential distribution with mean 1. So the closer the end and the
// costlier the load, the likelier; and whatever the rate of readers, 1/e of the drawn are drawn with more than beta * delta left.
// If every drawn reader loads, there are e^(1/beta) loads per expiry at high rates: those that are drawn while the first one
// loads. With a lock there is one.
func (c *Cache[V]) early(p *rule, f *found[V]) bool {
	if p.EarlyBeta <= 0 || f.LoadTime <= 0 || f.Failure != "" { // after a failure there is a pause
		return false
	}
	return float64(f.Left) <= p.EarlyBeta*float64(f.LoadTime)*-math.Log(1-c.rand())
}

// loadTime is what an entry keeps of how long its load took. XFetch multiplies it, so it is never zero.
func loadTime(took time.Duration) time.Duration {
	return max(took.Truncate(time.Microsecond), time.Microsecond)
}
