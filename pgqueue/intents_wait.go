package pgqueue

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// intentMark begins the names in notices that are about intents; no spec has such
// a name.
const intentMark = "\x00"

// capabilityName is what waiters and notices call a capability. Where two have the
// same name, their waiters wake for nothing now and then.
func capabilityName(pin *supervisor.CapabilityPin) string {
	h := fnv.New64a()
	for _, part := range [...]string{pin.ID, pin.ContractVersion, pin.ContentDigest} {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

func capabilityNames(pins []supervisor.CapabilityPin) []string {
	names := make([]string, len(pins))
	for n := range pins {
		names[n] = capabilityName(&pins[n])
	}
	return names
}

// announceIntent tells all waiters that an intent falls due.
func (q *Queue) announceIntent(pin *supervisor.CapabilityPin, due, now time.Time) {
	if !due.After(now) {
		due = time.Time{}
	}
	name := capabilityName(pin)
	q.intentWaits.announce(name, due)
	q.notify(intentMark+name, due)
}

// announceAnyIntent tells all waiters that intents may be due.
func (q *Queue) announceAnyIntent() {
	q.intentWaits.announce("", time.Time{})
	q.notify(intentMark, time.Time{})
}

// WaitIntents implements [supervisor.IntentWaiter], as WaitDue does.
func (q *Queue) WaitIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	var leftAt time.Time
	return q.wait(ctx, &q.intentWaits, capabilityNames(capabilities), func(w *waiter, since time.Time) (time.Duration, error) {
		return q.nextIntent(ctx, capabilities, since, w, &leftAt)
	})
}

// nextIntent asks for the next due time behind an instant and returns how long to
// sleep before looking again; nothing where it has come. leftAt is when the last
// claim was first seen to have left something.
func (q *Queue) nextIntent(ctx context.Context, capabilities []supervisor.CapabilityPin, since time.Time, w *waiter, leftAt *time.Time) (time.Duration, error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.pins(capabilities)
	a.instant(since)
	var next, now time.Time
	leftOver := false
	err := q.store.do(ctx, q.own, q.store.statements.nextIntent, a, func(c *cells) error {
		next, leftOver, now = c.instant(), c.bool(), c.instant()
		return nil
	})
	if err != nil {
		return 0, err
	}
	if leftOver {
		// Somebody had it locked a moment ago, or a slot is free that nobody takes.
		if leftAt.IsZero() {
			*leftAt = now
		}
		next = earlier(next, leftAt.Add(q.options.PollInterval))
	}
	return q.sleep(&q.intentWaits, w, next, now), nil
}
