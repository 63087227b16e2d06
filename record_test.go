package supervisor

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNewRecord(t *testing.T) {
	require.Equal(t, Record{Status: StatusActive, CreatedAt: epoch}, NewRecord(epoch))
}

func TestAfterCommit(t *testing.T) {
	end := endOfCalendar()
	now := epoch.Add(time.Hour)
	failing := Record{Status: StatusActive, CreatedAt: epoch, Attempt: 3, RetryAt: now, Counters: Counters{Succeeded: 1}, LastProgressAt: epoch}
	cancelling := Record{Status: StatusActive, CreatedAt: epoch, CancelRequested: true}
	tests := []struct {
		name        string
		record      Record
		policy      LifecyclePolicy
		disposition Disposition
		outcome     EvaluationOutcome
		want        func(*Record) // what changes
		at          time.Time     // what the disposition asks for
	}{
		{"continue", NewRecord(epoch), LifecyclePolicy{}, Continue{Delay: time.Minute}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now.Add(time.Minute)},
		{"continue now", NewRecord(epoch), LifecyclePolicy{}, Continue{}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now},
		{"negative delay", NewRecord(epoch), LifecyclePolicy{}, Continue{Delay: math.MinInt64}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now},
		{"longest delay", NewRecord(epoch), LifecyclePolicy{}, Continue{Delay: math.MaxInt64}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now.Add(math.MaxInt64)},
		{"reschedule", NewRecord(epoch), LifecyclePolicy{}, Reschedule{At: now.Add(1)}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now.Add(1)},
		{"reschedule in another zone", NewRecord(epoch), LifecyclePolicy{}, Reschedule{At: now.Add(1).In(time.FixedZone("", 3600))}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now.Add(1)},
		{"reschedule to the past", NewRecord(epoch), LifecyclePolicy{}, Reschedule{At: epoch}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now},
		{"reschedule to nothing", NewRecord(epoch), LifecyclePolicy{}, Reschedule{}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now},
		{"reschedule to the end", NewRecord(epoch), LifecyclePolicy{}, Reschedule{At: end.Add(999)}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, end},
		{"complete", NewRecord(epoch), LifecyclePolicy{}, Complete{}, EvaluationOutcome{Succeeded: true},
			func(r *Record) {
				r.LastProgressAt, r.Status, r.FinishedAt, r.Counters.Succeeded = now, StatusCompleted, now, 1
			}, time.Time{}},

		{"failed", NewRecord(epoch), LifecyclePolicy{}, Failed{Reason: "r", RetryAt: now.Add(1)}, EvaluationOutcome{true, true, true, true},
			func(r *Record) { r.Attempt, r.RetryAt = 1, now.Add(1) }, now.Add(1)},
		{"failed, retry in the past", NewRecord(epoch), LifecyclePolicy{}, Failed{Reason: "r", RetryAt: epoch}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.RetryAt = 1, now }, now},
		{"failed, retry at the end", NewRecord(epoch), LifecyclePolicy{}, Failed{Reason: "r", RetryAt: end.Add(999)}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.RetryAt = 1, end }, end},
		{"failed again", failing, LifecyclePolicy{}, Failed{Reason: "r", RetryAt: now.Add(1)}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.RetryAt = 4, now.Add(1) }, now.Add(1)},
		{"failed for good", failing, RunOnce(), Failed{Reason: "r"}, EvaluationOutcome{Succeeded: true},
			func(r *Record) { r.Attempt, r.RetryAt, r.Status, r.FinishedAt = 4, time.Time{}, StatusFailed, now }, time.Time{}},
		{"succeeds after failures", failing, LifecyclePolicy{}, Continue{}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.RetryAt, r.LastProgressAt = 0, time.Time{}, now }, now},
		{"most failures", Record{Status: StatusActive, Attempt: math.MaxInt32}, LifecyclePolicy{}, Failed{Reason: "r", RetryAt: now}, EvaluationOutcome{},
			func(r *Record) { r.RetryAt = now }, now},

		{"policy not met", NewRecord(epoch), RunOnce(), Continue{}, EvaluationOutcome{Triggered: true, Matched: true, ActionTerminal: true},
			func(r *Record) { r.LastProgressAt, r.Counters = now, Counters{1, 1, 0, 1} }, now},
		{"policy met", NewRecord(epoch), RunOnce(), Continue{Delay: time.Hour}, EvaluationOutcome{Succeeded: true},
			func(r *Record) {
				r.LastProgressAt, r.Counters.Succeeded, r.Status, r.FinishedAt = now, 1, StatusCompleted, now
			}, time.Time{}},
		{"policy met by reschedule", NewRecord(epoch), LifecyclePolicy{Completion: CompletionPolicy{Kind: CompleteFirstMatch}}, Reschedule{At: now.Add(time.Hour)}, EvaluationOutcome{Matched: true},
			func(r *Record) {
				r.LastProgressAt, r.Counters.Matched, r.Status, r.FinishedAt = now, 1, StatusCompleted, now
			}, time.Time{}},
		{"policy met by the second", Record{Status: StatusActive, Counters: Counters{Matched: 1}}, LifecyclePolicy{Completion: CompletionPolicy{Kind: CompleteAfterMatchedEvaluations, N: 2}}, Continue{}, EvaluationOutcome{Matched: true},
			func(r *Record) {
				r.LastProgressAt, r.Counters.Matched, r.Status, r.FinishedAt = now, 2, StatusCompleted, now
			}, time.Time{}},
		{"a failure meets no policy", NewRecord(epoch), RunOnce(), Failed{Reason: "r", RetryAt: now}, EvaluationOutcome{Succeeded: true},
			func(r *Record) { r.Attempt, r.RetryAt = 1, now }, now},

		{"cancelling, continue", cancelling, LifecyclePolicy{}, Continue{Delay: 1}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt = now }, now.Add(1)},
		{"cancelling, failed", cancelling, LifecyclePolicy{}, Failed{Reason: "r", RetryAt: now.Add(1)}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.RetryAt = 1, now.Add(1) }, now.Add(1)},
		{"cancelling, complete", cancelling, LifecyclePolicy{}, Complete{}, EvaluationOutcome{},
			func(r *Record) { r.LastProgressAt, r.Status, r.FinishedAt = now, StatusCancelled, now }, time.Time{}},
		{"cancelling, failed for good", cancelling, LifecyclePolicy{}, Failed{Reason: "r"}, EvaluationOutcome{},
			func(r *Record) { r.Attempt, r.Status, r.FinishedAt = 1, StatusCancelled, now }, time.Time{}},
		{"cancelling, policy met", cancelling, RunOnce(), Continue{}, EvaluationOutcome{Succeeded: true},
			func(r *Record) {
				r.LastProgressAt, r.Counters.Succeeded, r.Status, r.FinishedAt = now, 1, StatusCancelled, now
			}, time.Time{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command := &TransitionCommand{Disposition: test.disposition, Outcome: test.outcome}
			next, at := test.record.AfterCommit(&test.policy, &WorkItem{}, command, now)
			want := test.record
			test.want(&want)
			require.Equal(t, want, next)
			require.Equal(t, test.at, at)
		})
	}
}

// The commit that consumes a lifecycle timer and does not fail ends the instance.
func TestAfterCommitOfTimers(t *testing.T) {
	now := epoch.Add(time.Hour)
	expired, idle, stuck := "lifecycle:expired", "lifecycle:event_idle", "lifecycle:no_progress"
	tests := []struct {
		name        string
		deadline    time.Time
		consumed    []string
		disposition Disposition
		cancelled   bool
		want        Status
	}{
		{"nothing consumed", time.Time{}, nil, Continue{}, false, StatusActive},
		{"other wakeup", time.Time{}, []string{"w"}, Continue{}, false, StatusActive},
		{"expired", time.Time{}, []string{expired}, Continue{}, false, StatusCompleted},
		{"expired, reschedule", time.Time{}, []string{"w", expired}, Reschedule{At: now.Add(time.Hour)}, false, StatusCompleted},
		{"expired, complete", time.Time{}, []string{expired}, Complete{}, false, StatusCompleted},
		{"expired, deadline ahead", now.Add(1), []string{expired}, Continue{}, false, StatusActive},
		{"expired, deadline ahead, complete", now.Add(1), []string{expired}, Complete{}, false, StatusCompleted},
		{"expired, deadline now", now, []string{expired}, Continue{}, false, StatusCompleted},
		{"expired, deadline passed", now.Add(-1), []string{expired}, Continue{}, false, StatusCompleted},
		{"idle", time.Time{}, []string{idle}, Continue{}, false, StatusCompleted},
		{"idle, deadline ahead", now.Add(1), []string{idle}, Continue{}, false, StatusCompleted},
		{"no progress", time.Time{}, []string{stuck}, Reschedule{}, false, StatusCompleted},
		{"expired and idle, deadline ahead", now.Add(1), []string{expired, idle}, Continue{}, false, StatusCompleted},
		{"failed", time.Time{}, []string{expired, idle, stuck}, Failed{Reason: "r", RetryAt: now}, false, StatusActive},
		{"failed for good", time.Time{}, []string{expired}, Failed{Reason: "r"}, false, StatusFailed},
		{"cancelling", time.Time{}, []string{idle}, Continue{}, true, StatusCancelled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			policy := LifecyclePolicy{DrainDeadline: test.deadline}
			record := Record{Status: StatusActive, CreatedAt: epoch, CancelRequested: test.cancelled}
			item := &WorkItem{Wakeups: []Wakeup{{ID: "w", Kind: "k"}}}
			for _, id := range []string{expired, idle, stuck} {
				item.Wakeups = append(item.Wakeups, Wakeup{ID: id, Kind: WakeupKindTimer})
			}
			command := &TransitionCommand{Disposition: test.disposition, ConsumedWakeups: test.consumed}
			next, at := record.AfterCommit(&policy, item, command, now)
			require.Equal(t, test.want, next.Status)
			require.Equal(t, test.want == StatusActive, next.FinishedAt.IsZero())
			require.Equal(t, test.want == StatusActive, !at.IsZero())
		})
	}
}

// An event is a wakeup that is not a timer; a failure that consumes one counts.
func TestAfterCommitOfEvents(t *testing.T) {
	item := &WorkItem{Wakeups: []Wakeup{
		{ID: "t1", Kind: WakeupKindTimer}, {ID: "d1", Kind: "mail"}, {ID: "t2", Kind: WakeupKindTimer}, {ID: "d2", Kind: "Timer"},
	}}
	deliveries := &WorkItem{Wakeups: []Wakeup{{ID: "d1", Kind: "mail"}, {ID: "d2", Kind: "mail"}}}
	tests := []struct {
		name        string
		item        *WorkItem
		consumed    []string
		disposition Disposition
		want        bool
	}{
		{"nothing", item, nil, Continue{}, false},
		{"a timer", item, []string{"t2"}, Continue{}, false},
		{"all timers", item, []string{"t2", "t1"}, Continue{}, false},
		{"a delivery", item, []string{"d1"}, Continue{}, true},
		{"a kind that is not quite timer", item, []string{"d2"}, Continue{}, true},
		{"a timer and a delivery", item, []string{"t1", "d1"}, Continue{}, true},
		{"everything", item, []string{"t1", "t2", "d1", "d2"}, Complete{}, true},
		{"a delivery without timers", deliveries, []string{"d2"}, Continue{}, true},
		{"failed", item, []string{"d1"}, Failed{Reason: "r", RetryAt: epoch}, true},
		{"failed with a timer", item, []string{"t1"}, Failed{Reason: "r", RetryAt: epoch}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command := &TransitionCommand{Disposition: test.disposition, ConsumedWakeups: test.consumed, Outcome: EvaluationOutcome{Triggered: true}}
			now := epoch.Add(time.Hour)
			record := Record{Status: StatusActive, LastEventAt: epoch}
			next, _ := record.AfterCommit(&LifecyclePolicy{}, test.item, command, now)
			if test.want {
				require.Equal(t, now, next.LastEventAt)
			} else {
				require.Equal(t, epoch, next.LastEventAt)
			}
		})
	}
}

func TestNextDue(t *testing.T) {
	at := func(minutes int) time.Time { return epoch.Add(time.Duration(minutes) * time.Minute) }
	none := time.Time{}
	active := Record{Status: StatusActive, CreatedAt: epoch}
	backsOff := Record{Status: StatusActive, CreatedAt: epoch, Attempt: 1, RetryAt: at(30)}
	lifted := Record{Status: StatusActive, CreatedAt: epoch, Attempt: 1}
	cancelling := Record{Status: StatusActive, CreatedAt: epoch, CancelRequested: true}
	tests := []struct {
		name              string
		record            Record
		policy            LifecyclePolicy
		asked, wakeup     time.Time
		want              time.Time
		wantOfWakeupAlone time.Time // WakeupDue at 10 minutes, for the wakeup
	}{
		{"asked", active, LifecyclePolicy{}, at(20), none, at(20), at(10)},
		{"wakeup before it", active, LifecyclePolicy{}, at(20), at(15), at(15), at(15)},
		{"wakeup after it", active, LifecyclePolicy{}, at(20), at(25), at(20), at(25)},
		{"wakeup in the past", active, LifecyclePolicy{}, at(20), at(5), at(5), at(10)},
		{"other zone", active, LifecyclePolicy{}, at(20).In(time.FixedZone("", 60)), none, at(20), at(10)},
		{"beyond the calendar", active, LifecyclePolicy{}, endOfCalendar().Add(time.Hour), none, endOfCalendar(), at(10)},
		{"wakeup beyond the calendar", active, LifecyclePolicy{}, endOfCalendar(), endOfCalendar().Add(time.Hour), endOfCalendar(), endOfCalendar()},

		{"start ahead", active, LifecyclePolicy{StartsAt: at(60)}, at(20), at(15), at(60), at(60)},
		{"start passed", active, LifecyclePolicy{StartsAt: at(16)}, at(20), at(15), at(16), at(16)},
		{"start does not hold a cancellation back", cancelling, LifecyclePolicy{StartsAt: at(60)}, at(20), at(15), at(15), at(15)},

		{"retry floor", backsOff, LifecyclePolicy{}, at(30), at(15), at(30), at(30)},
		{"wakeup after the floor", backsOff, LifecyclePolicy{}, at(30), at(45), at(30), at(45)},
		{"lifted floor", lifted, LifecyclePolicy{}, at(30), at(15), at(15), at(15)},
		{"start above the floor", backsOff, LifecyclePolicy{StartsAt: at(60)}, at(30), at(15), at(60), at(60)},

		{"expiry", active, LifecyclePolicy{ExpiresAt: at(12)}, at(20), at(15), at(12), at(15)},
		{"expiry later", active, LifecyclePolicy{ExpiresAt: at(22)}, at(20), at(21), at(20), at(21)},
		{"expiry with cancel", active, LifecyclePolicy{ExpiresAt: at(12), OnExpiry: ExpiryCancel}, at(20), none, at(12), at(10)},
		{"drain deadline", active, LifecyclePolicy{DrainDeadline: at(13)}, at(20), none, at(13), at(10)},
		{"idle", active, LifecyclePolicy{EventIdleTimeout: 14 * time.Minute}, at(20), none, at(14), at(10)},
		{"no progress", active, LifecyclePolicy{ProgressTimeout: 14 * time.Minute}, at(20), none, at(14), at(10)},
		{"no progress since a commit", Record{Status: StatusActive, CreatedAt: epoch, LastProgressAt: at(5)}, LifecyclePolicy{ProgressTimeout: 14 * time.Minute}, at(20), none, at(19), at(10)},
		{"raised timers count no more", Record{Status: StatusActive, CreatedAt: epoch, Raised: RaisedExpired | RaisedEventIdle | RaisedNoProgress},
			LifecyclePolicy{ExpiresAt: at(12), EventIdleTimeout: time.Minute, ProgressTimeout: time.Minute}, at(20), none, at(20), at(10)},
		{"the floor holds timers back", backsOff, LifecyclePolicy{ExpiresAt: at(12)}, at(30), none, at(30), at(30)},
		{"start holds timers back", active, LifecyclePolicy{StartsAt: at(60), ProgressTimeout: time.Minute}, at(70), none, at(60), at(60)},
		{"a cancellation has no timers", cancelling, LifecyclePolicy{ExpiresAt: at(12), DrainDeadline: at(13), ProgressTimeout: 1}, at(20), none, at(20), at(10)},

		{"completed", Record{Status: StatusCompleted}, LifecyclePolicy{ExpiresAt: at(12)}, at(20), at(15), none, none},
		{"failed for good", Record{Status: StatusFailed}, LifecyclePolicy{ExpiresAt: at(12)}, at(20), at(15), none, none},
		{"cancelled", Record{Status: StatusCancelled}, LifecyclePolicy{StartsAt: at(12)}, at(20), at(15), none, none},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, test.record.NextDue(&test.policy, test.asked, test.wakeup))
			require.Equal(t, test.wantOfWakeupAlone, test.record.WakeupDue(&test.policy, test.wakeup, at(10)))
		})
	}
}

func TestAfterCancel(t *testing.T) {
	now := epoch.Add(time.Hour)
	requested := func(status Status) Record { return Record{Status: status, CreatedAt: epoch, CancelRequested: true} }
	tests := []struct {
		name    string
		record  Record
		want    Record
		changed bool
	}{
		{"active", NewRecord(epoch), requested(StatusActive), true},
		{"backs off", Record{Status: StatusActive, Attempt: 2, RetryAt: now.Add(1)}, Record{Status: StatusActive, Attempt: 2, CancelRequested: true}, true},
		{"again", requested(StatusActive), requested(StatusActive), false},
		{"again while it backs off", Record{Status: StatusActive, Attempt: 1, RetryAt: now.Add(1), CancelRequested: true},
			Record{Status: StatusActive, Attempt: 1, RetryAt: now.Add(1), CancelRequested: true}, false},
		{"completed", Record{Status: StatusCompleted, FinishedAt: epoch}, Record{Status: StatusCompleted, FinishedAt: epoch}, false},
		{"cancelled", Record{Status: StatusCancelled, FinishedAt: epoch, CancelRequested: true}, Record{Status: StatusCancelled, FinishedAt: epoch, CancelRequested: true}, false},
		{"failed for good", Record{Status: StatusFailed, FinishedAt: epoch, Attempt: 1},
			Record{Status: StatusCancelled, FinishedAt: now, Attempt: 1, CancelRequested: true}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			next, changed := test.record.AfterCancel(now)
			require.Equal(t, test.want, next)
			require.Equal(t, test.changed, changed)
		})
	}
}

func TestAfterRetry(t *testing.T) {
	tests := []struct {
		name   string
		record Record
		want   Record
		ok     bool
	}{
		{"backs off", Record{Status: StatusActive, Attempt: 2, RetryAt: epoch}, Record{Status: StatusActive}, true},
		{"backs off, floor lifted", Record{Status: StatusActive, Attempt: 2}, Record{Status: StatusActive}, true},
		{"failed for good", Record{Status: StatusFailed, FinishedAt: epoch, Attempt: 1, Counters: Counters{Matched: 1}, Raised: RaisedExpired},
			Record{Status: StatusActive, Counters: Counters{Matched: 1}, Raised: RaisedExpired}, true},
		{"cancelling, backs off", Record{Status: StatusActive, Attempt: 1, RetryAt: epoch, CancelRequested: true}, Record{Status: StatusActive, CancelRequested: true}, true},
		{"active", NewRecord(epoch), NewRecord(epoch), false},
		{"completed", Record{Status: StatusCompleted, Attempt: 1}, Record{Status: StatusCompleted, Attempt: 1}, false},
		{"cancelled", Record{Status: StatusCancelled, Attempt: 1}, Record{Status: StatusCancelled, Attempt: 1}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			next, ok := test.record.AfterRetry()
			require.Equal(t, test.want, next)
			require.Equal(t, test.ok, ok)
		})
	}
}

func TestAfterResume(t *testing.T) {
	for name, record := range map[string]Record{
		"active":          NewRecord(epoch),
		"lifted before":   {Status: StatusActive, Attempt: 1},
		"failed for good": {Status: StatusFailed, Attempt: 1},
		"completed":       {Status: StatusCompleted},
	} {
		next, lifted := record.AfterResume()
		require.False(t, lifted, name)
		require.Equal(t, record, next, name)
	}
	next, lifted := Record{Status: StatusActive, Attempt: 2, RetryAt: epoch}.AfterResume()
	require.True(t, lifted)
	require.Equal(t, Record{Status: StatusActive, Attempt: 2}, next)
	require.True(t, next.BacksOff(), "only the floor is gone")
}

func TestRecordQuestions(t *testing.T) {
	for _, test := range []struct {
		record           Record
		backsOff, refuse bool
	}{
		{Record{Status: StatusActive}, false, false},
		{Record{Status: StatusActive, Attempt: 1}, true, false},
		{Record{Status: StatusFailed, Attempt: 1}, false, false},
		{Record{Status: StatusActive, Raised: RaisedEventIdle | RaisedNoProgress}, false, false},
		{Record{Status: StatusActive, Raised: RaisedExpired}, false, true},
		{Record{Status: StatusActive, Raised: RaisedExpired | RaisedEventIdle}, false, true},
	} {
		require.Equal(t, test.backsOff, test.record.BacksOff(), "%+v", test.record)
		require.Equal(t, test.refuse, test.record.RefusesIntents(), "%+v", test.record)
	}
}
