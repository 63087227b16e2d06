package supervisor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
	"time"
)

// Causes with which a supervisor ends an evaluation's context, and a dispatcher
// that of a provider's call, which finds them with [context.Cause]. A lost or
// unconfirmed lease, a pause and a cancel come as the error of the renewal that
// told of them ([ErrLeaseLost], [ErrEpochStale]).
var (
	// ErrShutdown: [Supervisor.Run] was told to end and its drain time is over.
	ErrShutdown = errors.New("supervisor: shutting down")
	// ErrEvaluationTimeout: the evaluation took longer than
	// Settings.EvaluationTimeout. It is also [context.DeadlineExceeded].
	ErrEvaluationTimeout error = &timeoutError{"evaluation"}
	// ErrProviderTimeout: the call of a provider took longer than
	// ProviderOptions.Timeout. It is also [context.DeadlineExceeded].
	ErrProviderTimeout error = &timeoutError{"provider"}
)

type timeoutError struct{ what string }

func (e *timeoutError) Error() string { return "supervisor: " + e.what + " timeout exceeded" }

func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// QueueError is a queue's failure that concerns no single item.
type QueueError struct {
	// Op is the method that failed, such as "ClaimDue".
	Op  string
	Err error
}

func (e *QueueError) Error() string { return fmt.Sprintf("supervisor: queue: %s: %v", e.Op, e.Err) }

// Unwrap returns the queue's error.
func (e *QueueError) Unwrap() error { return e.Err }

// ContextError is a failure of the context factory. Every claimed item was
// given a failure command.
type ContextError struct {
	Err error
	// Cleanup tells of the failure commands that could not be committed; nil
	// for none.
	Cleanup *CommitError
}

func (e *ContextError) Error() string {
	if e.Cleanup == nil {
		return fmt.Sprintf("supervisor: context: %v", e.Err)
	}
	return fmt.Sprintf("supervisor: context: %v; clean-up: %v", e.Err, e.Cleanup)
}

// Unwrap returns the factory's error and those of the clean-up.
func (e *ContextError) Unwrap() []error {
	if e.Cleanup == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cleanup}
}

// CommitError names the items whose command could not be committed. None of
// them counts as done: each may or may not have been applied, as its error says.
type CommitError struct {
	Items []ItemError
}

// ItemError is the failure of one item.
type ItemError struct {
	TenantID, InstanceID string
	Err                  error
}

func (e *CommitError) Error() string { return "supervisor: commit failed: " + joined(e.Items) }

// joined is the text of several errors.
func joined[E any, P interface {
	*E
	error
}](errs []E) string {
	texts := make([]string, len(errs))
	for n := range errs {
		texts[n] = P(&errs[n]).Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns an [*ItemError] for each item.
func (e *CommitError) Unwrap() []error {
	errs := make([]error, len(e.Items))
	for n := range e.Items {
		errs[n] = &e.Items[n]
	}
	return errs
}

func (e *ItemError) Error() string {
	return fmt.Sprintf("tenant %q instance %q: %v", shorten(e.TenantID), shorten(e.InstanceID), e.Err)
}

// Unwrap returns the queue's error.
func (e *ItemError) Unwrap() error { return e.Err }

// PanicError is a panic, or a [runtime.Goexit], that was turned into a failure.
type PanicError struct {
	// Op is what panicked, such as "driver" or "queue CommitCommand".
	Op string
	// Value is what it panicked with; nil for a Goexit.
	Value any
	// Stack is where; nil for a Goexit.
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Stack == nil {
		return e.Op + " called runtime.Goexit"
	}
	return e.Op + " panicked: " + panicText(e.Value)
}

// panicText describes a recovered value. fmt contains a panic of the value's own
// methods, but not one of what that panics with in turn.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", value)
		}
	}()
	return fmt.Sprint(value)
}

// Unwrap returns the value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return soundError(err)
}

// contained turns what recover returned into an error, nil for no panic. Since
// Go 1.21 a panic(nil) recovers as a value, so that nil means none.
func contained(op string, value any) error {
	if value == nil {
		return nil
	}
	return &PanicError{Op: op, Value: value, Stack: debug.Stack()}
}

// guard calls foreign code and returns its error, or a *PanicError. A Goexit
// goes on unwinding the goroutine.
func guard(op string, call func() error) (err error) {
	defer func() {
		if panicked := contained(op, recover()); panicked != nil {
			err = panicked
		}
	}()
	return soundError(call())
}

// join calls foreign code in a goroutine of its own, which ends with the call,
// and waits for it: neither a panic nor a Goexit reaches the caller.
func join(op string, call func() error) error {
	result := make(chan error, 1)
	go func() {
		err := error(&PanicError{Op: op})
		defer func() { result <- err }()
		err = guard(op, call)
	}()
	return <-result
}

// soundError makes an error that can be asked and printed of one that cannot:
// of a nil pointer in an error's clothes, and of one that wraps such a pointer
// or whose own methods panic. All errors of foreign code go through it, so that
// nobody after it needs to be careful.
func soundError(err error) error {
	if err == nil {
		return nil
	}
	if value := reflect.ValueOf(err); value.Kind() == reflect.Pointer && value.IsNil() {
		return fmt.Errorf("a nil %T was returned as an error", err)
	}
	if !answers(err) {
		return errors.New(errorText(err))
	}
	return err
}

// answers reports whether the methods of an error, and of all that it wraps, can
// be called.
func answers(err error) (sound bool) {
	defer func() {
		if recover() != nil {
			sound = false
		}
	}()
	_ = err.Error()
	// Neither can be found, so that the whole tree is walked.
	var nobody *nobodyError
	return !errors.Is(err, nobody) && !errors.As(err, &nobody)
}

// nobodyError is never returned by anybody.
type nobodyError struct{}

func (*nobodyError) Error() string { return "" }

// errorText is the text of any error, also of one whose Error method panics.
func errorText(err error) (text string) {
	defer func() {
		if value := recover(); value != nil {
			text = fmt.Sprintf("%T, whose Error method panicked: %s", err, panicText(value))
		}
	}()
	return err.Error()
}

// Permanent marks a driver's error as one that no retry can help: the instance
// fails for good. A nil error stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return errorText(e.err) }
func (e *permanentError) Unwrap() error { return e.err }

// RetryAfter marks a driver's error with the delay after which to evaluate
// again, instead of the growing one; less than a second means a second. A nil
// error stays nil.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, delay}
}

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return errorText(e.err) }
func (e *retryAfterError) Unwrap() error { return e.err }
