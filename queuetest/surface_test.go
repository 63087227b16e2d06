package queuetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// recorder is a surface that keeps what a case reports instead of failing the
// test that runs it.
type recorder struct {
	mu      sync.Mutex
	failed  []string
	skipped []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.mu.Lock()
	r.skipped = append(r.skipped, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	runtime.Goexit()
}

// record runs a case on a fresh queue in a bubble and returns what it reported.
func record(t *testing.T, c testCase, open func() Queue) *recorder {
	t.Helper()
	r := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		s := detect(open())
		s.abilities |= fastClock
		if s.Reopen != nil {
			s.reopen = func() supervisor.WorkQueue { return s.Reopen(t) }
		}
		ctx, cancel := context.WithCancel(t.Context())
		// Goexit ends this goroutine, not the bubble's.
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.try(ctx, r, s)
		}()
		<-done
		cancel()
		time.Sleep(1000 * time.Hour) // the calls of a queue that waits for itself end
	})
	return r
}

func findCase(t *testing.T, id string) testCase {
	t.Helper()
	for _, c := range allCases() {
		if c.topic+"/"+c.name == id {
			return c
		}
	}
	t.Fatalf("there is no case %q", id)
	return testCase{}
}

func TestCasesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCases() {
		id := c.topic + "/" + c.name
		if seen[id] {
			t.Errorf("case %s is there twice", id)
		}
		seen[id] = true
		if c.rule == "" || c.run == nil || strings.ContainsAny(id, " _") {
			t.Errorf("case %s has no rule, no body or a bad name", id)
		}
	}
}

func TestModelPassesInBubbles(t *testing.T) {
	for _, skew := range []time.Duration{-90 * time.Minute, 2 * time.Hour} {
		t.Run(fmt.Sprint("skew=", skew), func(t *testing.T) {
			RunInBubbles(t, func(*testing.T) Queue {
				m := newModel(broken{})
				m.skew = skew
				return m.queue()
			})
		})
	}
}
