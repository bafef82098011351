package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/paddock-go/paddock"
)

const aboutInspect = `usage: paddock inspect [flags] KEY

Shows who holds the lock on KEY. Exits with 0 when it is held, 1 when nobody holds
it, 69 when the lock service cannot be reached or cannot tell.`

func inspect(args []string, stdout, stderr io.Writer) int {
	flags := newFlags("inspect", aboutInspect, stderr)
	url := urlFlag(flags)
	asJSON := flags.Bool("json", false, "print JSON: key, held, and if so owner, note, token, since, expires_in_ms")
	timeout := flags.Duration("timeout", 5*time.Second, "how long to wait for an answer")
	if status, ok := parse(flags, args); !ok {
		return status
	}
	if flags.NArg() != 1 {
		fmt.Fprintln(stderr, "paddock inspect: needs one key; see paddock inspect -h")
		return exitUsage
	}
	key := flags.Arg(0)

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	locker, status := openLocker(ctx, "inspect", *url, nil, stderr)
	if locker == nil {
		return status
	}
	defer locker.Close()
	holder, err := paddock.Inspect(ctx, locker, key)
	free := errors.Is(err, paddock.ErrFree)
	if err != nil && !free {
		fmt.Fprintln(stderr, "paddock inspect:", err)
		return statusOf(err)
	}
	if *asJSON {
		err = printHolderJSON(stdout, key, holder, !free)
	} else {
		err = printHolder(stdout, key, holder, !free)
	}
	if err != nil {
		fmt.Fprintln(stderr, "paddock inspect:", err)
		return exitLost
	}
	if free {
		return 1
	}
	return 0
}

// openLocker opens the Locker of a flag or of the environment. Without one it says why, and the status is to be exited with.
func openLocker(ctx context.Context, command, url string, observer *paddock.Observer, stderr io.Writer) (paddock.Locker, int) {
	if url == "" {
		url = os.Getenv(urlEnv)
	}
	if url == "" {
		fmt.Fprintf(stderr, "paddock %s: which lock service? Give -url, as in -url redis://localhost:6379, or set %s\n", command, urlEnv)
		return nil, exitUsage
	}
	locker, err := paddock.Open(ctx, url, &paddock.OpenOptions{Observer: observer})
	if err != nil {
		fmt.Fprintf(stderr, "paddock %s: %v\n", command, err)
		return nil, statusOf(err)
	}
	if locker.Guarantees().Exclusion == paddock.ProcessOnly {
		locker.Close()
		fmt.Fprintf(stderr, "paddock %s: a %s locker excludes nobody outside this process\n", command, locker.Guarantees().Backend)
		return nil, exitUsage
	}
	return locker, 0
}

func printHolder(w io.Writer, key string, h paddock.Holder, held bool) error {
	if !held {
		_, err := fmt.Fprintf(w, "nobody holds %q\n", key)
		return err
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "key\t%q\n", key)
	fmt.Fprintf(tab, "owner\t%s\n", h.Owner)
	fmt.Fprintf(tab, "note\t%q\n", h.Note)
	if h.Token != 0 {
		fmt.Fprintf(tab, "token\t%d\n", h.Token)
	}
	if !h.Since.IsZero() {
		fmt.Fprintf(tab, "since\t%s\n", h.Since.UTC().Format(time.RFC3339Nano))
	}
	if h.ExpiresIn != 0 {
		fmt.Fprintf(tab, "expires\tin %v, if not renewed\n", h.ExpiresIn.Round(time.Millisecond))
	}
	return tab.Flush()
}

func printHolderJSON(w io.Writer, key string, h paddock.Holder, held bool) error {
	out := struct {
		Key       string     `json:"key"`
		Held      bool       `json:"held"`
		Owner     string     `json:"owner,omitempty"`
		Note      string     `json:"note,omitempty"`
		Token     uint64     `json:"token,omitempty"`
		Since     *time.Time `json:"since,omitempty"`
		ExpiresIn int64      `json:"expires_in_ms,omitempty"`
	}{Key: key, Held: held, Owner: h.Owner, Note: h.Note, Token: uint64(h.Token), ExpiresIn: h.ExpiresIn.Milliseconds()}
	if !h.Since.IsZero() {
		since := h.Since.UTC()
		out.Since = &since
	}
	return json.NewEncoder(w).Encode(out)
}
