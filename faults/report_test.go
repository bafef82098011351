//go:build linux

package faults

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// result is what a run on one backend came to.
type result struct {
	*service
	rounds      int
	faults      map[string]int
	leases      int  // granted
	lost        int  // of them, before their release
	held        int  // tries that were refused
	unavailable int  // attempts that ended so
	overlaps    int  // of trust windows, where exclusion is promised
	unpromised  int  // where it is not
	unordered   int  // rounds with tokens that fell after clocks were set and records lost
	apart       bool // clocks of the nodes are
	breaches    int  // of promises
	stale       int  // writes that the guard took
	tally       Tally
	gap         time.Duration // the longest that a key had no holder
	recovery    time.Duration // the longest from the end of a fault until every key had a new holder
}

func (r *result) count(failures []Failure) {
	for _, f := range failures {
		switch {
		case f.Held:
			r.held++
		case f.Unavailable:
			r.unavailable++
		}
	}
}

func (r *result) injected() (sum int) {
	for _, n := range r.faults {
		sum += n
	}
	return sum
}

func (r *result) String() string {
	var kinds []string
	for _, name := range slices.Sorted(maps.Keys(r.faults)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", r.faults[name], name))
	}
	return fmt.Sprintf("%s: %d faults in %d rounds (%s); %d leases, %d lost, %d tries refused, %d attempts unavailable; two holders %d times where "+
		"excluded and %d times where not; %d rounds of falling tokens where not promised; %d writes: without a guard %d corrupt, the guard "+
		"refused %d and took %d that were stale; longest without a holder %v, slowest recovery %v",
		r.title, r.injected(), r.rounds, strings.Join(kinds, ", "), r.leases, r.lost, r.held, r.unavailable, r.overlaps,
		r.unpromised, r.unordered, r.tally.Writes, r.tally.Corrupted,
		r.tally.Refused, r.stale, r.gap.Round(time.Millisecond), r.recovery.Round(time.Millisecond))
}

const (
	tablesBegin = "<!-- what follows is written by make faults -->\n"
	tablesEnd   = "<!-- what make faults writes ends here -->\n"
)

// writeReport puts the tables into the file, between the two marks.
func writeReport(path, tables string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), tablesBegin)
	_, after, ok2 := strings.Cut(rest, tablesEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the tables", path)
	}
	return os.WriteFile(path, []byte(before+tablesBegin+tables+tablesEnd+after), 0o644)
}

func tables(results []*result, began string, passed bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", began)
	if !passed {
		b.WriteString("The run failed.\n\n")
	}
	b.WriteString("| | faults | leases granted | lost before release | two holders, where excluded | two holders, where not | writes | " +
		"corrupt without a guard | refused by the guard | stale but taken by the guard | longest without a holder | slowest recovery |\n|---|" + strings.Repeat("---:|", 11) + "\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %.1f s | %.1f s |\n", r.title, r.injected(),
			r.leases, r.lost, r.overlaps, r.unpromised, r.tally.Writes, r.tally.Corrupted, r.tally.Refused, r.stale, r.gap.Seconds(), r.recovery.Seconds())
	}
	names := map[string]bool{}
	for _, r := range results {
		for name := range r.faults {
			names[name] = true
		}
	}
	b.WriteString("\n| fault |")
	for _, r := range results {
		fmt.Fprintf(&b, " %s |", r.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(results)) + "\n")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range results {
			if n := r.faults[name]; n > 0 {
				fmt.Fprintf(&b, " %d |", n)
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	for _, r := range results {
		if r.unordered > 0 {
			fmt.Fprintf(&b, "\n%s: in %d rounds tokens fell, after clocks had been set and fence records lost.\n", r.title, r.unordered)
		}
	}
	b.WriteString("\n")
	return b.String()
}

// commit is what was tested.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
