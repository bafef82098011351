package stampede

import "time"

// Observer is told what a Cache does. Every field may be nil. The functions are called one at a time or several at once, on
// the goroutines that do the work: they must return quickly, must be safe for concurrent use, and must not call the Cache.
type Observer struct {
	// Served: a call of Get or Lookup returned a value, took after it began; age is as in Result.
	Served func(key string, status Status, age, took time.Duration)
	// Failed: a call of Get or Lookup returned err, took after it began.
	Failed func(key string, took time.Duration, err error)
	// Loaded: a load ended, took after it began. err is its error, a *PanicError or an ErrLoadTimeout.
	Loaded func(key string, took time.Duration, err error)
	// Stored: the result of a load was offered to the store. What is not Stored was fenced off: another load, or an invalidation,
	// was faster. With an err the outcome is 0: not known.
	Stored func(key string, outcome Outcome, err error)
	// Undecodable: what the store has for key could not be read, and is treated as if it were not there; or what was loaded could
	// not be written down, and was not stored.
	Undecodable func(key string, err error)
	// StoreDown: a call of the store failed while a load or a read needed it.
	StoreDown func(key string, err error)
	// LockerDown: the Locker could not be reached.
	LockerDown func(key string, err error)
}
