package dispatchtrial

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// calm ends all that the control plane holds back, save the hard limit.
func (r *trial) calm() {
	ctx := r.t.Context()
	for _, tenant := range tenants {
		scopes := []supervisor.Scope{{TenantID: tenant}, {TenantID: tenant, ResourceID: "res"}}
		for n := range r.Instances {
			scopes = append(scopes, supervisor.Scope{TenantID: tenant, InstanceID: fmt.Sprintf("i%03d", n)})
		}
		for _, scope := range scopes {
			if scope.InstanceID != "" {
				if _, err := r.main.Get(ctx, tenant, scope.InstanceID); err != nil {
					continue
				}
			}
			r.try("resume", func() error { return r.main.Resume(ctx, scope) })
		}
		for _, capability := range []string{"", ablePin.ID} {
			r.try("limit", func() error {
				return r.main.LimitIntents(ctx, supervisor.IntentLimit{TenantID: tenant, CapabilityID: capability})
			})
		}
	}
	r.try("limit", func() error { return r.main.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: plainPin.ID}) })
}

// settleAll waits until every intent is settled and every instance has ended.
func (r *trial) settleAll() {
	ctx := r.t.Context()
	var open []string
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		r.answer(ctx)
		open = open[:0]
		for record, err := range r.main.ListIntents(ctx, supervisor.IntentFilter{}) {
			if err != nil {
				open = append(open, err.Error())
				break
			}
			if !record.Intent.State.Terminal() {
				text, _ := json.Marshal(record)
				open = append(open, string(text))
			}
		}
		for snapshot, err := range r.main.List(ctx, supervisor.Filter{Status: supervisor.StatusActive}) {
			if err != nil {
				open = append(open, err.Error())
				break
			}
			open = append(open, fmt.Sprintf("instance %s of %s: %d wakeups, due %v, %s", snapshot.ID, snapshot.TenantID, snapshot.PendingWakeups, snapshot.NextDueAt, snapshot.State))
		}
		if len(open) == 0 {
			return
		}
	}
	r.t.Errorf("%d are stuck:", len(open))
	for _, stuck := range open[:min(len(open), 5)] {
		r.t.Error(stuck)
	}
}

// isStill checks that a dispatcher with nothing to do does nothing.
func (r *trial) isStill() {
	before := r.claims.Load()
	time.Sleep(time.Second)
	if claims := r.claims.Load() - before; claims > 20 {
		r.t.Errorf("%d claims in a second in which nothing was due", claims)
	}
}

// compare compares the store with the ledger and with what instances were told.
func (r *trial) compare() {
	ctx := r.t.Context()
	states := map[[2]string]state{}
	statuses := map[[2]string]supervisor.Status{}
	for snapshot, err := range r.main.List(ctx, supervisor.Filter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		var s state
		if err := json.Unmarshal(snapshot.State, &s); err != nil {
			r.t.Error(err)
		}
		states[[2]string{snapshot.TenantID, snapshot.ID}] = s
		statuses[[2]string{snapshot.TenantID, snapshot.ID}] = snapshot.Status
	}
	outcomes := map[supervisor.IntentOutcome]int{}
	r.bank.mu.Lock()
	defer r.bank.mu.Unlock()
	for record, err := range r.main.ListIntents(ctx, supervisor.IntentFilter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		outcomes[record.Outcome]++
		i := &record.Intent
		wrong := func(format string, args ...any) {
			text, _ := json.Marshal(record)
			r.t.Errorf("%s: %s", fmt.Sprintf(format, args...), text)
		}
		effects := r.bank.effects[i.IdempotencyKey]
		harmless := i.Effect == supervisor.EffectRead || i.Effect == supervisor.EffectPure
		switch {
		case !harmless && effects > 1:
			wrong("%d effects", effects)
		case record.Outcome == supervisor.OutcomeSucceeded && effects == 0:
			wrong("a success without an effect")
		case !harmless && i.State.Terminal() && record.Outcome != supervisor.OutcomeSucceeded && effects > 0:
			wrong("an effect of what is %s", record.Outcome)
		}
		if len(record.Evidence) > 0 && !harmless {
			wrong("a contradiction of a bank that never contradicts itself")
		}
		key := [2]string{i.TenantID, i.InstanceID}
		told := states[key].Told[i.ID]
		finishedEarly := states[key].Open[i.ID] > 0 && (statuses[key] == supervisor.StatusCompleted || statuses[key] == supervisor.StatusCancelled)
		if told != 1 && !finishedEarly || told > 1 {
			wrong("its instance, which is %s, was told %d times", statuses[key], told)
		}
		if told > 0 && states[key].Says[i.ID] != record.Outcome {
			wrong("its instance was told %q", states[key].Says[i.ID])
		}
	}
	for identity, calls := range r.bank.calls {
		if calls > 1 {
			r.t.Errorf("%s was handed off %d times", identity, calls)
		}
	}
	r.t.Logf("outcomes: %v", outcomes)
}
