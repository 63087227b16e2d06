package main

import (
	"math"
	"slices"
)

// summary is what the tables show of several rounds.
type summary struct {
	Median, Lowest, Highest float64
	// Count is the number of rounds; the rest means nothing when it is 0.
	Count int
}

// summarize returns the median and the range of values, which may stand in any
// order and are left as they are.
func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return summary{Median: median, Lowest: sorted[0], Highest: sorted[len(sorted)-1], Count: len(sorted)}
}

// percentile returns the smallest value that at least p percent of all values
// do not exceed; 0 without values.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
