package paddock

import "time"

// Observer is told what a Locker does. Every field may be nil, and an unused one costs nothing. The functions are called
// one at a time or several at once, on the goroutines that do the work: they must return quickly, must be safe for
// concurrent use, and must not call the Locker.
type Observer struct {
	// Contended: key is held by another. For Acquire once, when it begins to wait; for TryAcquire each time. retryAfter is
	// zero where the backend cannot say.
	Contended func(key string, retryAfter time.Duration)
	// Waited: an Acquire that had to wait ended, with a lease or with err.
	Waited func(key string, waited time.Duration, err error)
	// Acquired: a lease was granted, took after the call began.
	Acquired func(lease *Lease, took time.Duration)
	// Renewed: the server answered a renewal or an Extend, took after it was sent.
	Renewed func(lease *Lease, took time.Duration)
	// RenewalLate: a renewal failed and will be repeated; left is what remains of the trust window.
	RenewalLate func(lease *Lease, left time.Duration, err error)
	// Lost: the lease ended by itself, held after its grant; reason is ErrLost with its cause in the chain.
	Lost func(lease *Lease, held time.Duration, reason error)
	// Released: its holder's Release of the lease, held after its grant, came to err. When the backend could not be reached it is
	// called a second time when the release was confirmed in the background, or was given up because the TTL was over.
	Released func(lease *Lease, held time.Duration, err error)
	// CleanupPending: the number of abandoned attempts and unconfirmed releases that the Locker still has to clean up
	// after changed to pending.
	CleanupPending func(pending int)
}
