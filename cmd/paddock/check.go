package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/paddock-go/paddock/config"
	_ "github.com/paddock-go/paddock/memlock"
	_ "github.com/paddock-go/paddock/stampede/memstore"
	_ "github.com/paddock-go/paddock/stampede/redisstore"
)

const aboutCheck = `usage: paddock check [flags] FILE

Checks a configuration: its fields, its patterns, and whether each key's backend
can bear what running twice would cost. No server is asked. Exits with 0 when
the file is in order, 64 with a line for each thing that is wrong. The variables
that its URLs name have to be set.`

func check(args []string, stdout, stderr io.Writer) int {
	flags := newFlags("check", aboutCheck, stderr)
	quiet := flags.Bool("q", false, "print nothing when the file is in order")
	if status, ok := parse(flags, args); !ok {
		return status
	}
	if flags.NArg() != 1 {
		fmt.Fprintln(stderr, "paddock check: needs one file; see paddock check -h")
		return exitUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := config.Load(ctx, flags.Arg(0), nil)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	defer c.Close()
	if *quiet {
		return 0
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "pattern\tcost\tbackend\texclusion\ttokens\tttl\tstale for")
	for i, p := range c.Policies {
		backend, exclusion, tokens, cost := "-", "-", "-", p.Cost.String()
		if p.Locker != nil {
			g := p.Locker.Guarantees()
			backend, exclusion, tokens = c.Backends[i]+" ("+g.Backend+")", g.Exclusion.String(), g.Fencing.String()
		}
		if p.Cost == 0 {
			cost = "by default"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%v\t%v\n", p.Pattern, cost, backend, exclusion, tokens, p.TTL, p.StaleFor)
	}
	if table.Flush() != nil {
		return exitLost
	}
	return 0
}
