package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBusy(t *testing.T) {
	seconds, ok := parseBusy("cpu  100 200 300 9999 8888 10 20 70 0 0\ncpu0 1 2 3\n")
	require.True(t, ok)
	require.InDelta(t, 7, seconds, 1e-9)
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a 2 3 4 5 6 7 8 9"} {
		_, ok := parseBusy(bad)
		require.False(t, ok, bad)
	}
}

func TestCalmest(t *testing.T) {
	shares := [][2]float64{{0.5, 0.1}, {0.1, 0.3}, {0.9, 0.9}, {0.05, 0.02}}
	for _, test := range []struct {
		name   string
		most   float64
		times  int
		want   float64
		called int
	}{
		{"the first will do", 0.5, 3, 0, 1},
		{"the second", 0.3, 3, 1, 2},
		{"the least disturbed of three", 0.2, 3, 1, 3},
		{"until it is quiet", 0.2, 9, 3, 4},
		{"once at least", 0, 0, 0, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			called := 0
			reference, values, err := calmest(test.most, test.times, func() (map[string]float64, map[string]float64, error) {
				share := shares[called]
				called++
				return map[string]float64{others: share[0], "n": float64(called - 1)}, map[string]float64{others: share[1], "n": float64(called - 1)}, nil
			})
			require.NoError(t, err)
			require.Equal(t, test.called, called)
			require.InDelta(t, test.want, reference["n"], 0)
			require.InDelta(t, test.want, values["n"], 0)
		})
	}
	broken := errors.New("broken")
	_, _, err := calmest(1, 3, func() (map[string]float64, map[string]float64, error) { return nil, nil, broken })
	require.ErrorIs(t, err, broken)
}
