package stampede

// SetRand replaces the source of jitter and of XFetch's draws: numbers in [0, 1).
func SetRand[V any](o *Options[V], f func() float64) { o.rand = f }

// Match reports whether pattern, which must be valid, matches key.
func Match(pattern, key string) (bool, error) {
	items, err := compile(pattern)
	return err == nil && match(items, key), err
}
