package stampede

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// PanicError is the error of a load that panicked, for everybody who waited for it.
type PanicError struct {
	Value any    // of the panic
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack has it
}

// Error has the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("stampede: load panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func newPanic(value any) *PanicError { return &PanicError{Value: value, Stack: debug.Stack()} }

// RemoteError is the error of a load that failed a moment ago, in this process or another: it is remembered for the policy's ErrorTTL,
// and meanwhile nobody tries again. Only its text is known.
type RemoteError struct {
	Key     string
	Message string
}

// Error has the key and the text.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("stampede: loading %q failed a moment ago: %s", e.Key, e.Message)
}

var errGoexit = errors.New("stampede: the load called runtime.Goexit")

const maxMessage = 1024

// message is the text that others get to see of err.
func message(err error) string {
	m := err.Error()
	if p := (*PanicError)(nil); errors.As(err, &p) {
		m = fmt.Sprintf("panic: %v", p.Value)
	}
	if len(m) > maxMessage {
		m = m[:maxMessage]
	}
	if m = strings.ToValidUTF8(m, ""); m == "" {
		return "unknown"
	}
	return m
}
