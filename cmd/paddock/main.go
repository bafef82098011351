// Command paddock runs programs under a distributed lock, shows who holds one, and lets anyone watch a cache stampede and
// its cure.
//
//	paddock demo                                            # needs nothing but this program
//	paddock run -url redis://localhost:6379 -- ./nightly.sh
//	paddock inspect -url redis://localhost:6379 nightly
//	paddock check paddock.yaml
//
// Each command documents itself: paddock COMMAND -h.
//
// # Exit status
//
// Run exits as its command does. What it says itself is in the range of sysexits.h: 64 for a call that cannot work, 69 when the
// lock service cannot be reached, 74 when the lease was lost and the command was ended, 75 when the key is held by another,
// 126 and 127 when the command cannot be started or found, 128+n when a signal n ended the command or the wait for the lock.
// Inspect exits with 1 when nobody holds the key. Demo exits with 1 when a row did not show what it should.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/paddock-go/paddock"
	_ "github.com/paddock-go/paddock/etcdlock"
	_ "github.com/paddock-go/paddock/redislock"
	_ "github.com/paddock-go/paddock/redlock"
	_ "github.com/paddock-go/paddock/zklock"
)

const (
	exitUsage       = 64
	exitUnavailable = 69
	exitLost        = 74
	exitHeld        = 75
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

const usage = `paddock: distributed locks at the shell, and a cache stampede to look at

  paddock demo      50 requests meet an expired cache entry, seven ways
  paddock run       run a command while holding a lock
  paddock inspect   show who holds a lock
  paddock check     check a configuration of keys and backends

paddock COMMAND -h says more about each.
`

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(demoWorker(os.Stdin, os.Stdout))
	}
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
	switch name, args := os.Args[1], os.Args[2:]; name {
	case "demo":
		os.Exit(demo(args, os.Stdout, os.Stderr))
	case "run":
		os.Exit(run(args, os.Stderr))
	case "inspect":
		os.Exit(inspect(args, os.Stdout, os.Stderr))
	case "check":
		os.Exit(check(args, os.Stdout, os.Stderr))
	case "help", "-h", "-help", "--help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "paddock: there is no command %q\n\n%s", name, usage)
		os.Exit(exitUsage)
	}
}

// newFlags returns the flags of a command. about is printed above them by -h.
func newFlags(name, about string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s\n\n", about)
		flags.PrintDefaults()
	}
	return flags
}

// parse returns false, with the status to exit with, when the arguments end the command.
func parse(flags *flag.FlagSet, args []string) (status int, ok bool) {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0, false
	case err != nil:
		return exitUsage, false
	}
	return 0, true
}

// urlEnv is where run and inspect take the URL from. Demo does not: nobody should show off on a production server because
// of a variable that was set for something else.
const urlEnv = "PADDOCK_URL"

func urlFlag(flags *flag.FlagSet) *string {
	return flags.String("url", "", "the lock service, as in redis://localhost:6379 (default $"+urlEnv+")")
}

// statusOf is the exit status for an error of a Locker.
func statusOf(err error) int {
	switch {
	case errors.Is(err, paddock.ErrHeld):
		return exitHeld
	case errors.Is(err, paddock.ErrInvalid):
		return exitUsage
	}
	return exitUnavailable
}
