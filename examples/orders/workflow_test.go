package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// itemOf is an order as it is claimed when it has come to a step.
func itemOf(t *testing.T, o order, now progress) *supervisor.WorkItem {
	t.Helper()
	instance, err := supervisor.NewInstance(specID, revision, o)
	require.NoError(t, err)
	instance.ID = o.ID
	instance.CapabilityPins = []supervisor.CapabilityPin{chargeCard}
	item := &supervisor.WorkItem{Instance: instance, LeaseVersion: 1, State: instance.Config}
	if now.Step != received {
		item.StateVersion = 1
		item.State, err = json.Marshal(now)
		require.NoError(t, err)
	}
	return item
}

func TestEvaluate(t *testing.T) {
	const pace = time.Minute
	good := order{ID: "a", Country: "NL", Cents: 1000}
	with := func(change func(*order)) order {
		o := good
		change(&o)
		return o
	}
	declined := with(func(o *order) { o.Card = cardDeclined })
	late := with(func(o *order) { o.Stock = stockLate })
	never := with(func(o *order) { o.Stock = stockNever })
	goods := supervisor.Wakeup{ID: "goods", Kind: wakeupRestocked}
	paid := func(s step) progress { return progress{Step: s, PaidCents: 1490} }
	told := func(payload string) func(*supervisor.WorkItem) {
		return func(i *supervisor.WorkItem) {
			i.Wakeups = []supervisor.Wakeup{goods, {ID: "told", Kind: supervisor.WakeupKindAction, Payload: json.RawMessage(payload)}}
		}
	}

	for _, c := range []struct {
		name     string
		order    order
		now      progress
		change   func(*supervisor.WorkItem)
		next     progress
		payload  string
		then     supervisor.Disposition
		consumed []string
		fails    string
		input    string // of the intent
	}{
		{name: "a good order is valid", order: good, now: progress{Step: received},
			next: progress{Step: validated}, then: supervisor.Continue{Delay: pace}},
		{name: "a country without postage", order: with(func(o *order) { o.Country = "XX" }), now: progress{Step: received},
			fails: `no postage to country "XX"`},
		{name: "no price", order: with(func(o *order) { o.Cents = 0 }), now: progress{Step: received},
			fails: "the goods cost 0 cents"},
		{name: "a negative price", order: with(func(o *order) { o.Cents = -1 }), now: progress{Step: received},
			fails: "the goods cost -1 cents"},
		{name: "a valid order asks for its charge, with postage", order: good, now: progress{Step: validated},
			next: progress{Step: charging}, then: supervisor.Reschedule{At: endOfTime()},
			input: `{"order":"a","cents":1490}`},
		{name: "an order that is woken by something else asks only once", order: good, now: progress{Step: charging},
			change: func(i *supervisor.WorkItem) { i.Wakeups = []supervisor.Wakeup{goods} },
			next:   progress{Step: charging}, then: supervisor.Reschedule{At: endOfTime()}},
		{name: "a charge", order: good, now: progress{Step: charging},
			change: told(`{"intent":"charge","outcome":"succeeded","output":{"cents":1490}}`),
			next:   paid(charged), payload: `{"cents":1490}`, then: supervisor.Continue{Delay: pace}, consumed: []string{"told"}},
		{name: "a declined card", order: declined, now: progress{Step: charging},
			change: told(`{"intent":"charge","outcome":"failed","cause":"reported","reason":"http_402"}`),
			fails:  "the card was declined"},
		{name: "a charge that failed otherwise", order: good, now: progress{Step: charging},
			change: told(`{"intent":"charge","outcome":"failed","cause":"attempts"}`),
			fails:  "the card was not charged: failed (attempts) "},
		{name: "a charge of which nobody knows", order: good, now: progress{Step: charging},
			change: told(`{"intent":"charge","outcome":"unknown","cause":"ambiguous"}`),
			next:   progress{Step: charging}, payload: `"ambiguous"`, then: supervisor.Reschedule{At: endOfTime()}, consumed: []string{"told"}},
		{name: "a result of another program", order: good, now: progress{Step: charging},
			change: told(`7`), fails: `supervisor: wakeup "told": json: cannot unmarshal number into Go value of type supervisor.ActionResult`},
		{name: "goods that are here are packed", order: good, now: paid(charged),
			next: paid(packed), then: supervisor.Continue{Delay: pace}},
		{name: "goods that are late are waited for", order: late, now: paid(charged),
			next: paid(waiting), then: supervisor.Reschedule{At: endOfTime()}},
		{name: "a delivery of something else", order: late, now: paid(waiting),
			change: func(i *supervisor.WorkItem) { i.Wakeups = []supervisor.Wakeup{{ID: "x", Kind: "flowers"}} },
			next:   paid(waiting), then: supervisor.Reschedule{At: endOfTime()}},
		{name: "goods that arrive are packed", order: late, now: paid(waiting),
			change: func(i *supervisor.WorkItem) { i.Wakeups = []supervisor.Wakeup{{ID: "x", Kind: "flowers"}, goods} },
			next:   paid(packed), then: supervisor.Continue{Delay: pace}, consumed: []string{"goods"}},
		{name: "goods that arrived before they were waited for", order: late, now: paid(charged),
			change: func(i *supervisor.WorkItem) { i.Wakeups = []supervisor.Wakeup{goods} },
			next:   paid(packed), then: supervisor.Continue{Delay: pace}, consumed: []string{"goods"}},
		{name: "a packed order is shipped", order: good, now: paid(packed),
			next: paid(shipped), then: supervisor.Complete{}},
		{name: "a paid order that is cancelled is paid back", order: never, now: paid(waiting),
			change: func(i *supervisor.WorkItem) { i.CancelRequested = true },
			next:   progress{Step: cancelled}, payload: `{"refund_cents":1490}`, then: supervisor.Complete{}},
		{name: "a new order that is cancelled", order: good, now: progress{Step: received},
			change: func(i *supervisor.WorkItem) { i.CancelRequested = true },
			next:   progress{Step: cancelled}, payload: `{"refund_cents":0}`, then: supervisor.Complete{}},
		{name: "a step of another program", order: good, now: progress{Step: "gift-wrapped"},
			fails: `no way on from step "gift-wrapped"`},
		{name: "a config of another program", order: good, now: progress{Step: received},
			change: func(i *supervisor.WorkItem) { i.Config = json.RawMessage(`7`) },
			fails:  "config: json: cannot unmarshal number into Go value of type main.order"},
		{name: "a state of another program", order: good, now: progress{Step: packed},
			change: func(i *supervisor.WorkItem) { i.State = json.RawMessage(`7`) },
			fails:  "state: json: cannot unmarshal number into Go value of type main.progress"},
	} {
		t.Run(c.name, func(t *testing.T) {
			item := itemOf(t, c.order, c.now)
			if c.change != nil {
				c.change(item)
			}
			before := item.Clone()
			command, err := evaluate(t.Context(), openShop(pace), item)
			again, _ := evaluate(t.Context(), openShop(pace), item)
			require.Equal(t, again, command, "the same item gives the same command")
			require.Equal(t, &before, item, "the item stays as it was")
			if c.fails != "" {
				require.EqualError(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.NoError(t, command.ValidateFor(item))
			require.Equal(t, eventPrefix+string(c.next.Step), command.EventType)
			if c.payload == "" {
				c.payload = "null"
			}
			require.JSONEq(t, c.payload, string(command.EventPayload))
			if c.input != "" {
				require.Len(t, command.ActionIntents, 1)
				require.JSONEq(t, c.input, string(command.ActionIntents[0].Input))
			} else {
				require.Empty(t, command.ActionIntents)
			}
			var next progress
			require.NoError(t, json.Unmarshal(command.NextState, &next))
			require.Equal(t, c.next, next)
			require.Equal(t, c.then, command.Disposition)
			require.Equal(t, c.consumed, command.ConsumedWakeups)
		})
	}
}
