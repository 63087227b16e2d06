package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// book is what the program knows of its orders: those on the way one by one, the
// rest as counts, and what they had to pay.
type book struct {
	// slots holds a token for each order on the way; full, it holds back the
	// reading of the input.
	slots chan struct{}

	mu       sync.Mutex
	onTheWay map[string]*entry
	// unmet are adopted orders that ended before their line was read.
	unmet map[string]bool
	// due is what orders that have ended had to pay, in cents: about 100 bytes an
	// order, for the proof at the end.
	due    map[string]int64
	counts counts
}

// entry is one order on the way.
type entry struct {
	order   order
	line    int // of the input; 0 where it was adopted and its line not yet read
	step    step
	heardAt time.Time
	// answered: the world outside has reacted to the order's waiting.
	answered bool
	// missed: the queue did not know the order when it was last asked.
	missed bool
}

// counts are what a report is made of.
type counts struct {
	Read, Refused int // lines
	Repeated      int // lines whose order had come in this run
	Resumed       int // orders that an earlier run had started
	Before        int // of them those that it had also brought to their end
	Retries       int
	OnTheWay      map[step]int
	Ended         map[supervisor.Status]int
	Expected      map[supervisor.Status]int // of those that ended
	Lost          int
	Surprises     int
	// Notes tell of the first orders that failed or surprised.
	Notes []string
}

// onTheWay is the number of orders on the way.
func (c *counts) onTheWay() int {
	sum := 0
	for _, n := range c.OnTheWay {
		sum += n
	}
	return sum
}

// fine reports whether every line gave an order that ended as its data foretells.
func (c *counts) fine() bool {
	return c.Surprises+c.Lost+c.Refused+c.onTheWay() == 0
}

// maxNotes bounds the notes; more of them nobody reads.
const maxNotes = 10

func newBook(window int) *book {
	return &book{
		slots:    make(chan struct{}, window),
		onTheWay: make(map[string]*entry),
		unmet:    make(map[string]bool),
		due:      make(map[string]int64),
		counts: counts{
			Ended:    make(map[supervisor.Status]int),
			Expected: make(map[supervisor.Status]int),
		},
	}
}

// adopt opens entries for orders that an earlier run has left on the way, with
// slots beyond the window: they cannot wait for room. It comes before all else.
func (b *book) adopt(orders []order) {
	slots := make(chan struct{}, cap(b.slots)+len(orders))
	for _, o := range orders {
		slots <- struct{}{}
		b.onTheWay[o.ID] = &entry{order: o, step: received}
	}
	b.slots = slots
	b.counts.Resumed += len(orders)
}

// enter opens an entry, once there is room for it. known is the entry that the
// order has already, nil where it was entered. The error is ctx's.
func (b *book) enter(ctx context.Context, o order, line int) (known *entry, err error) {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.onTheWay[o.ID]; known != nil {
		<-b.slots
		copied := *known
		if known.line == 0 {
			known.line = line
		}
		return &copied, nil
	}
	b.onTheWay[o.ID] = &entry{order: o, line: line, step: received, heardAt: time.Now()}
	return nil, nil
}

// repeat notes a line whose order has come and ended in this run.
func (b *book) repeat(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unmet[id] {
		delete(b.unmet, id) // it is the order's first line all the same
		return
	}
	b.counts.Repeated++
}

// drop takes back an entry whose order was not started after all.
func (b *book) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onTheWay[id] != nil {
		b.remove(id)
	}
}

// remove gives the slot of an entry to the next. The caller holds mu.
func (b *book) remove(id string) {
	delete(b.onTheWay, id)
	<-b.slots
}

// awaitEnd blocks until no order is on the way, or ctx ends. Nothing may be
// entered meanwhile.
func (b *book) awaitEnd(ctx context.Context) error {
	for range cap(b.slots) {
		select {
		case b.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// committed is the book's observer of commits: it follows every order on the
// way without asking the queue.
func (b *book) committed(info supervisor.CommitInfo) {
	if info.Err != nil {
		return // whatever became of it, the desk will look it up
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.onTheWay[info.Item.ID]
	if known == nil {
		return
	}
	known.heardAt = time.Now()
	if next, own := strings.CutPrefix(info.Command.EventType, eventPrefix); own {
		known.step = step(next)
	}
	status := supervisor.StatusCompleted
	reason := ""
	switch then := info.Command.Disposition.(type) {
	case supervisor.Complete:
	case supervisor.Failed:
		if !then.RetryAt.IsZero() {
			b.counts.Retries++
			return
		}
		status, reason = supervisor.StatusFailed, then.Reason
	default:
		return
	}
	if info.Item.CancelRequested {
		status = supervisor.StatusCancelled
	}
	b.end(known, status, reason)
}

// found brings an entry up to what the queue says.
func (b *book) found(snapshot *supervisor.Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.onTheWay[snapshot.ID]
	if known == nil {
		return
	}
	if snapshot.Status != supervisor.StatusActive {
		b.end(known, snapshot.Status, snapshot.LastError)
		return
	}
	known.heardAt, known.missed = time.Now(), false
	var now progress
	if snapshot.StateVersion > 0 && json.Unmarshal(snapshot.State, &now) == nil {
		known.step = now.Step
	}
}

// end moves an order from the entries to the counts. The caller holds mu.
func (b *book) end(known *entry, status supervisor.Status, reason string) {
	b.remove(known.order.ID)
	if known.line == 0 {
		b.unmet[known.order.ID] = true
	}
	expected := expectedOf(&known.order)
	if expected != supervisor.StatusFailed {
		b.due[known.order.ID] = openShop(0).total(known.order)
	}
	b.counts.Ended[status]++
	b.counts.Expected[expected]++
	switch {
	case status != expected:
		b.counts.Surprises++
		b.notef("%s\tended as %s instead of %s\t%s", plain(known.order.ID), status, expected, plain(reason))
	case status == supervisor.StatusFailed:
		b.notef("%s\tfailed\t%s", plain(known.order.ID), plain(reason))
	}
}

// dues returns what orders that have ended had to pay. Nothing may end meanwhile.
func (b *book) dues() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.due
}

// settled is the book's observer of what is stored of intents: it counts the
// charges that are tried again.
func (b *book) settled(info supervisor.IntentInfo) {
	if info.Err == nil && info.Settlement != nil && info.Settlement.State == supervisor.ActionRetryable {
		b.count(func(c *counts) { c.Retries++ })
	}
}

// unanswered returns the orders that wait and that the world outside has not
// reacted to.
func (b *book) unanswered() []order {
	b.mu.Lock()
	defer b.mu.Unlock()
	var orders []order
	for _, known := range b.onTheWay {
		if known.step == waiting && !known.answered {
			orders = append(orders, known.order)
		}
	}
	return orders
}

// answered notes that the world outside has reacted.
func (b *book) answered(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.onTheWay[id]; known != nil {
		known.answered = true
	}
}

// quiet returns the ids of orders that nothing was heard of for a time, most of
// them at most. Which ones is left to chance, so that each gets its turn.
func (b *book) quiet(silence time.Duration, most int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for id, known := range b.onTheWay {
		if len(ids) == most {
			break
		}
		if time.Since(known.heardAt) > silence {
			ids = append(ids, id)
		}
	}
	return ids
}

// count changes the counts.
func (b *book) count(change func(*counts)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.counts)
}

// snapshot returns a copy of the counts as they stand.
func (b *book) snapshot() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	copied := b.counts
	copied.Ended, copied.Expected = maps.Clone(copied.Ended), maps.Clone(copied.Expected)
	copied.Notes = slices.Sorted(slices.Values(copied.Notes))
	copied.OnTheWay = make(map[step]int)
	for _, known := range b.onTheWay {
		copied.OnTheWay[known.step]++
	}
	return copied
}

// missing notes that the queue does not know an order. It is lost at the second
// time: it may have ended, and been forgotten, just before the book hears of it.
func (b *book) missing(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.onTheWay[id]
	switch {
	case known == nil:
	case !known.missed:
		known.heardAt, known.missed = time.Now(), true
	default:
		b.remove(id)
		b.counts.Lost++
		b.notef("%s\tlost\tthe queue does not know it any more", plain(id))
	}
}

// notef keeps one of the first notes. The caller holds mu.
func (b *book) notef(format string, values ...any) {
	if len(b.counts.Notes) < maxNotes {
		b.counts.Notes = append(b.counts.Notes, fmt.Sprintf(format, values...))
	}
}

// expectedOf is what must become of an order by its own data alone: the oracle
// that the workflow is held against.
func expectedOf(o *order) supervisor.Status {
	switch {
	case openShop(0).refuses(*o) != nil, o.Card == cardDeclined:
		return supervisor.StatusFailed
	case o.Stock == stockNever:
		return supervisor.StatusCancelled
	}
	return supervisor.StatusCompleted
}
