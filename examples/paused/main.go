// Command paused shows why a lock alone cannot protect data, and what a fencing guard does about it.
//
//	go run ./examples/paused                                # needs nothing but Go
//	go run ./examples/paused -url redis://localhost:6379    # two processes, one of them stopped by SIGSTOP
//
// An account has 100. A and B add 10 each, under a lock. A is paused between reading and writing, for longer than its lease
// lives; B takes over; A wakes up and writes. It exits with 1 if that did not end as it should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const ttl = 500 * time.Millisecond

// account is what the lock protects.
type account interface {
	fencing.Guard
	Read(ctx context.Context) (int, error)
	Write(ctx context.Context, balance int) error // as people write who trust in their lock
	WriteFenced(ctx context.Context, f fencing.Fence, balance int) error
}

const resource = "paddock-example/account" // of the guard; and the key of the lock

// deposit adds 10 to the account, and calls pause between reading and writing. tell tells the story.
func deposit(ctx context.Context, l paddock.Locker, a account, guarded bool, tell func(string, ...any), pause func()) error {
	fn := func(ctx context.Context, lease *paddock.Lease) error {
		balance, err := a.Read(ctx)
		if err != nil {
			return err
		}
		tell("holds the lock, with the token %d, and reads %d", lease.Token(), balance)
		pause()
		balance += 10
		// ctx has ended if the lease was lost. But that may happen between any check of it and the write that follows: this is
		// a write that is already on its way.
		late := context.WithoutCancel(ctx)
		if !guarded {
			tell("writes %d", balance)
			return a.Write(late, balance)
		}
		err = a.WriteFenced(late, lease.Fence(), balance)
		if stale := (*fencing.StaleError)(nil); errors.As(err, &stale) {
			tell("writes %d, and is refused: the account has seen the token %d", balance, stale.Seen.Token)
		} else if err == nil {
			tell("writes %d", balance)
		}
		return err
	}
	if guarded {
		fn = paddock.Guarded(a, resource, fn)
	}
	// Nobody renews while A is paused. Where A is a mere goroutine, its lease would be renewed all the same.
	err := paddock.Do(ctx, l, resource, &paddock.Options{TTL: ttl, NoRenew: true}, fn)
	if errors.Is(err, fencing.ErrStale) {
		tell("starts over")
		return deposit(ctx, l, a, guarded, tell, func() {})
	}
	if errors.Is(err, paddock.ErrLost) {
		tell("finds out that its lease was lost")
		err = nil // too late
	}
	return err
}

// world is where the story takes place.
type world struct {
	account account
	locker  paddock.Locker                 // B's
	paused  string                         // how A is
	first   func(guarded bool) (*a, error) // starts A's deposit
}

// a is A at work.
type a struct {
	says       <-chan string // closed at the end
	stop, wake func() error
	err        func() error // after the end
}

// scene tells the story once, and returns the balance at its end.
func (w *world) scene(ctx context.Context, out io.Writer, guarded bool) (int, error) {
	if err := w.account.Write(ctx, 100); err != nil {
		return 0, err
	}
	start := time.Now()
	teller := func(who string) func(string, ...any) {
		return func(format string, args ...any) {
			fmt.Fprintf(out, "  %4.2f s  %s %s\n", time.Since(start).Seconds(), who, fmt.Sprintf(format, args...))
		}
	}
	first, err := w.first(guarded)
	if err != nil {
		return 0, err
	}
	tellA := teller("A")
	line, ok := <-first.says
	if !ok {
		return 0, first.err()
	}
	tellA("%s", line)
	if err := first.stop(); err != nil {
		return 0, err
	}
	tellA("%s", w.paused)
	if err := deposit(ctx, w.locker, w.account, guarded, teller("      B"), func() {}); err != nil {
		return 0, err
	}
	tellA("wakes up, and knows nothing of this")
	if err := first.wake(); err != nil {
		return 0, err
	}
	for line := range first.says {
		tellA("%s", line)
	}
	if err := first.err(); err != nil {
		return 0, err
	}
	return w.account.Read(ctx)
}

func (w *world) play(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "The account has 100. A and B add 10 each, under a lock that outlives its holder by %v.\n", ttl)
	fmt.Fprint(out, "\nWithout a guard\n\n")
	balance, err := w.scene(ctx, out, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n  The account has %d. B was told that it has put in 10, and they are gone.\n", balance)
	if balance != 110 {
		return fmt.Errorf("%d without a guard; that should have been 110", balance)
	}
	fmt.Fprint(out, "\nWith a guard\n\n")
	if balance, err = w.scene(ctx, out, true); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n  The account has %d.\n", balance)
	if balance != 120 {
		return fmt.Errorf("%d with a guard; that should have been 120", balance)
	}
	return nil
}

func main() {
	if arg := os.Getenv(processEnv); arg != "" {
		os.Exit(process(arg))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("paused", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("url", "", "a Redis server, redis://host:port, for the lock and the account; defaults to this process's memory")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, end := inMemory(), func() {}
	if *url != "" {
		var err error
		if w, end, err = onRedis(ctx, *url); err != nil {
			fmt.Fprintln(stderr, "paused:", err)
			return 1
		}
	}
	defer end()
	if err := w.play(ctx, stdout); err != nil {
		fmt.Fprintln(stderr, "paused:", err)
		return 1
	}
	return 0
}
