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
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || errors.Is(err, redis.ErrClosed) {
		return true
	}
	for _, words := range []string{
		"WRONGTYPE ", "NOPERM ", "user executing the script can't", // from within a script they come in other words, by version
		"ERR unknown command", "ERR DB index is out of range", "ERR This instance has cluster support disabled",
	} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}
