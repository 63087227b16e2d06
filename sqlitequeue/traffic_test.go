package sqlitequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// A call whose context ends at any moment has either changed nothing or says
// that it has.
func TestContextsThatEndAtAnyMoment(t *testing.T) {
	q := open(t, Options{})
	var callers sync.WaitGroup
	for caller := range 8 {
		random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(caller)))
		callers.Go(func() {
			for n := range 60 {
				id := fmt.Sprint(caller, "-", n)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(3000))*time.Microsecond)
				started, err := q.Start(ctx, testInstance(t, id), time.Time{})
				cancel()
				_, missing := q.Get(t.Context(), supervisor.DefaultTenantID, id)
				switch {
				case err == nil:
					if !started || missing != nil {
						t.Errorf("%s was started, %v, but %v", id, started, missing)
					}
				case !errors.Is(err, context.DeadlineExceeded) || !errors.Is(missing, supervisor.ErrNotFound):
					t.Errorf("start of %s: %v, and Get: %v", id, err, missing)
				}
			}
		})
	}
	callers.Wait()
}

// Close in the middle of all kinds of calls ends each of them in good order:
// they are done or refused, and what was done is there.
func TestCloseDuringTraffic(t *testing.T) {
	for round := range 5 {
		path := filepath.Join(t.TempDir(), "queue.db")
		q, err := Open(t.Context(), "", Options{DB: (&faultyStore{path: path}).pool(), IsBusy: testIsBusy})
		require.NoError(t, err)
		q.ownsDB = true // closing the pool is part of it
		var mu sync.Mutex
		var done []string
		calls := []func(n int) error{
			func(n int) error {
				id := fmt.Sprint("i", n)
				if _, err := q.Start(t.Context(), testInstance(t, id), time.Time{}); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				done = append(done, id)
				return nil
			},
			func(int) error {
				items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 3})
				for n := range items {
					err = errors.Join(err, q.CommitCommand(t.Context(), &items[n], step(t, &items[n], `1`, supervisor.Complete{})))
				}
				return err
			},
			func(n int) error {
				_, err := q.Get(t.Context(), supervisor.DefaultTenantID, fmt.Sprint("i", n))
				if errors.Is(err, supervisor.ErrNotFound) {
					return nil
				}
				return err
			},
			func(int) error {
				for _, err := range q.List(t.Context(), supervisor.Filter{}) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			func(int) error { return q.WaitDue(t.Context(), nil) },
			func(int) error { return q.Migrate(t.Context()) },
		}
		var callers sync.WaitGroup
		failures := make([]error, len(calls))
		for c, call := range calls {
			callers.Go(func() {
				for n := 0; failures[c] == nil; n++ {
					failures[c] = call(n)
				}
			})
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		require.NoError(t, q.Close())
		// The callers may go on for a while with what they had begun to read.
		callers.Wait()
		for c, err := range failures {
			require.ErrorIs(t, err, ErrClosed, "call %d", c)
		}
		again := openFile(t, path, Options{})
		for _, id := range done {
			_, err := again.Get(t.Context(), supervisor.DefaultTenantID, id)
			require.NoError(t, err)
		}
	}
}
