package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workflow-supervisor/supervisor"
)

func hostileCases() []testCase {
	return append(withKept([]testCase{
		{
			topic: "hostile", name: "commands",
			rule: "every queue applies ValidateContent at the commit: a command that no store can hold is ErrCommandRejected, and nothing is applied",
			run:  hostileCommands,
		},
	}), []testCase{
		{
			topic: "hostile", name: "failure-texts",
			rule: "the failure of an evaluation can always be stored, whatever its text",
			run:  hostileFailureTexts,
		},
		{
			topic: "hostile", name: "retry-times",
			rule: "any retry time that a command may hold is stored, and is not due before its time",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				for n, at := range []time.Time{
					item.ClaimedAt.Add(time.Duration(1<<63 - 1)),
					time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
				} {
					instance := x.due(fmt.Sprint("far", n))
					failing := x.claimOne()
					equal(x, "the claimed id", failing.ID, instance.ID)
					x.fail(&failing, "failed", at)
					x.idle("the retry time is centuries away")
				}
			},
		},
		{
			topic: "hostile", name: "instances", needs: instances,
			rule: "every queue applies Instance.Validate in Start: input that no store could hold is an error that names the field",
			run:  hostileInstances,
		},
		{
			topic: "hostile", name: "instants", needs: instances,
			rule: "an instant outside the years 1 to 9999 is an error that names the field",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				for _, year := range []int{-1, 0, 10_000, 300_000} {
					at := time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)
					started, err := x.Instances.Start(x.ctx, x.instance("b"), at)
					x.unsupported(err)
					if started || err == nil || !strings.Contains(err.Error(), "dueAt") {
						x.Errorf("Start due in the year %d: started is %v and error %s, want an error that names dueAt", year, started, describe(err))
					}
					err = x.Instances.Deliver(x.ctx, x.tenant, "a", note("w"), at)
					x.unsupported(err)
					if err == nil || !strings.Contains(err.Error(), "dueAt") {
						x.Errorf("Deliver due in the year %d: error is %s, want one that names dueAt", year, describe(err))
					}
				}
				equal(x, "PendingWakeups", x.get("a").PendingWakeups, 0)
				x.idle("nothing was started or delivered")
			},
		},
		{
			topic: "hostile", name: "lookups", needs: instances,
			rule: "ids that no store could hold are errors, never found and never a fault of the store",
			run: func(x *trial) {
				x.due("a")
				for _, id := range []string{"a\x00", "\xff", "", strings.Repeat("a", supervisor.MaxIDBytes+1)} {
					_, err := x.Instances.Get(x.ctx, x.tenant, id)
					x.lookupFails(err, "Get", id)
					_, err = x.Instances.Explain(x.ctx, x.tenant, id)
					x.lookupFails(err, "Explain", id)
					x.lookupFails(x.Instances.Cancel(x.ctx, x.tenant, id), "Cancel", id)
					x.lookupFails(x.Instances.Retry(x.ctx, x.tenant, id), "Retry", id)
					x.lookupFails(x.Instances.Deliver(x.ctx, id, "a", note("w"), time.Time{}), "Deliver", id)
				}
				item := x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, false)
			},
		},
	}...)
}

// lookupFails reports a lookup that found something, or took bad input for a
// passing fault that is worth repeating.
func (x *trial) lookupFails(err error, method, id string) {
	x.Helper()
	x.wantErr(err, "%s of %q", method, clip(id))
	if errors.Is(err, supervisor.ErrUnavailable) {
		x.Errorf("%s of %q is ErrUnavailable, as if repeating helped: %v", method, clip(id), err)
	}
}

func hostileCommands(x *trial) {
	x.due("a", note("w1"), note("w2"))
	item := x.claimOne()
	before := x.look(&item)
	type command = supervisor.TransitionCommand
	intent := func(change func(*supervisor.ActionIntent)) func(*command) {
		return func(c *command) {
			c.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
			change(&c.ActionIntents[0])
		}
	}
	for _, hostile := range []struct {
		what  string
		spoil func(*command)
	}{
		{"a blank delivery key", func(c *command) { c.DeliveryKey = " \u3000" }},
		{"a delivery key that is too long", func(c *command) { c.DeliveryKey = strings.Repeat("k", supervisor.MaxIDBytes+1) }},
		{"a delivery key with NUL", func(c *command) { c.DeliveryKey = "k\x00" }},
		{"a blank delivery digest", func(c *command) { c.DeliveryDigest = "" }},
		{"a blank event type", func(c *command) { c.EventType = "\t" }},
		{"an event type that is not UTF-8", func(c *command) { c.EventType = "\xc3" }},
		{"a blank event digest", func(c *command) { c.EventDigest = "" }},
		{"no next state", func(c *command) { c.NextState = nil }},
		{"a next state that is not JSON", func(c *command) { c.NextState = json.RawMessage(`{"a":}`) }},
		{"a next state of two values", func(c *command) { c.NextState = json.RawMessage(`1 2`) }},
		{"a next state with an escaped NUL", func(c *command) { c.NextState = json.RawMessage(`{"a":"\u0000"}`) }},
		{"a next state with a lone surrogate", func(c *command) { c.NextState = json.RawMessage(`"\udc00"`) }},
		{"a next state that is not UTF-8", func(c *command) { c.NextState = json.RawMessage("\"\xff\"") }},
		{"a payload that is not JSON", func(c *command) { c.EventPayload = json.RawMessage(`nul`) }},
		{"a payload with an escaped NUL", func(c *command) { c.EventPayload = json.RawMessage(`["\u0000"]`) }},
		{"no disposition", func(c *command) { c.Disposition = nil }},
		{"a pointer to a disposition", func(c *command) { c.Disposition = &supervisor.Complete{} }},
		{"a failure without a reason", func(c *command) { c.Disposition = supervisor.Failed{Reason: "\n"} }},
		{"a reason with NUL", func(c *command) { c.Disposition = supervisor.Failed{Reason: "bad\x00byte"} }},
		{"a reason that is not UTF-8", func(c *command) { c.Disposition = supervisor.Failed{Reason: "bad \xed\xa0\x80"} }},
		{"an instant after the year 9999", func(c *command) {
			c.Disposition = supervisor.Reschedule{At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}
		}},
		{"an instant before the year 1", func(c *command) {
			c.Disposition = supervisor.Failed{Reason: "r", RetryAt: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}
		}},
		{"a consumed wakeup that was not claimed", func(c *command) { c.ConsumedWakeups = []string{"w1", "w3"} }},
		{"a wakeup consumed twice", func(c *command) { c.ConsumedWakeups = []string{"w1", "w2", "w1"} }},
		{"a failure that consumes", func(c *command) {
			c.ConsumedWakeups, c.Disposition = []string{"w1"}, supervisor.Failed{Reason: "r"}
		}},
		{"an intent of another tenant", intent(func(i *supervisor.ActionIntent) { i.TenantID = "other" })},
		{"an intent of another instance", intent(func(i *supervisor.ActionIntent) { i.InstanceID = "b" })},
		{"an intent of another run", intent(func(i *supervisor.ActionIntent) { i.RunID = "00000000-0000-4000-8000-000000000000" })},
		{"an intent of another lease", intent(func(i *supervisor.ActionIntent) { i.LeaseEpoch++ })},
		{"an intent under other epochs", intent(func(i *supervisor.ActionIntent) { i.ControlEpochs.Tenant++ })},
		{"an intent whose capability is not pinned", intent(func(i *supervisor.ActionIntent) { i.Capability.ContentDigest = "other" })},
		{"an intent that is not prepared", intent(func(i *supervisor.ActionIntent) { i.State = supervisor.ActionAuthorized })},
		{"funds without a reservation", intent(func(i *supervisor.ActionIntent) { i.Effect = supervisor.EffectFunds })},
		{"an intent id that repeats", func(c *command) {
			c.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i"), x.intent(&item, "i")}
		}},
	} {
		c := x.command(&item, `"hostile"`, supervisor.Complete{})
		hostile.spoil(&c)
		x.want(x.tryCommit(&item, &c), supervisor.ErrCommandRejected, "commit with %s", hostile.what)
	}
	x.same(&item, before, "rejected commands")
	x.step(&item, `1`, supervisor.Continue{})
	again := x.claimOne()
	x.equalJSON("State", again.State, `1`)
	equal(x, "StateVersion", again.StateVersion, 1)
	equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w1", "w2"})
}

func hostileFailureTexts(x *trial) {
	for n, text := range []string{
		"bad\x00byte", "bad \xff\xfe", "\xed\xa0\x80", "", " ", strings.Repeat("\u00e9", 5<<19),
		strings.Repeat("\xff", 1<<20), `</script>"'; DROP TABLE x; --`, "\u2028\u202e\u0001",
	} {
		id := fmt.Sprint("i", n)
		x.due(id)
		item := x.claimOne()
		equal(x, "the claimed id", item.ID, id)
		x.fail(&item, text, x.now().Add(far))
		x.idle("it backs off")
		if x.Instances == nil {
			continue
		}
		stored := x.get(id).LastError
		if !utf8.ValidString(stored) || strings.ContainsRune(stored, 0) || stored == "" || len(stored) > supervisor.MaxReasonBytes {
			x.Errorf("the stored error has %d bytes and begins with %q, want at most %d of valid text", len(stored), clip(stored), supervisor.MaxReasonBytes)
		}
		if kept, _, _ := strings.Cut(text, "\x00"); n < 2 && !strings.HasPrefix(stored, kept[:3]) {
			x.Errorf("the stored error %q does not begin like %q", clip(stored), text)
		}
	}
}

func hostileInstances(x *trial) {
	for _, hostile := range []struct {
		field string
		spoil func(*supervisor.Instance)
	}{
		{"ID", func(i *supervisor.Instance) { i.ID = "" }},
		{"ID", func(i *supervisor.Instance) { i.ID = strings.Repeat("i", supervisor.MaxIDBytes+1) }},
		{"ID", func(i *supervisor.Instance) { i.ID = "a\x00b" }},
		{"TenantID", func(i *supervisor.Instance) { i.TenantID = "\u2003" }},
		{"SpecID", func(i *supervisor.Instance) { i.SpecID = "" }},
		{"SpecID", func(i *supervisor.Instance) { i.SpecID = "\xff" }},
		{"SubjectID", func(i *supervisor.Instance) { i.SubjectID = "a\x00b" }},
		{"DefinitionID", func(i *supervisor.Instance) { i.DefinitionID = " " }},
		{"RunID", func(i *supervisor.Instance) { i.RunID = "not-a-uuid" }},
		{"RunID", func(i *supervisor.Instance) { i.RunID = "{" + i.RunID + "}" }},
		{"WorkflowRevision", func(i *supervisor.Instance) { i.WorkflowRevision = 0 }},
		{"WorkflowRevisionDigest", func(i *supervisor.Instance) { i.WorkflowRevisionDigest = "" }},
		{"ExecutionProfileRevision", func(i *supervisor.Instance) { i.ExecutionProfileRevision = 0 }},
		{"KernelABIVersion", func(i *supervisor.Instance) { i.KernelABIVersion = "" }},
		{"CapabilityPins", func(i *supervisor.Instance) { i.CapabilityPins = []supervisor.CapabilityPin{{ID: "c"}} }},
		{"Config", func(i *supervisor.Instance) { i.Config = json.RawMessage(`{`) }},
		{"Config", func(i *supervisor.Instance) { i.Config = json.RawMessage(`"\ud800\u0041"`) }},
		{"ExpiresAt", func(i *supervisor.Instance) {
			i.Lifecycle = supervisor.LifecyclePolicy{StartsAt: x.now().Add(far), ExpiresAt: x.now()}
		}},
		{"ProgressTimeout", func(i *supervisor.Instance) { i.Lifecycle.ProgressTimeout = -1 }},
		{"Completion", func(i *supervisor.Instance) { i.Lifecycle.Completion.Kind = "sometime" }},
		{"Completion", func(i *supervisor.Instance) { i.Lifecycle.Completion.Kind = supervisor.CompleteAfterSuccessfulRuns }},
		{"OnExpiry", func(i *supervisor.Instance) { i.Lifecycle.OnExpiry = "explode" }},
	} {
		instance := x.instance("a")
		hostile.spoil(&instance)
		started, err := x.Instances.Start(x.ctx, instance, time.Time{})
		x.unsupported(err)
		if started || err == nil || !strings.Contains(err.Error(), hostile.field) {
			x.Errorf("Start with an invalid %s: started is %v and error %s, want an error that names the field", hostile.field, started, describe(err))
		}
	}
	x.idle("nothing was started")
	x.due("a")
	x.claimOne()
}
