package supervisor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// fmt contains the panic of a value's own methods, but not one of what that
// panics with in turn: it would have ended the process while the failure of one
// item was written down.
func TestNothingPanicsWhenAPanicIsPrinted(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"panic":                          {guard("driver", func() error { panic("at the disco") }), "driver panicked: at the disco"},
		"panic with an error":            {guard("driver", func() error { panic(errors.New("planned")) }), "driver panicked: planned"},
		"panic with nil":                 {guard("driver", func() error { panic(nil) }), "driver panicked: panic called with nil argument"},
		"panic that cannot be printed":   {guard("driver", func() error { panic(unprintable{}) }), "driver panicked: a supervisor.unprintable that cannot be printed"},
		"error that cannot be printed":   {guard("driver", func() error { return unprintable{} }), "supervisor.unprintable, whose Error method panicked: a supervisor.unprintable that cannot be printed"},
		"permanent error that cannot be": {Permanent(unprintable{}), "supervisor.unprintable, whose Error method panicked: a supervisor.unprintable that cannot be printed"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, errorText(test.err))
		})
	}
}
