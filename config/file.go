package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/paddock-go/paddock/stampede"
)

// file is a file on its way to a Config.
type file struct {
	name     string
	env      func(string) (string, bool)
	backends []opening
	store    *opening
	rules    []rule
	errs     []error
}

// opening is something with a URL.
type opening struct {
	name string
	url  string
	node *yaml.Node
}

func (f *file) err() error { return errors.Join(f.errs...) }

func (f *file) fail(n *yaml.Node, format string, args ...any) {
	e := &Error{File: f.name, Err: fmt.Errorf(format, args...)}
	if n != nil {
		e.Line, e.Column = n.Line, n.Column
	}
	f.errs = append(f.errs, e)
}

// read takes the file apart.
func (f *file) read(data []byte) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		f.fail(nil, "not YAML: %w", err)
		return
	}
	if doc.Kind == 0 || len(doc.Content) == 0 {
		f.fail(nil, "the file is empty; it should have backends, store and keys")
		return
	}
	for _, e := range f.mapping(doc.Content[0], "the file") {
		switch e.name {
		case "backends":
			f.readBackends(e.value)
		case "store":
			f.store = f.opening("store", e.value)
		case "keys":
			f.readKeys(e.value)
		default:
			f.fail(e.key, "unknown field %q; known are backends, store and keys", e.name)
		}
	}
	var known []string
	for _, b := range f.backends {
		known = append(known, b.name)
	}
	for _, r := range f.rules {
		if r.backend != "" && !slices.Contains(known, r.backend) {
			f.fail(r.at["backend"], "backend %q is not among backends, which are %q", r.backend, known)
		}
	}
	if len(f.rules) == 0 && len(f.errs) == 0 {
		f.fail(doc.Content[0], "no keys; there should be at least one rule, such as {pattern: \"*\", ttl: 1m}")
	}
}

// entry is one of a mapping.
type entry struct {
	name       string
	key, value *yaml.Node
}

// mapping returns the entries of n, which errors call what.
func (f *file) mapping(n *yaml.Node, what string) []entry {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		f.fail(n, "%s should be a mapping, as in name: value", what)
		return nil
	}
	var es []entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := entry{name: n.Content[i].Value, key: n.Content[i], value: resolve(n.Content[i+1])}
		switch {
		case e.key.Kind != yaml.ScalarNode || e.name == "":
			f.fail(e.key, "%s has a name that is not a word", what)
		case slices.ContainsFunc(es, func(o entry) bool { return o.name == e.name }):
			f.fail(e.key, "%q is there twice in %s", e.name, what)
		default:
			es = append(es, e)
		}
	}
	return es
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

func (f *file) readBackends(n *yaml.Node) {
	for _, e := range f.mapping(n, "backends") {
		if !word.MatchString(e.name) {
			f.fail(e.key, "backend name %q; it should be of letters, digits and _ . -", e.name)
			continue
		}
		if o := f.opening(e.name, e.value); o != nil {
			f.backends = append(f.backends, *o)
		}
	}
}

func (f *file) opening(name string, n *yaml.Node) *opening {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		f.fail(n, "%s should be a URL, such as redis://host:6379/0", name)
		return nil
	}
	expanded, err := f.expand(n.Value)
	if err != nil {
		f.fail(n, "%s: %w", name, err)
		return nil
	}
	return &opening{name: name, url: expanded, node: n}
}

var variable = regexp.MustCompile(`\$\{[^}]*\}?`)

// expand puts in the environment variables.
func (f *file) expand(raw string) (string, error) {
	var err error
	expanded := variable.ReplaceAllStringFunc(raw, func(v string) string {
		name := strings.TrimSuffix(strings.TrimPrefix(v, "${"), "}")
		if !strings.HasSuffix(v, "}") || !word.MatchString(name) {
			err = errors.Join(err, errors.New("${ without a variable's name and }"))
			return ""
		}
		value, ok := f.env(name)
		if !ok || value == "" {
			err = errors.Join(err, fmt.Errorf("the environment variable %s is not set", name))
		}
		if v == raw {
			return value
		}
		return strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
	})
	return expanded, err
}

func (f *file) readKeys(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		f.fail(n, "keys should be a list of rules, each with a pattern and a ttl")
		return
	}
	for _, item := range n.Content {
		f.readRule(resolve(item))
	}
}

// policies adds those of the file to c, now that the backends are there to be asked what they guarantee.
func (f *file) policies(c *Config) {
	for _, r := range f.rules {
		p := r.policy
		if r.backend != "" {
			p.Locker = c.Lockers[r.backend]
		}
		c.Policies, c.Backends = append(c.Policies, p), append(c.Backends, r.backend)
	}
	// One error at a time: what follows a policy that is refused is looked at without it.
	check, index := slices.Clone(c.Policies), make([]int, len(c.Policies))
	for i := range index {
		index[i] = i
	}
	for len(check) > 0 {
		var refused *stampede.PolicyError
		err := check.Check()
		if !errors.As(err, &refused) {
			if err != nil {
				f.fail(nil, "%w", err)
			}
			return
		}
		r := f.rules[index[refused.Index]]
		at := r.node
		for _, field := range fields {
			if field.policy == refused.Field && r.at[field.name] != nil {
				at = r.at[field.name]
			}
		}
		f.fail(at, "keys %q: %w", refused.Pattern, refused.Err)
		check = slices.Delete(check, refused.Index, refused.Index+1)
		index = slices.Delete(index, refused.Index, refused.Index+1)
	}
}
