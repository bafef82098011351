package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/paddock-go/paddock"
)

// row is what a variant came to.
type row struct {
	variant variant
	lucky   int      // expiries before this one at which no two recomputed at once, without any right to
	void    []string // why expiries before this one proved nothing
	start   time.Time
	outcome
}

// maxHolders is the largest number of requests that recomputed at one moment, each of them believing to have the lock, where
// there is one.
func (r row) maxHolders() int {
	type step struct {
		at time.Time
		by int
	}
	var steps []step
	for _, c := range r.Computes {
		steps = append(steps, step{c.From, 1}, step{c.To, -1})
	}
	slices.SortFunc(steps, func(a, b step) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.by - b.by
	})
	most, now := 0, 0
	for _, s := range steps {
		now += s.by
		most = max(most, now)
	}
	return most
}

func (r row) stale() int {
	n := 0
	for _, a := range r.Answers {
		if a.Stale {
			n++
		}
	}
	return n
}

// latency returns the median and the longest time that a request took.
func (r row) latency() (p50, most time.Duration) {
	if len(r.Answers) == 0 {
		return 0, 0
	}
	took := make([]time.Duration, len(r.Answers))
	for i, a := range r.Answers {
		took[i] = a.Took
	}
	slices.Sort(took)
	return took[(len(took)-1)/2], took[len(took)-1]
}

// asItShould reports whether the row showed what it is there for.
func (r row) asItShould() bool {
	if len(r.Answers) != requests {
		return false
	}
	if r.variant.safe() {
		return len(r.Computes) == 1 && r.maxHolders() == 1
	}
	return r.maxHolders() > 1
}

// ms is d in milliseconds, to a hundredth.
func ms(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}

// printer shows the rows as they come.
type printer interface {
	begin(g paddock.Guarantees)
	row(r row)
	end(rows []row)
}

type silent struct{}

func (silent) begin(paddock.Guarantees) {}
func (silent) row(row)                  {}
func (silent) end([]row)                {}

// screen shows them to a person, in 80 columns.
type screen struct {
	w         io.Writer
	colour    bool
	site      siteConfig
	processes int
	minTTL    time.Duration // of the lock service
}

func newScreen(w io.Writer, c siteConfig, processes int) *screen {
	return &screen{w: w, colour: isTerminal(w) && os.Getenv("NO_COLOR") == "", site: c, processes: processes}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

const (
	red   = "31"
	green = "32"
	bold  = "1"
)

func (s *screen) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s *screen) begin(g paddock.Guarantees) {
	s.minTTL = g.MinTTL
	fmt.Fprintf(s.w, "\"Trending posts\" has just expired, and %d requests for it come at once.\n", requests)
	fmt.Fprintf(s.w, "To recompute it takes %v.\n\n", recomputeTime)
	switch {
	case s.processes > 1:
		fmt.Fprintf(s.w, "%d processes, each an instance of a service.\n", s.processes)
	default:
		fmt.Fprintf(s.w, "%d instances of a service, played by this process.\n", instances)
	}
	simulated := fmt.Sprintf("in this process; a simulated round trip of %v for every command", roundTrip)
	for _, place := range [][2]string{{"Locks", s.site.Lock}, {"Values", s.site.Store}} {
		where := simulated
		if place[1] != "" {
			where = shown(place[1])
		}
		fmt.Fprintf(s.w, "%-7s %s\n", place[0]+":", where)
	}
	fmt.Fprintf(s.w, "\n%-18s%10s%10s%8s%10s%10s\n", "", "recomputes", "holders", "stale", "p50 ms", "max ms")
}

func (s *screen) row(r row) {
	p50, most := r.latency()
	fmt.Fprintf(s.w, "%-18s%10d%10d%8d%10.1f%10.1f  %s\n",
		r.variant.name, len(r.Computes), r.maxHolders(), r.stale(), ms(p50), ms(most), s.verdict(r))
}

func (s *screen) verdict(r row) string {
	switch ok := r.asItShould(); {
	case !ok && r.variant.safe():
		return s.paint(red, "FAILED")
	case !ok:
		return s.paint(red, "NOT BROKEN")
	case r.variant.safe():
		return s.paint(green, "ok")
	}
	return s.paint(red, "broken")
}

const (
	margin    = 12 // left of the bars
	barWidth  = 64
	barsShown = 3 // of a row; the others are counted
)

func (s *screen) end(rows []row) {
	fmt.Fprint(s.w, "\nholders: the most who recomputed at one moment; but for none, each with a lock\n")
	fmt.Fprint(s.w, "stale:   answers with the old value\n")
	for _, r := range rows {
		if r.lucky > 0 {
			fmt.Fprintf(s.w, "%s is a matter of luck: the first %d expiries went well\n", r.variant.name, r.lucky)
		}
		for _, why := range r.void {
			fmt.Fprintf(s.w, "%s was repeated: %s\n", r.variant.name, why)
		}
	}

	var span time.Duration
	for _, r := range rows {
		for _, c := range r.Computes {
			span = max(span, c.To.Sub(r.start))
		}
	}
	column := max(4, span/barWidth/time.Millisecond+1) * time.Millisecond
	fmt.Fprintf(s.w, "\nWho recomputed when (i: instance, r: its request; a column is %v)\n", column)
	axis := ""
	for at := 0 * time.Millisecond; int(at/column)+len("1000 ms") <= barWidth; at += 100 * time.Millisecond {
		axis += fmt.Sprintf("%*s%d", int(at/column)-len(axis), "", at.Milliseconds())
	}
	fmt.Fprintf(s.w, "%*s%s ms\n", margin, "", axis)
	for _, r := range rows {
		s.timeline(r, column)
	}

	failed := slices.DeleteFunc(slices.Clone(rows), row.asItShould)
	if len(failed) == 0 {
		fmt.Fprintf(s.w, "\n%s\n", s.paint(green, "Every row showed what it should: paddock recomputed once, the others did not."))
		return
	}
	for _, r := range failed {
		fmt.Fprintf(s.w, "\n%s\n", s.paint(red, r.variant.name+" did not show what it should."))
	}
}

// timeline draws who recomputed when.
func (s *screen) timeline(r row, column time.Duration) {
	fmt.Fprintf(s.w, "\n%s: %s\n", s.paint(bold, r.variant.name), strings.Join(r.variant.legend, "\n    "))
	colour := green
	if !r.variant.safe() {
		colour = red
	}
	computes := slices.SortedFunc(slices.Values(r.Computes), func(a, b compute) int { return a.From.Compare(b.From) })
	for i, c := range computes {
		if i == barsShown && len(computes) > barsShown+1 {
			fmt.Fprintf(s.w, "%*s and %d more\n", margin-2, "...", len(computes)-i)
			break
		}
		from := max(0, int(c.From.Sub(r.start)/column))
		to := min(barWidth, max(from+1, int((c.To.Sub(r.start)+column/2)/column)))
		fmt.Fprintf(s.w, "%*s  %s%s\n", margin-2, fmt.Sprintf("i%d r%d", c.Instance, c.Request),
			strings.Repeat(" ", from), s.paint(colour, strings.Repeat("=", to-from)))
	}
	if ttl := r.variant.policy.LockTTL; ttl > 0 && ttl < s.minTTL {
		fmt.Fprintf(s.w, "    (with a lock TTL of %v, which is the least that this lock service can)\n", s.minTTL)
	}
	if r.Stolen > 0 {
		fmt.Fprintf(s.w, "    %d of the DELs removed a lock that was another's\n", r.Stolen)
	}
	if r.Late > 0 {
		fmt.Fprintf(s.w, "    %d of the releases came when the lock was gone or another's\n", r.Late)
	}
}
