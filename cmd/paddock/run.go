package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddock-go/paddock"
)

const aboutRun = `usage: paddock run [flags] -- COMMAND [ARGUMENT...]

Runs COMMAND while holding a lock, and exits as it does. The lock is renewed until
COMMAND ends. When it is lost, COMMAND and what it started are ended: SIGTERM, then
SIGKILL after the grace time. COMMAND may work on for that long beside the next holder,
so what must not be damaged should be fenced with the token.

COMMAND sees PADDOCK_TOKEN, PADDOCK_OWNER and PADDOCK_DOMAIN: the fence to show to what it
writes to. Signals are passed on to it; while paddock waits for the lock, they end the wait.

Exit status, if it is not COMMAND's own (a line on standard error says which):
   64  the call cannot work (flags, URL, key, TTL)      nothing was run
   69  the lock service cannot be reached               nothing was run
   75  the key is held by another (-try, -wait)         nothing was run
   74  the lease was lost, COMMAND was ended
  126  COMMAND cannot be started
  127  COMMAND cannot be found
128+n  signal n ended COMMAND, or the wait for the lock`

// errWaited is the cause of a wait that took as long as it may.
var errWaited = errors.New("the wait is over")

// signalled is the cause of a wait that a signal ended.
type signalled struct{ signal os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.signal.String() }

func (s signalled) status() int {
	if n, ok := s.signal.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitSignal
}

// errand is a command to be run under a lock.
type errand struct {
	key     string
	opts    paddock.Options
	try     bool
	wait    time.Duration // 0: as long as it takes
	grace   time.Duration
	command *exec.Cmd
	stderr  io.Writer
	signals chan os.Signal
}

func run(args []string, stderr io.Writer) int {
	flags := newFlags("run", aboutRun, stderr)
	url := urlFlag(flags)
	key := flags.String("key", "", "what to lock (default: COMMAND with its arguments, separated by blanks)")
	ttl := flags.Duration("ttl", 0, "how long the lock outlives a paddock that dies (default 15s, or the least that the backend can)")
	wait := flags.Duration("wait", 0, "how long to wait for another holder (default: for ever)")
	try := flags.Bool("try", false, "do not wait for another holder")
	grace := flags.Duration("grace", 10*time.Second, "how long COMMAND has between SIGTERM and SIGKILL when the lease is lost")
	if status, ok := parse(flags, args); !ok {
		return status
	}
	argv := flags.Args()
	complain := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "paddock run: "+format+"\n", args...)
		return exitUsage
	}
	switch {
	case len(argv) == 0:
		return complain("run what? See paddock run -h")
	case *try && *wait != 0:
		return complain("-try and -wait exclude each other")
	case *wait < 0 || *grace < 0 || *ttl < 0:
		return complain("-wait, -grace and -ttl cannot be negative")
	}
	if *key == "" {
		*key = strings.Join(argv, " ")
	}
	e := &errand{
		key: *key, opts: paddock.Options{TTL: *ttl}, try: *try, wait: *wait, grace: *grace,
		command: exec.Command(argv[0], argv[1:]...), stderr: stderr, signals: make(chan os.Signal, 16),
	}
	if err := e.command.Err; err != nil { // before anybody waits for a lock in vain
		e.say("%v", err)
		return exitNotFound
	}
	signal.Notify(e.signals, passedOn...)
	defer signal.Stop(e.signals)
	return e.run(*url)
}

func (e *errand) say(format string, args ...any) {
	fmt.Fprintf(e.stderr, "paddock run: "+format+"\n", args...)
}

func (e *errand) run(url string) int {
	var contended atomic.Bool
	locker, status := openLocker(context.Background(), "run", url, &paddock.Observer{
		Contended: func(string, time.Duration) { contended.Store(true) },
		RenewalLate: func(_ *paddock.Lease, left time.Duration, err error) {
			e.say("renewal of the lock failed, %v left: %v", left.Round(time.Millisecond), err)
		},
	}, e.stderr)
	if locker == nil {
		return status
	}
	defer locker.Close()

	lease, err := e.acquire(locker)
	var s signalled
	switch {
	case errors.As(err, &s):
		return s.status()
	case errors.Is(err, errWaited) && contended.Load():
		e.say("key %q is held by another: waited %v%s", e.key, e.wait, e.holder(locker))
		return exitHeld
	case errors.Is(err, errWaited):
		e.say("the lock service did not answer within %v", e.wait)
		return exitUnavailable
	case errors.Is(err, paddock.ErrHeld):
		e.say("key %q is held by another%s", e.key, e.holder(locker))
		return exitHeld
	case err != nil:
		e.say("%v", err)
		return statusOf(err)
	}

	status = e.hold(lease)
	if status == exitLost {
		return status
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(lease.TTL(), 5*time.Second))
	defer cancel()
	switch err := lease.Release(ctx); {
	case errors.Is(err, paddock.ErrLost):
		e.say("%v; the command may have run beside another holder's", err)
		return exitLost
	case err != nil:
		e.say("the lock will stay until its TTL of %v is over: %v", lease.TTL(), err)
	}
	return status
}

// acquire waits for the lock, for the end of the wait or for a signal.
func (e *errand) acquire(locker paddock.Locker) (*paddock.Lease, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		select {
		case s := <-e.signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	lease, err := e.ask(ctx, locker)
	cancel(nil)
	<-relayed // so that no signal is taken from hold
	var s signalled
	if errors.As(context.Cause(ctx), &s) && err == nil {
		_ = lease.Release(context.Background()) // at worst the TTL does it
		return nil, s
	}
	return lease, err
}

func (e *errand) ask(ctx context.Context, locker paddock.Locker) (*paddock.Lease, error) {
	if e.try {
		return locker.TryAcquire(ctx, e.key, &e.opts)
	}
	if e.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.wait, errWaited)
		defer cancel()
	}
	return locker.Acquire(ctx, e.key, &e.opts)
}

// holder is the end of a message that says who holds the key, if the backend can tell.
func (e *errand) holder(locker paddock.Locker) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	h, err := paddock.Inspect(ctx, locker, e.key)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", h.Note)
}

// hold runs the command, and ends it when the lease ends.
func (e *errand) hold(lease *paddock.Lease) int {
	cmd, fence := e.command, lease.Fence()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("PADDOCK_TOKEN=%d", fence.Token), "PADDOCK_OWNER="+fence.Owner, "PADDOCK_DOMAIN="+fence.Domain)
	group, err := startGroup(cmd)
	if err != nil {
		e.say("%v", err)
		return exitNotRunnable
	}
	defer group.foregone()
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // what it says is in ProcessState
		close(exited)
	}()
	for {
		select {
		case <-exited:
			return group.status()
		case s := <-e.signals:
			group.signal(s)
		case <-lease.Context().Done():
			e.say("%v; ending the command", lease.Err())
			group.end(exited, e.grace)
			return exitLost
		}
	}
}
