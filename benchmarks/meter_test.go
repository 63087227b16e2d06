package main

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPerUnit(t *testing.T) {
	before := reading{client: 1, server: 10, hasServer: true, wal: 1000, mallocs: 50}
	after := reading{client: 3, server: 16, hasServer: true, wal: 201_000, mallocs: 5050}
	require.Equal(t, map[string]float64{
		perSecond:     500,
		clientSeconds: 2,
		serverSeconds: 6,
		walBytes:      200,
		allocations:   5,
	}, perUnit(before, after, 2*time.Second, 1000))
	// What cannot be read is not reported as nothing.
	values := perUnit(reading{}, reading{}, time.Second, 1)
	require.NotContains(t, values, serverSeconds)
	require.NotContains(t, values, walBytes)
	require.NotContains(t, values, others)
	// Of what the machine did, 8 s were ours, 2 s were not.
	before.hasBusy, after.hasBusy, after.busy = true, true, 10
	share := 2 / (2 * float64(runtime.NumCPU()))
	require.InDelta(t, share, perUnit(before, after, 2*time.Second, 1000)[others], 1e-9)
}

func TestMeasure(t *testing.T) {
	values, err := meter{}.measure(t.Context(), func(context.Context) (int, error) {
		time.Sleep(time.Millisecond)
		return 10, nil
	})
	require.NoError(t, err)
	require.Positive(t, values[perSecond])
	require.Less(t, values[perSecond], 10_000.0)
	broken := errors.New("broken")
	_, err = meter{}.measure(t.Context(), func(context.Context) (int, error) { return 0, broken })
	require.ErrorIs(t, err, broken)
}
