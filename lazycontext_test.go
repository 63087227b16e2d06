package supervisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// lazyPair returns a lazyContext and a real context of the same description:
// whatever can be asked, both must answer alike.
func lazyPair(parent context.Context, timeout time.Duration, cause error) (lazy *lazyContext, real context.Context, cancelReal context.CancelCauseFunc, end func()) {
	lazy = &lazyContext{parent: parent}
	stop := context.CancelFunc(func() {})
	if timeout != 0 {
		lazy.deadline, lazy.cause = time.Now().Add(timeout), cause
		parent, stop = context.WithDeadlineCause(parent, lazy.deadline, cause)
	}
	real, cancelReal = context.WithCancelCause(parent)
	return lazy, real, cancelReal, func() {
		lazy.end()
		cancelReal(nil)
		stop()
	}
}

func requireAlike(t *testing.T, want, got context.Context) {
	t.Helper()
	require.Equal(t, want.Err(), got.Err())
	require.Equal(t, context.Cause(want), context.Cause(got))
	require.Equal(t, want.Value(valueKey{}), got.Value(valueKey{}))
	wantAt, wantOK := want.Deadline()
	gotAt, gotOK := got.Deadline()
	require.Equal(t, wantOK, gotOK)
	require.Equal(t, wantAt, gotAt)
}

func requireDone(t *testing.T, done bool, contexts ...context.Context) {
	t.Helper()
	for _, ctx := range contexts {
		select {
		case <-ctx.Done():
			require.True(t, done, "%v is done", ctx)
		default:
			require.False(t, done, "%v is not done", ctx)
		}
	}
}

func TestLazyContextAnswersLikeARealOne(t *testing.T) {
	late, enough, ownCause := errors.New("late"), errors.New("enough"), errors.New("parent's")
	for name, test := range map[string]struct {
		parentTimeout time.Duration // 0: none
		timeout       time.Duration // 0: none
		act           func(lazy *lazyContext, cancelReal, cancelParent context.CancelCauseFunc)
		wait          time.Duration
	}{
		"as made":               {},
		"with a deadline ahead": {timeout: time.Minute, wait: time.Second},
		"with a past deadline":  {timeout: time.Second, wait: time.Second},
		"born too late":         {timeout: -time.Second},
		"parent ends first":     {parentTimeout: time.Second, timeout: time.Minute, wait: time.Second},
		"parent ends later":     {parentTimeout: time.Minute, timeout: time.Second, wait: time.Second},
		"interrupted": {act: func(lazy *lazyContext, cancelReal, _ context.CancelCauseFunc) {
			lazy.interrupt(enough)
			cancelReal(enough)
		}},
		"interrupted twice": {act: func(lazy *lazyContext, cancelReal, _ context.CancelCauseFunc) {
			lazy.interrupt(enough)
			lazy.interrupt(late)
			cancelReal(enough)
			cancelReal(late)
		}},
		"ended": {act: func(lazy *lazyContext, cancelReal, _ context.CancelCauseFunc) {
			lazy.end()
			cancelReal(context.Canceled)
		}},
		"ended, then interrupted": {act: func(lazy *lazyContext, cancelReal, _ context.CancelCauseFunc) {
			lazy.end()
			lazy.interrupt(enough)
			cancelReal(context.Canceled)
		}},
		"interrupted, then ended": {act: func(lazy *lazyContext, cancelReal, _ context.CancelCauseFunc) {
			lazy.interrupt(enough)
			lazy.end()
			cancelReal(enough)
		}},
		"parent cancelled": {act: func(_ *lazyContext, _, cancelParent context.CancelCauseFunc) { cancelParent(ownCause) }},
		"parent cancelled, then interrupted": {act: func(lazy *lazyContext, cancelReal, cancelParent context.CancelCauseFunc) {
			cancelParent(ownCause)
			lazy.interrupt(enough)
			cancelReal(enough)
		}},
	} {
		for moment, early := range map[string]bool{"asked before": true, "asked after": false} {
			t.Run(name+", "+moment, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, cancelParent := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, "v"))
					defer cancelParent(nil)
					if test.parentTimeout > 0 {
						limited, stop := context.WithTimeoutCause(parent, test.parentTimeout, ownCause)
						defer stop()
						parent = limited
					}
					lazy, real, cancelReal, end := lazyPair(parent, test.timeout, late)
					defer end()
					if early {
						requireDone(t, test.timeout < 0, lazy, real)
						requireAlike(t, real, lazy)
					}
					if test.act != nil {
						test.act(lazy, cancelReal, cancelParent)
					}
					time.Sleep(test.wait)
					synctest.Wait()
					requireAlike(t, real, lazy)
					requireDone(t, real.Err() != nil, lazy, real)
					requireAlike(t, real, lazy)
				})
			})
		}
	}
}

// Contexts made of a lazy one are its children, whenever they were made.
func TestChildrenOfALazyContextEndWithIt(t *testing.T) {
	enough := errors.New("enough")
	for name, end := range map[string]func(*lazyContext){
		"interrupt": func(c *lazyContext) { c.interrupt(enough) },
		"end":       (*lazyContext).end,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lazy := &lazyContext{parent: t.Context()}
				value := context.WithValue(lazy, valueKey{}, "v")
				child, cancel := context.WithTimeout(lazy, time.Hour)
				defer cancel()
				called := false
				context.AfterFunc(value, func() { called = true })
				end(lazy)
				synctest.Wait()
				require.True(t, called)
				requireDone(t, true, lazy, value, child)
				require.ErrorIs(t, child.Err(), context.Canceled)
				if name == "interrupt" {
					require.Equal(t, enough, context.Cause(child))
					require.Equal(t, enough, context.Cause(value))
				}
				late, cancelLate := context.WithCancel(lazy)
				defer cancelLate()
				requireDone(t, true, late)
			})
		})
	}
}

// Nobody who asks makes it cost anything, until Done is asked for.
func TestLazyContextStaysLazy(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	lazy := &lazyContext{parent: parent, deadline: time.Now().Add(time.Hour), cause: context.DeadlineExceeded}
	require.NoError(t, lazy.Err())
	require.NoError(t, context.Cause(lazy))
	lazy.Value(valueKey{})
	lazy.Deadline()
	require.Nil(t, lazy.real)
	lazy.end()
	require.Nil(t, lazy.real)
	require.ErrorIs(t, lazy.Err(), context.Canceled)
	owners, n := make([]lazyContext, 101), 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		own := &owners[n]
		n++
		own.parent = parent
		_ = own.Err()
		own.end()
	}))
}

func TestLazyContextIsSafeForManyGoroutines(t *testing.T) {
	enough := errors.New("enough")
	for range 100 {
		lazy := &lazyContext{parent: t.Context(), deadline: time.Now().Add(time.Hour), cause: enough}
		var group sync.WaitGroup
		for _, act := range []func(){
			func() { lazy.interrupt(enough) },
			func() { lazy.end() },
			func() { <-lazy.Done() },
			func() { _ = lazy.Err() },
			func() { _ = context.Cause(lazy) },
			func() { lazy.Value(valueKey{}) },
			func() {
				child, cancel := context.WithCancel(lazy)
				defer cancel()
				<-child.Done()
			},
		} {
			group.Go(act)
		}
		group.Wait()
		require.ErrorIs(t, lazy.Err(), context.Canceled)
	}
}
