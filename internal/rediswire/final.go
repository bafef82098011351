package rediswire

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Final reports whether the server, or a closed client, will answer a repetition with err again: no permission, wrong
// password, another type of value under our key.
func Final(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || errors.Is(err, redis.ErrClosed) ||
		// Raised within a script these come with other words around them, depending on the version.
		strings.Contains(text, "WRONGTYPE ") || strings.Contains(text, "NOPERM ") ||
		strings.Contains(text, "user executing the script can't") ||
		redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "DB index is out of range")
}
