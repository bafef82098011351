package rediswire

import "strings"

var escapes = strings.NewReplacer("%", "%25", "}", "%7D")

// Tag makes a key fit for being a hash tag: all that is between the first { of a name and the first } after it. Distinct
// keys have distinct tags.
func Tag(key string) string {
	if !strings.ContainsAny(key, "%}") {
		return key
	}
	return escapes.Replace(key)
}

var unescapes = strings.NewReplacer("%25", "%", "%7D", "}")

// Untag returns the key that Tag made tag of.
func Untag(tag string) string { return unescapes.Replace(tag) }
