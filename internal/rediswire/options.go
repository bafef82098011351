package rediswire

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

const maxPrefix = 128 // bytes

// Defaults completes the options that all backends on Redis have; the domain begins with the backend's name.
func Defaults(backend string, prefix, domain *string) {
	if *prefix == "" {
		*prefix = "paddock"
	}
	if *domain == "" {
		*domain = backend + "/" + *prefix
	}
}

// CheckOptions says what is wrong with them. Braces in a prefix would take the place of a key's hash tag.
func CheckOptions(prefix string, closeWait time.Duration) error {
	switch {
	case len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "{}"):
		return fmt.Errorf("the Prefix %q; it has to be at most %d bytes of UTF-8 without braces", prefix, maxPrefix)
	case closeWait < 0:
		return fmt.Errorf("CloseWait %v is negative", closeWait)
	}
	return nil
}
