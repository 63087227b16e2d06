package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// bar is one line of a chart: the length is the median, the whisker the range.
type bar struct {
	Label string
	summary
	// Ours marks what this library does; Limit what was written by hand.
	Ours, Limit bool
}

// Measures of a chart, in pixels.
const (
	chartWidth  = 860
	labelWidth  = 250
	figureWidth = 90
	barHeight   = 18
	rowHeight   = 28
	chartTop    = 52
)

// barChart draws horizontal bars on a linear scale from 0 as SVG, readable on
// light and dark pages.
func barChart(title, unit string, bars []bar) string {
	most := 0.0
	for _, b := range bars {
		most = max(most, b.Highest)
	}
	if most <= 0 || math.IsInf(most, 0) {
		most = 1
	}
	scale := func(v float64) float64 { return max(v, 0) / most * (chartWidth - labelWidth - figureWidth) }
	height := chartTop + rowHeight*len(bars) + 12
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		chartWidth, height, chartWidth, height)
	s.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	fmt.Fprintf(&s, `<text x="12" y="22" font-size="16" font-weight="bold" fill="#1f2328">%s</text>`+"\n", escaped(title))
	fmt.Fprintf(&s, `<text x="12" y="41" fill="#59636e">%s</text>`+"\n", escaped(unit))
	for n, b := range bars {
		y := float64(chartTop + rowHeight*n)
		center := y + barHeight/2.0
		color := "#8c959f"
		switch {
		case b.Ours:
			color = "#1a7f5a"
		case b.Limit:
			color = "#d0d7de"
		}
		fmt.Fprintf(&s, `<text x="%d" y="%.1f" text-anchor="end" fill="#1f2328">%s</text>`+"\n", labelWidth-8, center+4.5, escaped(b.Label))
		fmt.Fprintf(&s, `<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n", labelWidth, y, max(scale(b.Median), 1), barHeight, color)
		if b.Count > 1 {
			fmt.Fprintf(&s, `<path d="M%.1f %.1fH%.1f" stroke="#1f2328"/>`+"\n", labelWidth+scale(b.Lowest), center, labelWidth+scale(b.Highest))
		}
		fmt.Fprintf(&s, `<text x="%.1f" y="%.1f" fill="#1f2328">%s</text>`+"\n", labelWidth+scale(b.Highest)+8, center+4.5, escaped(figure(b.Median)))
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder never fails
	return b.String()
}
