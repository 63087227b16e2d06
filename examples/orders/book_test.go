package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func enter(t *testing.T, b *book, orders ...order) {
	t.Helper()
	for n, o := range orders {
		known, err := b.enter(t.Context(), o, n+1)
		require.NoError(t, err)
		require.Nil(t, known)
	}
}

// commit tells the book of a commit.
func commit(t *testing.T, b *book, o order, event step, then supervisor.Disposition, change func(*supervisor.CommitInfo)) {
	t.Helper()
	item := itemOf(t, o, progress{Step: received})
	item.ID = o.ID
	command, err := progress{}.move(item, event, nil, then)
	require.NoError(t, err)
	info := supervisor.CommitInfo{Item: item, Command: &command}
	if change != nil {
		change(&info)
	}
	b.committed(info)
}

func TestBookFollowsCommits(t *testing.T) {
	b := newBook(10)
	o := order{ID: "a", Country: "NL", Cents: 1}
	enter(t, b, o)
	require.Equal(t, map[step]int{received: 1}, b.snapshot().OnTheWay)
	commit(t, b, o, charged, supervisor.Continue{}, nil)
	require.Equal(t, map[step]int{charged: 1}, b.snapshot().OnTheWay)
	commit(t, b, o, packed, supervisor.Complete{}, func(info *supervisor.CommitInfo) { info.Err = supervisor.ErrCommitUnknown })
	require.Equal(t, map[step]int{charged: 1}, b.snapshot().OnTheWay, "what erred may not have happened")
	commit(t, b, o, "x", supervisor.Failed{Reason: "r", RetryAt: time.Now()}, nil)
	require.Equal(t, 1, b.snapshot().Retries)
	commit(t, b, order{ID: "stranger"}, shipped, supervisor.Complete{}, nil)
	require.Empty(t, b.snapshot().Ended)
	commit(t, b, o, shipped, supervisor.Complete{}, nil)
	c := b.snapshot()
	require.Equal(t, map[supervisor.Status]int{supervisor.StatusCompleted: 1}, c.Ended)
	require.True(t, c.fine())
}

func TestBookIsSurprised(t *testing.T) {
	good := order{ID: "a", Country: "NL", Cents: 1}
	for _, c := range []struct {
		name   string
		order  order
		then   supervisor.Disposition
		cancel bool
		note   string
	}{
		{"by a good order that fails", good, supervisor.Failed{Reason: "out of paper"}, false, "a\tended as failed instead of completed\tout of paper"},
		{"by a good order that is cancelled", good, supervisor.Complete{}, true, "a\tended as cancelled instead of completed\t"},
		{"by a declined card that pays", order{ID: "a", Country: "NL", Cents: 1, Card: cardDeclined}, supervisor.Complete{}, false, "a\tended as completed instead of failed\t"},
		{"by an id with harmful letters", order{ID: "a\x1b[2J"}, supervisor.Complete{}, false, "\"a\\x1b[2J\"\tended as completed instead of failed\t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook(1)
			enter(t, b, c.order)
			commit(t, b, c.order, shipped, c.then, func(info *supervisor.CommitInfo) { info.Item.CancelRequested = c.cancel })
			counts := b.snapshot()
			require.False(t, counts.fine())
			require.Equal(t, []string{c.note}, counts.Notes)
			require.NoError(t, b.awaitEnd(t.Context()), "nothing is on the way any more")
		})
	}
}

func TestBookLosesAnOrderAtTheSecondMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(1)
		o := order{ID: "a", Country: "NL", Cents: 1}
		enter(t, b, o)
		require.Empty(t, b.quiet(time.Second, 1))
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"a"}, b.quiet(time.Second, 1))
		require.Empty(t, b.quiet(time.Second, 0), "no more than are asked for")
		b.missing("a")
		require.Empty(t, b.quiet(time.Second, 1), "it is asked after again later")
		require.Zero(t, b.snapshot().Lost)

		b.found(&supervisor.Snapshot{Instance: supervisor.Instance{ID: "a"}, Status: supervisor.StatusActive,
			StateVersion: 1, State: json.RawMessage(`{"step":"waiting"}`)})
		require.Equal(t, map[step]int{waiting: 1}, b.snapshot().OnTheWay)
		require.Equal(t, []order{o}, b.unanswered())
		b.answered("a")
		require.Empty(t, b.unanswered())

		b.missing("a")
		b.missing("a")
		c := b.snapshot()
		require.Equal(t, 1, c.Lost)
		require.False(t, c.fine())
		require.Equal(t, []string{"a\tlost\tthe queue does not know it any more"}, c.Notes)
		require.NoError(t, b.awaitEnd(t.Context()))
	})
}

func TestBookAdoptsBeyondItsWindow(t *testing.T) {
	b := newBook(1)
	b.adopt([]order{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	enter(t, b, order{ID: "d"})
	full, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.enter(full, order{ID: "e"}, 2)
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, b.awaitEnd(full))
}

// Every line is read once, also one that only the library refuses.
func TestLinesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(10)
		d := &desk{queue: supervisor.NewMemoryWorkQueue(), book: b, report: newReport(io.Discard, io.Discard)}
		in := "~\n" + `{"id":"` + strings.Repeat("i", 513) + `"}` + "\n" + `{"id":"a","country":"NL","cents":1}` + "\n"
		require.NoError(t, d.takeIn(t.Context(), strings.NewReader(in)))
		c := b.snapshot()
		require.Equal(t, 3, c.Read)
		require.Equal(t, 2, c.Refused)
		require.Equal(t, 1, c.onTheWay())
	})
}

// No more is read than there is room for, and what starters hold in their hands.
func TestWindowHoldsBackReading(t *testing.T) {
	const window = 3
	var in strings.Builder
	for n := range 60 {
		fmt.Fprintf(&in, `{"id":"%d","country":"NL","cents":1,"stock":"late"}`+"\n", n)
	}
	status, _, stderr := runOn(t, strings.NewReader(in.String()), "-window", strconv.Itoa(window), "-")
	require.Equal(t, exitFine, status)
	lines := regexp.MustCompile(`read (\d+), ended (\d+);`).FindAllStringSubmatch(stderr, -1)
	require.Greater(t, len(lines), 10)
	for _, line := range lines {
		read, _ := strconv.Atoi(line[1])
		ended, _ := strconv.Atoi(line[2])
		require.LessOrEqual(t, read-ended, window+starters+1, line[0])
	}
}

func TestTerminalHasOneLineOfProgress(t *testing.T) {
	var out bytes.Buffer
	r := &report{beside: &out, terminal: true}
	c := counts{Read: 7, OnTheWay: map[step]int{charged: 2, waiting: 1}, Ended: map[supervisor.Status]int{supervisor.StatusFailed: 4}}
	r.progress(c, 1500*time.Millisecond)
	r.progress(c, 1600*time.Millisecond)
	r.problemf("line %d: bad", 8)
	r.problemf("line %d: bad", 9)
	const wipe = "\r\x1b[K"
	require.Equal(t, "  1.5s  read 7, ended 4; on the way: 2 charged, 1 waiting"+
		wipe+"  1.6s  read 7, ended 4; on the way: 2 charged, 1 waiting"+
		wipe+"orders: line 8: bad\norders: line 9: bad\n", out.String())

	out.Reset()
	c.Read = 1_000_000_000_000
	c.OnTheWay = map[step]int{received: 10_000, validated: 10_000, charged: 10_000, waiting: 10_000, packed: 10_000}
	r.progress(c, time.Hour)
	require.Len(t, out.String(), lineWidth)
}
