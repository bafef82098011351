package config_test

import (
	"errors"
	"testing"

	"github.com/paddock-go/paddock/stampede"
)

// Without etcd what is harmful is refused, what is wasteful goes on as its rule says, and the rest does not notice.

func settlementInOutage(t *testing.T, s *shop) {
	l := &ledger{}
	if _, err := s.settle(t.Context(), l, "order 3"); !errors.Is(err, stampede.ErrLockerDown) || l.works.Load() != 0 {
		t.Errorf("%v, %d works; want ErrLockerDown and none", err, l.works.Load())
	}
}

func inventoryInOutage(t *testing.T, s *shop) {
	r, err := s.count(t.Context(), &ledger{}, "hats")
	if err != nil || r.Status != stampede.Bypassed ||
		!errors.Is(r.Cause, stampede.ErrLockerDown) && !errors.Is(r.Cause, stampede.ErrWaitTimeout) { // whichever is noticed first
		t.Errorf("%+v, %v; want it bypassed", r, err)
	}
}

func leaderboardInOutage(t *testing.T, s *shop) {
	if r, err := s.leaders(t.Context(), &ledger{}, "other week"); err != nil || r.Status != stampede.Loaded || r.Backend != "redis" {
		t.Errorf("%+v, %v; want it loaded", r, err)
	}
}

func bannerInOutage(t *testing.T, s *shop) {
	if r, err := s.banner(t.Context(), &ledger{}, "other page"); err != nil || r.Status != stampede.Loaded {
		t.Errorf("%+v, %v; want it loaded", r, err)
	}
}
