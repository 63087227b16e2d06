package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/workflow-supervisor/supervisor"
)

// tool is what commands work with. The queue might be any: all that the library
// ships offer the same client side.
type tool struct {
	queue interface {
		supervisor.Instances
		supervisor.IntentOperator
	}
	call *call
	out  io.Writer
}

// command is one command and the number of ids that it takes.
type command struct {
	run         func(ctx context.Context, t *tool, ids []string) error
	least, most int
	takes       string
	check       func(*call) (problem string) // nil: nothing else can be wrong
}

func commands() map[string]command {
	return map[string]command{
		"list":    {run: list, takes: "no ids"},
		"history": {run: history, least: 1, most: 1, takes: "one id"},
		"explain": {run: explain, least: 1, most: math.MaxInt, takes: "at least one id"},
		"cancel":  {run: cancel, least: 1, most: math.MaxInt, takes: "at least one id"},
		"retry":   {run: retry, least: 1, most: math.MaxInt, takes: "at least one id"},
		"intents": {run: intents, takes: "no ids", check: checkIntents},
		"confirm": {run: confirm, least: 2, most: math.MaxInt, takes: "the id of an instance and at least one of its intents", check: checkConfirm},
		"reject":  {run: reject, least: 2, most: math.MaxInt, takes: "the id of an instance and at least one of its intents", check: checkReject},
		"resolve": {run: resolve, least: 3, most: 3, takes: "an answer, the id of an instance and that of an intent", check: checkResolve},
	}
}

func list(ctx context.Context, t *tool, _ []string) error {
	rows := t.table("TENANT", "ID", "SPEC", "STATUS", "VERSION", "DUE", "ATTEMPT", "LAST ERROR")
	for s, err := range t.queue.List(ctx, t.call.filter) {
		if err != nil {
			return errors.Join(rows.close(), err)
		}
		err = rows.add(s, s.TenantID, s.ID, s.SpecID, string(s.Status), fmt.Sprint(s.StateVersion),
			instant(s.NextDueAt), fmt.Sprint(s.Attempt), s.LastError)
		if err != nil {
			return err
		}
	}
	return rows.close()
}

func history(ctx context.Context, t *tool, ids []string) error {
	// An instance without events and one that does not exist are not the same.
	if _, err := t.queue.Get(ctx, t.call.tenant, ids[0]); err != nil {
		return err
	}
	rows := t.table("AT", "VERSION", "EVENT", "WORKER", "PAYLOAD")
	for e, err := range t.queue.History(ctx, t.call.tenant, ids[0]) {
		if err != nil {
			return errors.Join(rows.close(), err)
		}
		if err := rows.add(e, instant(e.At), fmt.Sprint(e.StateVersion), e.Type, e.WorkerID, string(e.Payload)); err != nil {
			return err
		}
	}
	return rows.close()
}

func explain(ctx context.Context, t *tool, ids []string) error {
	rows := t.table("ID", "REASON", "UNTIL", "BY", "DETAIL")
	err := t.each(ids, func(id string) error {
		e, err := t.queue.Explain(ctx, t.call.tenant, id)
		if err != nil {
			return err
		}
		line := struct {
			ID string `json:"id"`
			supervisor.Explanation
		}{id, e}
		return rows.add(line, id, string(e.Reason), instant(e.Until), e.By, e.Detail)
	})
	return errors.Join(rows.close(), err)
}

func cancel(ctx context.Context, t *tool, ids []string) error {
	return t.each(ids, func(id string) error {
		if err := t.queue.Cancel(ctx, t.call.tenant, id); err != nil {
			return err
		}
		return t.report(ctx, id)
	})
}

func retry(ctx context.Context, t *tool, ids []string) error {
	return t.each(ids, func(id string) error {
		if err := t.queue.Retry(ctx, t.call.tenant, id); err != nil {
			return err
		}
		return t.report(ctx, id)
	})
}

// report tells where an instance stands after a command: the queue may have
// known better than its operator.
func (t *tool) report(ctx context.Context, id string) error {
	explanation, err := t.queue.Explain(ctx, t.call.tenant, id)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.out, "%s: %s\n", id, explanation.Reason)
	return err
}

// each does something for all ids, whatever becomes of one, and returns all
// errors.
func (t *tool) each(ids []string, do func(id string) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(id); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// table writes rows for people, or their values as JSON lines.
type table struct {
	json   *json.Encoder // nil: for people
	people *tabwriter.Writer
	rows   int
}

func (t *tool) table(columns ...string) *table {
	if t.call.json {
		return &table{json: json.NewEncoder(t.out)}
	}
	rows := &table{people: tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(rows.people, strings.Join(columns, "\t"))
	return rows
}

// alignedRows is how many rows share the widths of their columns, and are held
// in memory for it.
const alignedRows = 1000

func (t *table) add(value any, cells ...string) error {
	if t.json != nil {
		return t.json.Encode(value)
	}
	for n, cell := range cells {
		cells[n] = plain(cell)
	}
	if _, err := fmt.Fprintln(t.people, strings.Join(cells, "\t")); err != nil {
		return err
	}
	if t.rows++; t.rows%alignedRows == 0 {
		return t.people.Flush()
	}
	return nil
}

func (t *table) close() error {
	if t.json != nil {
		return nil
	}
	return t.people.Flush()
}

// longestCell bounds what a table shows of a text, in bytes; JSON has all of it.
const longestCell = 200

// plain makes a text fit for a cell and harmless to a terminal.
func plain(text string) string {
	cut := len(text) > longestCell
	if cut {
		text = text[:longestCell]
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' ' // line ends, tabs and escapes; half a character at the cut
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case cut:
		return text + "..."
	case text == "":
		return "-"
	}
	return text
}

// instant is empty for none.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
