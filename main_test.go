package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails the run when goroutines are left behind. Tests in synctest
// bubbles notice by themselves; this is for the others, examples included.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 && !goroutinesSettle(before) {
		stacks := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "goroutines are left behind:\n%s\n", stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	os.Exit(code)
}

// goroutinesSettle reports whether the number of goroutines comes back to what
// it was before, within a few seconds: the runtime needs a moment to bury them.
func goroutinesSettle(before int) bool {
	const slack = 2 // of the runtime's own
	for range 500 {
		if runtime.NumGoroutine() <= before+slack {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
