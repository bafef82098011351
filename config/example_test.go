package config_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/paddock-go/paddock/config"
	_ "github.com/paddock-go/paddock/etcdlock"
	_ "github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/stampede"
	_ "github.com/paddock-go/paddock/stampede/redisstore"
)

// shop has all that it caches in one configuration, whose rules say how each kind of key is treated. The program does not know
// which backends there are, but for the imports of their packages.
type shop struct {
	conf         *config.Config
	leaderboards *stampede.Cache[[]string]
	counts       *stampede.Cache[int]
	receipts     *stampede.Cache[string]
	banners      *stampede.Cache[string]
}

// office is where the shop's values come from.
type office interface {
	Leaders(ctx context.Context, week string) ([]string, error)
	Count(ctx context.Context, article string) (int, error)
	// Settle may not be under way twice at the same time. The fence in ctx (fencing.FromContext) goes with what it writes.
	Settle(ctx context.Context, order string) (receipt string, err error)
	Banner(ctx context.Context, page string) (string, error)
}

func newShop(conf *config.Config) (*shop, error) {
	s := &shop{conf: conf}
	var errs [4]error
	s.leaderboards, errs[0] = stampede.New[[]string](conf.Store, conf.Policies, nil)
	s.counts, errs[1] = stampede.New[int](conf.Store, conf.Policies, nil)
	s.receipts, errs[2] = stampede.New[string](conf.Store, conf.Policies, nil)
	s.banners, errs[3] = stampede.New[string](conf.Store, conf.Policies, nil)
	return s, errors.Join(errs[:]...)
}

// leaders of a week may be those of a moment ago.
func (s *shop) leaders(ctx context.Context, o office, week string) (stampede.Result[[]string], error) {
	return s.leaderboards.Lookup(ctx, "leaderboard:"+week, func(ctx context.Context) ([]string, error) { return o.Leaders(ctx, week) })
}

// count is how many there are of an article, never an old number.
func (s *shop) count(ctx context.Context, o office, article string) (stampede.Result[int], error) {
	return s.counts.Lookup(ctx, "inventory:"+article, func(ctx context.Context) (int, error) { return o.Count(ctx, article) })
}

// settle returns the receipt of an order.
func (s *shop) settle(ctx context.Context, o office, order string) (stampede.Result[string], error) {
	return s.receipts.Lookup(ctx, "settlement:"+order, func(ctx context.Context) (string, error) { return o.Settle(ctx, order) })
}

// banner of a page costs next to nothing.
func (s *shop) banner(ctx context.Context, o office, page string) (stampede.Result[string], error) {
	return s.banners.Lookup(ctx, "banner:"+page, func(ctx context.Context) (string, error) { return o.Banner(ctx, page) })
}

func (s *shop) close() error {
	return errors.Join(s.leaderboards.Close(), s.counts.Close(), s.receipts.Close(), s.banners.Close(), s.conf.Close())
}

// A program with one file for all that it caches: docs/paddock.yaml, which treats every kind of key in another way.
func Example() {
	ctx := context.Background()
	conf, err := config.Load(ctx, "paddock.yaml", nil)
	if err != nil {
		log.Fatal(err) // with file, line and column of what is wrong
	}
	s, err := newShop(conf)
	if err != nil {
		log.Fatal(err)
	}
	defer s.close()
	leaders, err := s.leaders(ctx, headOffice, "2026-31")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(leaders.Value, leaders.Status, leaders.Backend)
}

var headOffice office // a database, in real life
