package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// elements counts the elements of a document, and proves that it is one.
func elements(t *testing.T, document string) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	decoder := xml.NewDecoder(strings.NewReader(document))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return counts
		}
		require.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok {
			counts[start.Name.Local]++
		}
	}
}

func TestBarChart(t *testing.T) {
	chart := barChart("a < b & c", "per second", []bar{
		{Label: "by hand", summary: summary{400, 300, 500, 5}, Limit: true},
		{Label: "ours", summary: summary{200, 200, 200, 1}, Ours: true},
		{Label: "<peer>", summary: summary{0, 0, 0, 5}},
	})
	require.Equal(t, map[string]int{"svg": 1, "rect": 4, "text": 8, "path": 2}, elements(t, chart))
	require.Contains(t, chart, "a &lt; b &amp; c")
	require.Contains(t, chart, "&lt;peer&gt;")
	// The scale ends at the highest value of all: 520 pixels.
	require.Contains(t, chart, `<rect x="250" y="52.0" width="416.0"`)
	require.Contains(t, chart, `<rect x="250" y="80.0" width="208.0"`)
}

func TestBarChartWithoutFigures(t *testing.T) {
	elements(t, barChart("", "", nil))
	chart := barChart("t", "u", []bar{{Label: "endless", summary: summary{1, 1, math.Inf(1), 2}}})
	elements(t, chart)
	require.NotContains(t, chart, "NaN")
}
