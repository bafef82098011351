package stampede

import (
	"fmt"
)

// PolicyError is why New refuses a policy; it is an ErrInvalid.
type PolicyError struct {
	Index   int    // of the policy in Policies
	Pattern string // of the policy
	Field   string // of Policy, that is at fault
	Err     error
}

// Error names the policy, and says what is wrong and what would be right.
func (e *PolicyError) Error() string {
	return fmt.Sprintf("%v: policy %d, pattern %q: %v", ErrInvalid, e.Index, e.Pattern, e.Err)
}

// Unwrap returns ErrInvalid and what is wrong.
func (e *PolicyError) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// Check returns what New would say of the policies: nil, or an error that is a *PolicyError where one policy is at fault.
func (ps Policies) Check() error {
	_, err := ps.compile()
	return err
}

// fieldError is an error about one field of a Policy.
type fieldError struct {
	field string
	error
}

func (e *fieldError) Unwrap() error { return e.error }

func wrong(field, format string, args ...any) error {
	return &fieldError{field, fmt.Errorf(format, args...)}
}

func newPolicyError(i int, pattern string, err error) *PolicyError {
	e := &PolicyError{Index: i, Pattern: pattern, Err: err}
	if f, ok := err.(*fieldError); ok {
		e.Field = f.field
	}
	return e
}
