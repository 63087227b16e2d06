package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// The workflow of an order:
//
//	received ─▶ validated ─▶ charged ─▶ packed ─▶ shipped
//	                            │         ▲
//	                            └▶ waiting ┘
//
// evaluate takes one step of it. It is a pure function: from what was claimed it
// makes one command, and the queue commits all of that command or nothing. So
// it may be killed at any moment, or evaluated twice, and no step is lost or
// taken twice.
//
// The shop is make-believe. A real one would charge the card by an
// [supervisor.ActionIntent] in the command, never by a call from here.

// specID and revision name the workflow; an instance is pinned to both for life.
const (
	specID   = "shop.order"
	revision = 1
)

// step is how far an order has come.
type step string

const (
	received  step = "received"
	validated step = "validated"
	charged   step = "charged"
	waiting   step = "waiting"
	packed    step = "packed"
	shipped   step = "shipped"
	cancelled step = "cancelled"
)

// eventPrefix and a step make the type of the event that tells of it.
const eventPrefix = "order."

// progress is the durable state of an order.
type progress struct {
	Step      step  `json:"step"`
	PaidCents int64 `json:"paid_cents,omitempty"`
}

// shop is what evaluations share: it is made anew for each pass, so that a real
// one would read its tariff once for many orders.
type shop struct {
	postage map[string]int64 // cents by country
	pace    time.Duration    // from one step to the next
}

func openShop(pace time.Duration) shop {
	return shop{
		postage: map[string]int64{"CH": 950, "DE": 490, "GB": 690, "NL": 490, "US": 1490},
		pace:    pace,
	}
}

// evaluate takes an order one step further.
func evaluate(_ context.Context, s shop, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	o, now, err := decode(item)
	if err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	if item.CancelRequested {
		return cancel(item, now)
	}
	switch now.Step {
	case received:
		return validate(s, item, o, now)
	case validated:
		return charge(s, item, o, now)
	case charged, waiting:
		return pack(s, item, o, now)
	case packed:
		return now.move(item, shipped, nil, supervisor.Complete{})
	}
	return supervisor.TransitionCommand{}, supervisor.Permanent(fmt.Errorf("no way on from step %q", now.Step))
}

// validate refuses what no retry can help: the order fails for good.
func validate(s shop, item *supervisor.WorkItem, o order, now progress) (supervisor.TransitionCommand, error) {
	if err := s.refuses(o); err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	return now.move(item, validated, nil, supervisor.Continue{Delay: s.pace})
}

func (s shop) refuses(o order) error {
	if o.Cents <= 0 {
		return fmt.Errorf("the goods cost %d cents", o.Cents)
	}
	if _, known := s.postage[o.Country]; !known {
		return fmt.Errorf("no postage to country %q", o.Country)
	}
	return nil
}

// busyAnswers is how often the bank is busy before it answers.
const busyAnswers = 2

// charge shows both kinds of failure. Attempt counts the failures in a row, so
// that even the busy bank needs no memory outside the item.
func charge(s shop, item *supervisor.WorkItem, o order, now progress) (supervisor.TransitionCommand, error) {
	switch {
	case o.Card == cardDeclined:
		return supervisor.TransitionCommand{}, supervisor.Permanent(errors.New("the card was declined"))
	case o.Card == cardBusy && item.Attempt < busyAnswers:
		return supervisor.TransitionCommand{}, supervisor.RetryAfter(errors.New("the bank is busy"), time.Second)
	}
	now.PaidCents = o.Cents + s.postage[o.Country]
	receipt := map[string]int64{"cents": now.PaidCents}
	return now.move(item, charged, receipt, supervisor.Continue{Delay: s.pace})
}

// wakeupRestocked is the delivery that orders of goods out of stock wait for.
const wakeupRestocked = "restocked"

// pack waits for the goods where they are not here. A delivery may come at any
// time, also before the order waits for it: it is a wakeup that stays with the
// item until a command consumes it.
func pack(s shop, item *supervisor.WorkItem, o order, now progress) (supervisor.TransitionCommand, error) {
	var consumed []string
	if o.Stock != stockHere {
		for _, wakeup := range item.Wakeups {
			if wakeup.Kind == wakeupRestocked {
				consumed = append(consumed, wakeup.ID)
			}
		}
		if len(consumed) == 0 {
			return now.move(item, waiting, nil, supervisor.Reschedule{At: endOfTime()})
		}
	}
	command, err := now.move(item, packed, nil, supervisor.Continue{Delay: s.pace})
	command.ConsumedWakeups = consumed
	return command, err
}

// endOfTime is the due time of an instance that nothing but a delivery or an
// operator shall wake.
func endOfTime() time.Time { return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }

// cancel converges: whatever was paid is paid back, and the order ends. Complete
// gives it the status cancelled, because cancellation was requested.
func cancel(item *supervisor.WorkItem, now progress) (supervisor.TransitionCommand, error) {
	refund := map[string]int64{"refund_cents": now.PaidCents}
	now.PaidCents = 0
	return now.move(item, cancelled, refund, supervisor.Complete{})
}

// decode reads an item. The state equals the config until the first commit.
func decode(item *supervisor.WorkItem) (order, progress, error) {
	var o order
	if err := json.Unmarshal(item.Config, &o); err != nil {
		return o, progress{}, fmt.Errorf("config: %w", err)
	}
	now := progress{Step: received}
	if item.StateVersion > 0 {
		if err := json.Unmarshal(item.State, &now); err != nil {
			return o, now, fmt.Errorf("state: %w", err)
		}
	}
	return o, now, nil
}

// move makes the command that brings an order to its next step.
func (p progress) move(item *supervisor.WorkItem, next step, payload any, then supervisor.Disposition) (supervisor.TransitionCommand, error) {
	p.Step = next
	return supervisor.NewCommand(item, eventPrefix+string(next), payload, p, then)
}
