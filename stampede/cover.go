package stampede

import "fmt"

// covers reports whether every key that q matches is matched by p. It follows both patterns over one character of each kind that
// they can tell apart, with p at all the places where it can be at once. Patterns so intricate that this takes too long are not covered.
func covers(p, q []item) bool {
	type state struct {
		q int
		p string
	}
	alphabet := kinds(p, q)
	start := state{0, at(p, map[int]bool{0: true})}
	seen, todo := map[state]bool{start: true}, []state{start}
	reach := func(s state) {
		if !seen[s] {
			seen[s] = true
			todo = append(todo, s)
		}
	}
	for len(todo) > 0 {
		if len(seen) > 10_000 {
			return false
		}
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.q == len(q) {
			if s.p[len(p)] == 0 {
				return false // here q has ended and p has not
			}
			continue
		}
		it, after := q[s.q], s.q+1
		if it.run {
			reach(state{s.q + 1, s.p}) // a run may be empty, or go on
			after = s.q
		}
		for _, r := range alphabet {
			if it.run || it.accepts(r) {
				reach(state{after, step(p, s.p, r)})
			}
		}
	}
	return true
}

// at is where p can be: a byte for each place in it, and one for its end.
func at(p []item, places map[int]bool) string {
	b := make([]byte, len(p)+1)
	for i := range b {
		if places[i] || (i > 0 && b[i-1] == 1 && p[i-1].run) {
			b[i] = 1
		}
	}
	return string(b)
}

// step is where p can be after r.
func step(p []item, now string, r rune) string {
	places := map[int]bool{}
	for i, it := range p {
		switch {
		case now[i] == 0:
		case it.run:
			places[i] = true
		case it.accepts(r):
			places[i+1] = true
		}
	}
	return at(p, places)
}

// kinds returns one character of each kind that the patterns can tell apart.
func kinds(patterns ...[]item) []rune {
	firsts := map[rune]bool{0: true, 0xE000: true} // the latter follows the surrogates, which are no characters
	for _, p := range patterns {
		for _, it := range p {
			for _, s := range it.spans {
				firsts[s.lo], firsts[s.hi+1] = true, true
			}
		}
	}
	// Where two patterns' sets agree, one character will do.
	var one []rune
	told := map[string]bool{}
	for r := range firsts {
		if r > 0x10FFFF || (r >= 0xD800 && r < 0xE000) {
			continue
		}
		var signs []byte
		for _, p := range patterns {
			for _, it := range p {
				signs = fmt.Append(signs, it.run || it.accepts(r))
			}
		}
		if !told[string(signs)] {
			told[string(signs)] = true
			one = append(one, r)
		}
	}
	return one
}
