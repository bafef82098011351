package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FaketimeServer is a redis-server whose wall clock the test sets.
type FaketimeServer struct {
	*Process
	tb     testing.TB
	clock  string // the file that holds the offset
	offset time.Duration
}

// FaketimeRedis starts a redis-server under libfaketime.
func FaketimeRedis(tb testing.TB, args ...string) *FaketimeServer {
	tb.Helper()
	needRedis(tb)
	libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libs) == 0 {
		missing(tb, "libfaketime not found: install libfaketime")
	}
	arch := strings.Split(libs[0], "/")[3]
	dir, err := newDir("faketime")
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &FaketimeServer{tb: tb, clock: filepath.Join(dir, "clock")}
	if err := s.set(); err != nil {
		tb.Fatalf("servers: %v", err)
	}
	p, err := startRedis([]string{
		// libc comes after it, for the sake of jemalloc, whose first
		// allocation would otherwise lead back into the library.
		"LD_PRELOAD=" + libs[0] + ":/lib/" + arch + "/libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + s.clock,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, args...)
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	s.Process = p.adopt(tb)
	return s
}

// Jump moves the server's wall clock by d, as an administrator or a time
// daemon would; the next command sees it. Between jumps it runs at the usual
// rate.
func (s *FaketimeServer) Jump(d time.Duration) {
	s.offset += d
	if err := s.set(); err != nil {
		s.tb.Errorf("servers: jump: %v", err)
	}
}

// set writes the file anew and renames it, so that no half of it is read.
func (s *FaketimeServer) set() error {
	next := s.clock + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.6f\n", s.offset.Seconds()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.clock)
}
