// Package stampede caches what is costly to load, and keeps the herd from loading it all at once.
//
//	cache, err := stampede.New[Posts](store, stampede.Policies{{
//		Pattern: "trending:*", Locker: locker, TTL: time.Minute, StaleFor: time.Hour,
//	}}, nil)
//	...
//	posts, err := cache.Get(ctx, "trending:posts", func(ctx context.Context) (Posts, error) { return db.Trending(ctx) })
//
// # The stampede
//
// When a hot key expires, every caller misses it at the same moment, and all of them run the same query. The database slows down, so
// the query takes longer, so more callers miss. The cure is an election: one caller loads, the others get its result, or what
// was there before.
//
// # One load
//
// Within a process the callers of a key share one flight. Between processes a [paddock.Locker] elects the one that loads;
// after winning, the store is read again, since another may have loaded meanwhile. The others are served what is stale, if
// the policy has a stale window, or wait: woken when the load ends, however it ends, and looking by themselves every 50 to
// 100 ms, since hints get lost. Cold keys are treated the same. The lock is a lease that is renewed while the load runs, so a
// loader that dies is replaced after LockTTL, and one that is slow is not.
//
// A load runs on a context of its own, with the values of the first caller's. A caller that leaves does not end it for the
// rest; when the last one has left, it is cancelled. LoadTimeout ends it in any case, and frees the key even if the load
// ignores its context.
//
// # A policy for every key
//
// The [Policies] are a list of patterns; the first that matches a key is the key's. Cost, the first thing a [Policy] says, is
// what it would cost if a load ran twice at the same time. It is checked against what the Locker guarantees: a key that is
// [Harmful] is not accepted over a lock that can fail with a single server. What cannot work is refused by [New], and never bent
// silently. Harmful means "not twice at the same time": the cache may forget a value at any moment and load it again. It is
// no record of what has been done.
//
// # Before it expires
//
// With EarlyBeta a key is replaced ahead of its end by a reader that is drawn at random (XFetch), in the background and
// under the lock, so that nobody ever waits for a key that is read often. [Cache.Keep] does it at a fixed time ahead, by a
// few workers, for as long as the key is read. [Cache.GetMany] reads many keys in one round trip and loads what is missing together.
//
// # Another Locker for a key
//
// While a fleet is being changed from one Locker to another for a key, the processes of before and of after do not exclude
// each other: a load may run once under each. The store orders their results by when they began, since tokens of two lock
// services do not compare, and an invalidation stops both. So nothing old stays, and nobody waits for ever; what it costs is a
// load per expiry. For a key that is Harmful, end the old processes before the new ones begin.
//
// # Nothing old
//
// No value older than the last acknowledged [Cache.Invalidate] is served to a call that begins after it. A load that was under
// way when its key was invalidated may not store its result: every load begins by taking the key's ticket from the [Store], an
// invalidation drops the ticket, and a result is stored with the ticket that its load began with or not at all. A load that lost its lease
// while it ran may still store what it has, as long as nothing newer was stored: the fence of its lease tells. Within a process
// only those callers take the result of a load who asked before it began, or, if it was stored, while it ran; others go
// round again.
//
// No clock of a client decides what is fresh: the store counts down what is left of an entry.
//
// What is out of a cache's hands: a store that loses an acknowledged invalidation (a failover of Redis to a replica that has
// not seen it) serves the old value for what is left of its TTL, and so do reads of replicas, which redisstore refuses where it sees them.
//
// # Failure
//
// The error of a load goes to everyone who waited for it, and is remembered for ErrorTTL beside the entry: others get it as a
// [RemoteError], or what is stale, and do not queue up to fail one by one. A load that says [ErrNotFound] has an answer, with
// a TTL of its own. A panic is a [PanicError] with its stack for everyone. When the store or the locker cannot be reached, the
// policy says whether to load without it, a few at a time, or to fail; the result's Status and Cause, and the [Observer], show it. An entry
// that cannot be decoded is treated as if it were not there.
//
// A load that asks its own cache for its own key is refused at once. Two loads that ask for each other's keys wait for
// each other until MaxWait or LoadTimeout.
package stampede
