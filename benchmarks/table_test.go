package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	table := newTable("case", "per second")
	table.add("one|two", "1")
	table.add("short")
	table.add("long", "2", "not shown")
	require.Equal(t, `| case | per second |
| --- | ---: |
| one\|two | 1 |
| short |  |
| long | 2 |
`, table.String())
}

func TestFigure(t *testing.T) {
	for value, want := range map[float64]string{
		0:             "0.00",
		0.0123456:     "0.0123",
		0.6789:        "0.68",
		9.994:         "9.99",
		36.06:         "36.1",
		100:           "100",
		1234.5:        "1,234",
		87490.2:       "87,490",
		1234567:       "1,234,567",
		-4321:         "-4,321",
		math.Inf(1):   none,
		math.NaN():    none,
		-0.5:          "-0.50",
		999_999_999.4: "999,999,999",
	} {
		require.Equal(t, want, figure(value), value)
	}
}

func TestRanged(t *testing.T) {
	require.Equal(t, none, ranged(summary{}))
	require.Equal(t, "5.00", ranged(summary{5, 5, 5, 1}))
	require.Equal(t, "5.00 (1.00–900)", ranged(summary{5, 1, 900, 3}))
	require.Equal(t, none, middle(summary{}))
	require.Equal(t, "5.00", middle(summary{5, 1, 900, 3}))
}
