package redisurl

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestHosts(t *testing.T) {
	for rawURL, want := range map[string][]string{
		"redis:":                             {"localhost:6379"},
		"redis+cluster://a,b:1,[::1]:2,[::]": {"a:6379", "b:1", "[::1]:2", "[::]:6379"},
		"rediss+sentinel://a,b:1":            {"a:26379", "b:1"},
	} {
		scheme, host, _ := strings.Cut(rawURL, ":")
		if got := hosts(&url.URL{Scheme: scheme, Host: strings.TrimPrefix(host, "//")}); !slices.Equal(got, want) {
			t.Errorf("the hosts of %s are %q; want %q", rawURL, got, want)
		}
	}
}

func TestTake(t *testing.T) {
	u := &url.URL{Scheme: "redis", Host: "h", RawQuery: "prefix=a&pool_size=3&prefix=b"}
	mine, rest, err := Take(u, "prefix")
	if err != nil || mine.RawQuery != "prefix=a&prefix=b" || rest.RawQuery != "pool_size=3" || u.RawQuery != "prefix=a&pool_size=3&prefix=b" {
		t.Errorf("took %q and left %q of %q: %v", mine.RawQuery, rest.RawQuery, u.RawQuery, err)
	}
	if _, _, err := Take(&url.URL{RawQuery: "a;b"}); err == nil {
		t.Error("a malformed query was taken")
	}
}
