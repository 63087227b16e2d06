package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSummarize(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		want   summary
	}{
		{"nothing", nil, summary{}},
		{"one", []float64{3}, summary{3, 3, 3, 1}},
		{"odd", []float64{9, 1, 5}, summary{5, 1, 9, 3}},
		{"even", []float64{4, 1, 3, 2}, summary{2.5, 1, 4, 4}},
		{"an outlier moves no median", []float64{10, 11, 9, 10, 1000}, summary{10, 9, 1000, 5}},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, summarize(test.values)) })
	}
}

func TestSummarizeLeavesValuesAsTheyAre(t *testing.T) {
	values := []float64{3, 1, 2}
	summarize(values)
	percentile(values, 50)
	require.Equal(t, []float64{3, 1, 2}, values)
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for n := range hundred {
		hundred[n] = float64(100 - n)
	}
	require.InDelta(t, 50, percentile(hundred, 50), 0)
	require.InDelta(t, 99, percentile(hundred, 99), 0)
	require.InDelta(t, 100, percentile(hundred, 100), 0)
	require.InDelta(t, 1, percentile(hundred, 0), 0)
	require.InDelta(t, 7, percentile([]float64{7}, 99), 0)
	require.Zero(t, percentile(nil, 50))
}
