package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/workflow-supervisor/supervisor"
)

// report writes for people: problems and progress beside the result, which is
// the summary.
type report struct {
	result   io.Writer
	terminal bool // beside is one

	mu     sync.Mutex
	beside io.Writer
	drawn  bool // a progress line stands on the terminal, without a line end
}

func newReport(result, beside io.Writer) *report {
	return &report{result: result, beside: beside, terminal: isTerminal(beside)}
}

// isTerminal reports whether lines may be written over. Other character devices,
// such as /dev/null, do no harm.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Write makes the report a place for log records, which then do not run into
// the progress line.
func (r *report) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	return r.beside.Write(text)
}

// problemf writes a line of its own.
func (r *report) problemf(format string, values ...any) {
	fmt.Fprintf(r, "orders: "+format+"\n", values...)
}

// clear wipes the progress line. The caller holds mu.
func (r *report) clear() {
	if r.drawn {
		fmt.Fprint(r.beside, "\r\x1b[K")
		r.drawn = false
	}
}

// On a terminal progress is one line that is written over; elsewhere, in a file
// or a pipe, it is a line now and then.
const (
	drawInterval  = 100 * time.Millisecond
	plainInterval = time.Second
	// lineWidth keeps the progress line on one line of most terminals.
	lineWidth = 79
)

// follow writes progress until ctx ends.
func (r *report) follow(ctx context.Context, book *book) {
	startedAt := time.Now()
	interval := plainInterval
	if r.terminal {
		interval = drawInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.clear()
			r.mu.Unlock()
			return
		case <-ticker.C:
			r.progress(book.snapshot(), time.Since(startedAt))
		}
	}
}

func (r *report) progress(c counts, elapsed time.Duration) {
	text := progressLine(&c, elapsed)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	if !r.terminal {
		fmt.Fprintln(r.beside, text)
		return
	}
	if len(text) > lineWidth {
		text = text[:lineWidth]
	}
	fmt.Fprint(r.beside, text)
	r.drawn = true
}

// progressLine puts what changes least in front. It is plain ASCII.
func progressLine(c *counts, elapsed time.Duration) string {
	var text strings.Builder
	ended := c.Lost
	for _, n := range c.Ended {
		ended += n
	}
	fmt.Fprintf(&text, "%5.1fs  read %d, ended %d", elapsed.Seconds(), c.Read, ended)
	separator := "; on the way:"
	for _, step := range []step{received, validated, charging, charged, waiting, packed} {
		if n := c.OnTheWay[step]; n > 0 {
			fmt.Fprintf(&text, "%s %d %s", separator, n, step)
			separator = ","
		}
	}
	return text.String()
}

// summary writes the result.
func (r *report) summary(c *counts, p *proof, elapsed time.Duration, fine bool) {
	table := tabwriter.NewWriter(r.result, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "outcome\torders\texpected\t\n")
	ended := 0
	for _, row := range []struct {
		name   string
		status supervisor.Status
	}{
		{"shipped", supervisor.StatusCompleted},
		{"cancelled", supervisor.StatusCancelled},
		{"failed", supervisor.StatusFailed},
	} {
		fmt.Fprintf(table, "%s\t%d\t%d\t\n", row.name, c.Ended[row.status], c.Expected[row.status])
		ended += c.Ended[row.status]
	}
	for _, row := range []struct {
		name   string
		orders int
	}{
		{"on the way", c.onTheWay()}, {"lost", c.Lost}, {"lines refused", c.Refused},
	} {
		if row.orders > 0 {
			fmt.Fprintf(table, "%s\t%d\t0\t\n", row.name, row.orders)
		}
	}
	_ = table.Flush() // the writer below never fails but with the terminal

	if len(c.Notes) > 0 {
		fmt.Fprintln(r.result)
		notes := tabwriter.NewWriter(r.result, 0, 0, 2, ' ', 0)
		for _, note := range c.Notes {
			fmt.Fprintln(notes, note)
		}
		_ = notes.Flush()
		if more := c.Ended[supervisor.StatusFailed] + c.Lost + c.Surprises - len(c.Notes); more > 0 {
			fmt.Fprintln(r.result, "...")
		}
	}

	if p != nil {
		if lines := p.lines(); len(lines) > 0 {
			fmt.Fprintf(r.result, "\n%s\n", strings.Join(lines, "\n"))
		}
	}
	fmt.Fprintf(r.result, "\n%d orders in %.1fs, %d retries", ended, elapsed.Seconds(), c.Retries)
	if c.Resumed > 0 {
		fmt.Fprintf(r.result, ", %d begun by an earlier run, %d of them ended by it", c.Resumed, c.Before)
	}
	if c.Repeated > 0 {
		fmt.Fprintf(r.result, ", %d lines of orders that had come", c.Repeated)
	}
	if fine {
		fmt.Fprintln(r.result, ": all as expected")
	} else {
		fmt.Fprintln(r.result, ": not all as expected")
	}
}

// plain quotes a text of somebody else's that would do harm to a table or a terminal.
func plain(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
