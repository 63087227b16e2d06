package pgqueue

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCloseSendsTheLastNotice is a program that starts an instance and ends: who
// waits in another process must not have to look by itself.
func TestCloseSendsTheLastNotice(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	waiting := open(t, dsn, schema, Options{})
	for n := range repeats(5, 50) {
		require.Empty(t, claim(t, waiting, 1))
		ended := make(chan error, 1)
		go func() { ended <- waiting.WaitDue(context.Background(), nil) }()
		require.Eventually(t, func() bool {
			waiting.waits.mu.Lock()
			defer waiting.waits.mu.Unlock()
			return waiting.waits.listening && len(waiting.waits.waiting) == 1
		}, 10*time.Second, time.Millisecond)
		// It has asked the database, found nothing, and sleeps.
		time.Sleep(50 * time.Millisecond)
		program := open(t, dsn, schema, Options{DisableListen: true})
		start(t, program, "instance-"+strconv.Itoa(n))
		program.Close()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Fatal("the start was not told")
		}
		item := claimOne(t, waiting)
		require.NoError(t, commit(t, waiting, &item, complete))
	}
}
