package stampede

import (
	"errors"
	"unicode/utf8"
)

// A pattern is a glob over a whole key, of which no character is special: '*' stands for any run of characters, '?' for any
// one, "[a-f]" and "[^a-f]" for one that is and is not in a set, and a backslash takes away the meaning of what follows it.

var (
	errPatternEmpty  = errors.New("the pattern is empty")
	errPatternUTF8   = errors.New("the pattern is not valid UTF-8")
	errPatternEscape = errors.New(`the pattern ends in a backslash; \\ stands for one`)
	errPatternClass  = errors.New(`the pattern has a "[" without its "]", or an empty or reversed set; \[ stands for a bracket`)
)

// item is one element of a pattern.
type item struct {
	run    bool // '*'
	negate bool // of spans
	spans  []span
}

type span struct{ lo, hi rune }

var anyRune = []span{{0, utf8.MaxRune}}

func compile(pattern string) ([]item, error) {
	if pattern == "" {
		return nil, errPatternEmpty
	}
	if !utf8.ValidString(pattern) {
		return nil, errPatternUTF8
	}
	var items []item
	for rest := []rune(pattern); len(rest) > 0; {
		r := rest[0]
		rest = rest[1:]
		switch r {
		case '*':
			if n := len(items); n == 0 || !items[n-1].run {
				items = append(items, item{run: true})
			}
		case '?':
			items = append(items, item{spans: anyRune})
		case '[':
			it, after, err := class(rest)
			if err != nil {
				return nil, err
			}
			items, rest = append(items, it), after
		case '\\':
			if len(rest) == 0 {
				return nil, errPatternEscape
			}
			items, rest = append(items, item{spans: []span{{rest[0], rest[0]}}}), rest[1:]
		default:
			items = append(items, item{spans: []span{{r, r}}})
		}
	}
	return items, nil
}

// class reads a set up to its closing bracket.
func class(rest []rune) (it item, after []rune, err error) {
	if len(rest) > 0 && rest[0] == '^' {
		it.negate, rest = true, rest[1:]
	}
	one := func() (r rune, ok bool) {
		if len(rest) > 0 && rest[0] == '\\' {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return 0, false
		}
		r, rest = rest[0], rest[1:]
		return r, true
	}
	for {
		if len(rest) > 0 && rest[0] == ']' {
			if len(it.spans) == 0 {
				return it, nil, errPatternClass
			}
			return it, rest[1:], nil
		}
		lo, ok := one()
		if !ok {
			return it, nil, errPatternClass
		}
		hi := lo
		if len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			rest = rest[1:]
			if hi, ok = one(); !ok || hi < lo {
				return it, nil, errPatternClass
			}
		}
		it.spans = append(it.spans, span{lo, hi})
	}
}

func (it item) accepts(r rune) bool {
	for _, s := range it.spans {
		if s.lo <= r && r <= s.hi {
			return !it.negate
		}
	}
	return it.negate
}

// match takes time in proportion to the product of both lengths at most: on a mismatch only the last '*' is reconsidered,
// since what an earlier one could take instead, the last one can take as well.
func match(items []item, key string) bool {
	i, k := 0, 0
	star, resume := -1, 0
	for k < len(key) {
		r, size := utf8.DecodeRuneInString(key[k:])
		switch {
		case i < len(items) && items[i].run:
			star, resume = i, k
			i++
		case i < len(items) && items[i].accepts(r):
			i++
			k += size
		case star >= 0:
			_, size := utf8.DecodeRuneInString(key[resume:])
			resume += size
			i, k = star+1, resume
		default:
			return false
		}
	}
	for i < len(items) && items[i].run {
		i++
	}
	return i == len(items)
}
