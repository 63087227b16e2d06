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
//	received ─▶ validated ─▶ charging ─▶ charged ─▶ packed ─▶ shipped
//	                                        │         ▲
//	                                        └▶ waiting ┘
//
// evaluate takes one step of it. It is a pure function: from what was claimed it
// makes one command, and the queue commits all of that command or nothing. So
// it may be killed at any moment, or evaluated twice, and no step is lost or
// taken twice.
//
// The card is charged by an intent in the command, never by a call from here: the
// dispatcher hands it to the payment server once the command is committed, and a
// wakeup tells the order what became of it.

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
	charging  step = "charging"
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
	case charging:
		return paid(s, item, o, now)
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

// charge asks for the card to be charged. The payment server can say what became
// of a hand-off, but does not take repeats as one: hence the class. The order
// sleeps until it is told.
func charge(s shop, item *supervisor.WorkItem, o order, now progress) (supervisor.TransitionCommand, error) {
	intent, err := supervisor.NewIntent(item, "charge", chargeCard, chargeRequest{Order: o.ID, Cents: s.total(o), Card: o.Card})
	if err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	intent.Effect, intent.Reservation = supervisor.EffectFunds, &supervisor.ResourceReservationRef{ID: "card of " + item.ID}
	intent.RetryClass, intent.IdempotencyKey = supervisor.IdempotencyReconcileBeforeRetry, item.ID+"/charge"
	command, err := now.move(item, charging, nil, supervisor.Reschedule{At: endOfTime()})
	command.ActionIntents = []supervisor.ActionIntent{intent}
	return command, err
}

func (s shop) total(o order) int64 { return o.Cents + s.postage[o.Country] }

// declinedReason is how the provider names the answer 402.
const declinedReason = "http_402"

// paid goes on by what became of the charge.
func paid(s shop, item *supervisor.WorkItem, o order, now progress) (supervisor.TransitionCommand, error) {
	for n := range item.Wakeups {
		wakeup := &item.Wakeups[n]
		if wakeup.Kind != supervisor.WakeupKindAction {
			continue
		}
		result, err := supervisor.ParseActionResult(wakeup)
		if err != nil {
			return supervisor.TransitionCommand{}, supervisor.Permanent(err)
		}
		var command supervisor.TransitionCommand
		switch {
		case result.Outcome == supervisor.OutcomeSucceeded:
			now.PaidCents = s.total(o)
			command, err = now.move(item, charged, result.Output, supervisor.Continue{Delay: s.pace})
		case result.Outcome == supervisor.OutcomeUnknown:
			// Another result follows, when somebody has found it out.
			command, err = now.move(item, charging, result.Cause, supervisor.Reschedule{At: endOfTime()})
		case result.Reason == declinedReason:
			err = supervisor.Permanent(errors.New("the card was declined"))
		default:
			err = supervisor.Permanent(fmt.Errorf("the card was not charged: %s (%s) %s", result.Outcome, result.Cause, result.Reason))
		}
		command.ConsumedWakeups = []string{wakeup.ID}
		return command, err
	}
	return now.move(item, charging, nil, supervisor.Reschedule{At: endOfTime()})
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

// cancel converges: the event tells the accounts what to pay back, since an
// instance that is cancelled has no more effects, and the order ends. Complete
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
