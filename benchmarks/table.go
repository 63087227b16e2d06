package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// table is a Markdown table. The first column is text, all others are figures,
// unless all are text.
type table struct {
	header []string
	rows   [][]string
	text   bool
}

func newTable(header ...string) *table { return &table{header: header} }

// add appends a row; cells that are missing are empty.
func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// String returns the table, with a line break at its end.
func (t *table) String() string {
	var b strings.Builder
	line := func(cells []string) {
		for n := range t.header {
			cell := ""
			if n < len(cells) {
				cell = strings.ReplaceAll(strings.ReplaceAll(cells[n], "|", `\|`), "\n", " ")
			}
			fmt.Fprintf(&b, "| %s ", cell)
		}
		b.WriteString("|\n")
	}
	line(t.header)
	rule := make([]string, len(t.header))
	for n := range rule {
		rule[n] = "---:"
		if n == 0 || t.text {
			rule[n] = "---"
		}
	}
	line(rule)
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}

// none stands for what was not measured.
const none = "–"

// figure prints a number with three or so digits that mean something.
func figure(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return none
	case size >= 100:
		return grouped(v)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 0.1 || size == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
}

// grouped prints a whole number with a comma for each three digits.
func grouped(v float64) string {
	digits := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for n := len(digits) - 3; n > 0; n -= 3 {
		digits = digits[:n] + "," + digits[n:]
	}
	if v < 0 {
		return "-" + digits
	}
	return digits
}

// ranged prints median (lowest–highest).
func ranged(s summary) string {
	if s.Count < 2 {
		return middle(s)
	}
	return fmt.Sprintf("%s (%s–%s)", figure(s.Median), figure(s.Lowest), figure(s.Highest))
}

// middle prints the median alone.
func middle(s summary) string {
	if s.Count == 0 {
		return none
	}
	return figure(s.Median)
}
