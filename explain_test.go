package supervisor

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	now := epoch
	century := now.AddDate(100, 0, 0)
	tenant := &Scope{TenantID: "t1"}
	// Each case holds for all reasons after it, so that the order is proved, too.
	tests := []struct {
		name   string
		change func(*ExplainFacts)
		want   Explanation
	}{
		{"due", func(*ExplainFacts) {}, Explanation{Reason: ReasonDue}},
		{"due since long ago", func(f *ExplainFacts) { f.Snapshot.NextDueAt = now.AddDate(-1, 0, 0) }, Explanation{Reason: ReasonDue}},
		{"due after a release", func(f *ExplainFacts) { f.ReleaseReason = "shutdown" }, Explanation{Reason: ReasonDue, Detail: "shutdown"}},
		{"due again after a failure", func(f *ExplainFacts) { f.Snapshot.Attempt, f.Snapshot.LastError = 2, "broke" }, Explanation{Reason: ReasonDue}},
		{"in a moment", func(f *ExplainFacts) { f.Snapshot.NextDueAt = now.Add(1) }, Explanation{Reason: ReasonNotDue, Until: now.Add(1)}},
		{"within a century", func(f *ExplainFacts) { f.Snapshot.NextDueAt = century.Add(-1) }, Explanation{Reason: ReasonNotDue, Until: century.Add(-1)}},
		{"in a century", func(f *ExplainFacts) { f.Snapshot.NextDueAt = century }, Explanation{Reason: ReasonWaiting, Detail: "waits for a delivery"}},
		{"at the end of the calendar", func(f *ExplainFacts) { f.Snapshot.NextDueAt = endOfCalendar() }, Explanation{Reason: ReasonWaiting, Detail: "waits for a delivery"}},
		{"backs off", func(f *ExplainFacts) {
			f.Snapshot.Attempt, f.Snapshot.LastError, f.Snapshot.NextDueAt = 1, "broke", now.Add(time.Minute)
		}, Explanation{Reason: ReasonBackingOff, Detail: "broke", Until: now.Add(time.Minute)}},
		{"backs off for a century", func(f *ExplainFacts) {
			f.Snapshot.Attempt, f.Snapshot.LastError, f.Snapshot.NextDueAt = 1, "broke", century
		}, Explanation{Reason: ReasonBackingOff, Detail: "broke", Until: century}},
		{"no driver", func(f *ExplainFacts) {
			f.Snapshot.Attempt, f.Snapshot.LastError, f.Snapshot.NextDueAt, f.FailureClass = 1, "none", now.Add(time.Minute), FailureNoDriver
		}, Explanation{Reason: ReasonNoDriver, Detail: "none", Until: now.Add(time.Minute)}},
		{"no driver, due", func(f *ExplainFacts) {
			f.Snapshot.Attempt, f.Snapshot.LastError, f.FailureClass = 1, "none", FailureNoDriver
		}, Explanation{Reason: ReasonNoDriver, Detail: "none"}},
		{"driver found since", func(f *ExplainFacts) { f.FailureClass = FailureNoDriver }, Explanation{Reason: ReasonDue}},
		{"revision unpublished", func(f *ExplainFacts) {
			f.Snapshot.Attempt, f.Snapshot.LastError, f.FailureClass = 1, "none", FailureRevisionUnpublished
		}, Explanation{Reason: ReasonRevisionUnpublished, Detail: "none"}},
		{"cancelling", func(f *ExplainFacts) {
			f.Snapshot.CancelRequested, f.Snapshot.Attempt, f.FailureClass = true, 1, FailureNoDriver
		}, Explanation{Reason: ReasonCancelling}},
		{"cancelling, not due", func(f *ExplainFacts) {
			f.Snapshot.CancelRequested, f.Snapshot.LastError, f.Snapshot.NextDueAt = true, "broke", now.Add(1)
		}, Explanation{Reason: ReasonCancelling, Detail: "broke", Until: now.Add(1)}},
		{"paused", func(f *ExplainFacts) { f.Snapshot.PausedBy, f.Snapshot.CancelRequested = tenant, true }, Explanation{Reason: ReasonPaused, By: `tenant "t1"`}},
		{"paused itself", func(f *ExplainFacts) {
			f.Snapshot.PausedBy, f.Snapshot.NextDueAt = &Scope{TenantID: "t1", InstanceID: "i"}, century
		}, Explanation{Reason: ReasonPaused, By: `tenant "t1" instance "i"`}},
		{"running", func(f *ExplainFacts) {
			f.Snapshot.LeaseEndsAt, f.Snapshot.LeaseOwner, f.Snapshot.PausedBy = now.Add(1), "w", tenant
		}, Explanation{Reason: ReasonRunning, By: "w", Until: now.Add(1)}},
		{"lease ended", func(f *ExplainFacts) { f.Snapshot.LeaseEndsAt, f.Snapshot.LeaseOwner = now, "w" }, Explanation{Reason: ReasonDue}},
		{"set aside", func(f *ExplainFacts) {
			f.SetAsideUntil, f.SetAsideReason, f.Snapshot.LeaseEndsAt = now.Add(time.Hour), "bad row", now.Add(1)
		}, Explanation{Reason: ReasonSetAside, Detail: "bad row", Until: now.Add(time.Hour)}},
		{"set aside until now", func(f *ExplainFacts) { f.SetAsideUntil, f.SetAsideReason = now, "bad row" }, Explanation{Reason: ReasonDue}},
		{"cancelled", func(f *ExplainFacts) { f.Snapshot.Status, f.SetAsideUntil = StatusCancelled, now.Add(1) }, Explanation{Reason: ReasonCancelled}},
		{"failed", func(f *ExplainFacts) {
			f.Snapshot.Status, f.Snapshot.LastError, f.Snapshot.PausedBy = StatusFailed, "broke", tenant
		}, Explanation{Reason: ReasonFailed, Detail: "broke"}},
		{"completed", func(f *ExplainFacts) { f.Snapshot.Status, f.SetAsideUntil = StatusCompleted, now.Add(1) }, Explanation{Reason: ReasonCompleted}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			facts := &ExplainFacts{Now: now, Snapshot: Snapshot{Status: StatusActive, NextDueAt: now}}
			test.change(facts)
			require.Equal(t, test.want, Explain(facts))
		})
	}
}

func TestFailureClassOf(t *testing.T) {
	item := pinnedItem()
	for _, class := range []FailureClass{"", FailureNoDriver, FailureRevisionUnpublished} {
		command := failureCommand(item, "broke", class, time.Time{})
		require.NoError(t, command.ValidateFor(item))
		require.Equal(t, class, FailureClassOf(&command))
	}
	for name, command := range map[string]TransitionCommand{
		"other event":          {EventType: "e", EventPayload: json.RawMessage(`{"class":"no_driver"}`)},
		"class not known":      {EventType: EventEvaluationFailed, EventPayload: json.RawMessage(`{"class":"no_coffee"}`)},
		"class is no string":   {EventType: EventEvaluationFailed, EventPayload: json.RawMessage(`{"class":1}`)},
		"payload is no object": {EventType: EventEvaluationFailed, EventPayload: json.RawMessage(`["no_driver"]`)},
		"no payload":           {EventType: EventEvaluationFailed},
	} {
		require.Empty(t, FailureClassOf(&command), name)
	}
	plain, classed := failureCommand(item, "broke", "", time.Time{}), failureCommand(item, "broke", FailureNoDriver, time.Time{})
	require.Equal(t, `{"error":"broke","class":"no_driver"}`, string(classed.EventPayload))
	require.NotEqual(t, plain.EventDigest, classed.EventDigest, "the digest covers the class")
}

func TestScopeString(t *testing.T) {
	require.Equal(t, `tenant "t1"`, Scope{TenantID: "t1"}.String())
	require.Equal(t, `tenant "t1" instance "i"`, Scope{TenantID: "t1", InstanceID: "i"}.String())
	require.Equal(t, `tenant "t\n" resource "r"`, Scope{TenantID: "t\n", ResourceID: "r"}.String())
}
