package supervisor

import (
	"context"
	"log/slog"
	"time"
)

// Observer is a set of optional functions that are called at each step; a nil
// one is not. They are called in the goroutine that does the step, by many
// goroutines at once, and hold it up: they must be quick and must not call the
// supervisor. Items and commands belong to the supervisor and must not be
// changed or kept. A panic in one is contained and dropped; runtime.Goexit ends
// what its goroutine was doing, so that a test must not fail from within one.
type Observer struct {
	// Claim is called for each claimed item, in the goroutine that claims,
	// before its evaluation; for a kept claim in the goroutine of its evaluation.
	Claim func(ClaimInfo)
	// EvaluationStart and EvaluationEnd are called right before and after the
	// driver, in the goroutine of the evaluation. An item that fails before its
	// driver is reached has an end alone; an abandoned one has no end.
	EvaluationStart func(EvaluationInfo)
	EvaluationEnd   func(EvaluationInfo)
	// Renewal is called after each successful renewal, in its goroutine.
	Renewal func(RenewalInfo)
	// Commit is called after each commit, also one that erred, in the goroutine
	// that made it: the evaluation's, or, after a renewal that failed or a driver
	// that was abandoned, that of its timer.
	Commit func(CommitInfo)
	// LeaseLost is called when a renewal failed and the lease is indeed gone, in
	// the goroutine of the renewal.
	LeaseLost func(LostInfo)
	// Revoked is called when a pause or cancel took the claim away and it was
	// handed back, in the goroutine that found out.
	Revoked func(LostInfo)
	// Abandoned is called when a driver ignored the end of its context for too
	// long, in a timer's goroutine.
	Abandoned func(LostInfo)
	// PassEnd is called when the last item of a claim is settled, in the
	// goroutine that settled it, or right after a claim that gave none, in the
	// goroutine that claimed.
	PassEnd func(PassInfo)

	// DispatchStart and DispatchEnd are called right before and after a provider's
	// Dispatch, in the goroutine of the call; an abandoned call has its end when it
	// returns, if ever. One that is not made after all, because its time or its
	// lease ended at the start, has its end with that cause.
	DispatchStart func(DispatchInfo)
	DispatchEnd   func(DispatchInfo)
	// IntentStored is called after each call that stores what became of an
	// intent, also one that erred, in the goroutine that made it.
	IntentStored func(IntentInfo)
	// IntentLost is called when the lease of an intent is gone, IntentAbandoned
	// when a call of a provider ignored the end of its context for too long.
	IntentLost      func(IntentInfo)
	IntentAbandoned func(IntentInfo)
	// DispatchPassEnd is to a dispatcher what PassEnd is to a supervisor.
	DispatchPassEnd func(DispatchPassInfo)
}

// DispatchInfo tells of a hand-off.
type DispatchInfo struct {
	WorkerID string
	Work     *IntentWork
	// Err and Elapsed are set at the end. Err is what the provider returned.
	Err     error
	Elapsed time.Duration
}

// IntentInfo tells of a claimed intent.
type IntentInfo struct {
	WorkerID string
	Work     *IntentWork
	// Settlement or Receipt is what was to be stored; nil where neither was.
	Settlement *Settlement
	Receipt    *Receipt
	Err        error
}

// DispatchPassInfo tells of a pass of a dispatcher.
type DispatchPassInfo struct {
	WorkerID string
	Stats    DispatchStats
	// Err is what the pass returns.
	Err     error
	Elapsed time.Duration
}

// ClaimInfo tells of a claim.
type ClaimInfo struct {
	WorkerID string
	Item     *WorkItem
	// Kept: the commit before kept the claim.
	Kept bool
}

// EvaluationInfo tells of an evaluation.
type EvaluationInfo struct {
	WorkerID string
	Item     *WorkItem
	// Driver is the name of the driver; empty where none was found.
	Driver string
	// Err and Elapsed are set at the end. Err is a [*PanicError], with the
	// stack, where the driver panicked.
	Err     error
	Elapsed time.Duration
}

// RenewalInfo tells of a renewal.
type RenewalInfo struct {
	WorkerID string
	Item     *WorkItem
}

// CommitInfo tells of a commit.
type CommitInfo struct {
	WorkerID string
	Item     *WorkItem
	Command  *TransitionCommand
	// Err is nil where it was applied.
	Err error
}

// LostInfo tells of a claim that ended without a commit of its result.
type LostInfo struct {
	WorkerID string
	Item     *WorkItem
	// Err is the cause.
	Err error
}

// PassInfo tells of a pass.
type PassInfo struct {
	WorkerID string
	Stats    Stats
	// Err is what the pass returns.
	Err     error
	Elapsed time.Duration
}

// Attribute names of log records. They do not change.
const (
	AttrWorkerID     = "worker_id"
	AttrTenantID     = "tenant_id"
	AttrInstanceID   = "instance_id"
	AttrSpecID       = "spec_id"
	AttrLeaseVersion = "lease_version"
	AttrStateVersion = "state_version"
	AttrAttempt      = "attempt"
	AttrDriver       = "driver"
	AttrEventType    = "event_type"
	AttrKept         = "kept"
	AttrElapsed      = "elapsed"
	AttrError        = "error"
	AttrClaimed      = "claimed"
	AttrFailed       = "failed"
	AttrIntentID     = "intent_id"
	AttrCapabilityID = "capability_id"
	AttrState        = "state"
)

// notifier calls the observer and the logger.
type notifier struct {
	workerID string
	observer Observer
	logger   *slog.Logger // nil: silent
}

func newNotifier(settings *Settings) notifier {
	n := notifier{workerID: settings.WorkerID, logger: settings.Logger}
	if settings.Observer != nil {
		n.observer = *settings.Observer
	}
	return n
}

// tell calls a function of the observer.
func tell[T any](function func(T), info T) {
	if function == nil {
		return
	}
	_ = guard("observer", func() error {
		function(info)
		return nil
	})
}

func (n *notifier) claimed(item *WorkItem, kept bool) {
	tell(n.observer.Claim, ClaimInfo{WorkerID: n.workerID, Item: item, Kept: kept})
	n.logItem(slog.LevelDebug, "claimed", item, nil, slog.Bool(AttrKept, kept))
}

func (n *notifier) evaluationStarted(item *WorkItem, driver string) {
	tell(n.observer.EvaluationStart, EvaluationInfo{WorkerID: n.workerID, Item: item, Driver: driver})
}

// evaluates reports whether anybody wants to know of evaluations, which then
// have to be timed and their drivers asked for their names.
func (n *notifier) evaluates() bool {
	return n.observer.EvaluationStart != nil || n.observer.EvaluationEnd != nil || n.logger != nil
}

func (n *notifier) evaluationEnded(item *WorkItem, driver string, err error, elapsed time.Duration) {
	tell(n.observer.EvaluationEnd, EvaluationInfo{WorkerID: n.workerID, Item: item, Driver: driver, Err: err, Elapsed: elapsed})
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelWarn
	}
	n.logItem(level, "evaluated", item, err, slog.String(AttrDriver, driver), slog.Duration(AttrElapsed, elapsed))
}

func (n *notifier) renewed(item *WorkItem) {
	tell(n.observer.Renewal, RenewalInfo{WorkerID: n.workerID, Item: item})
	n.logItem(slog.LevelDebug, "lease renewed", item, nil)
}

func (n *notifier) committed(item *WorkItem, command *TransitionCommand, err error) {
	tell(n.observer.Commit, CommitInfo{WorkerID: n.workerID, Item: item, Command: command, Err: err})
	if n.logger == nil {
		return
	}
	level, message := slog.LevelDebug, "committed"
	if err != nil {
		level, message = slog.LevelError, "commit failed"
	}
	n.logItem(level, message, item, err, slog.String(AttrEventType, command.EventType))
}

func (n *notifier) leaseLost(item *WorkItem, err error) {
	tell(n.observer.LeaseLost, LostInfo{WorkerID: n.workerID, Item: item, Err: err})
	n.logItem(slog.LevelWarn, "lease lost", item, err)
}

func (n *notifier) revoked(item *WorkItem, err error) {
	tell(n.observer.Revoked, LostInfo{WorkerID: n.workerID, Item: item, Err: err})
	n.logItem(slog.LevelInfo, "claim revoked", item, err)
}

func (n *notifier) abandoned(item *WorkItem, err error) {
	tell(n.observer.Abandoned, LostInfo{WorkerID: n.workerID, Item: item, Err: err})
	n.logItem(slog.LevelError, "driver abandoned", item, err)
}

func (n *notifier) passEnded(stats Stats, err error, elapsed time.Duration) {
	tell(n.observer.PassEnd, PassInfo{WorkerID: n.workerID, Stats: stats, Err: err, Elapsed: elapsed})
	if n.logger == nil {
		return
	}
	n.logPass("pass ended", stats.Claimed, stats.Failed, err, elapsed)
}

func (n *notifier) logPass(message string, claimed, failed int, err error, elapsed time.Duration) {
	attrs := []slog.Attr{
		slog.String(AttrWorkerID, n.workerID),
		slog.Int(AttrClaimed, claimed),
		slog.Int(AttrFailed, failed),
		slog.Duration(AttrElapsed, elapsed),
	}
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelError
		attrs = append(attrs, slog.String(AttrError, errorText(err)))
	}
	n.log(level, message, attrs)
}

// problem logs what has no item and no function.
func (n *notifier) problem(message string, err error) {
	if n.logger != nil {
		n.log(slog.LevelError, message, []slog.Attr{
			slog.String(AttrWorkerID, n.workerID), slog.String(AttrError, errorText(err)),
		})
	}
}

func (n *notifier) logItem(level slog.Level, message string, item *WorkItem, err error, more ...slog.Attr) {
	if !n.logs(level) {
		return
	}
	attrs := append([]slog.Attr{
		slog.String(AttrWorkerID, n.workerID),
		slog.String(AttrTenantID, item.TenantID),
		slog.String(AttrInstanceID, item.ID),
		slog.String(AttrSpecID, item.SpecID),
		slog.Int64(AttrLeaseVersion, item.LeaseVersion),
		slog.Int64(AttrStateVersion, item.StateVersion),
		slog.Int(AttrAttempt, item.Attempt),
	}, more...)
	if err != nil {
		attrs = append(attrs, slog.String(AttrError, errorText(err)))
	}
	n.log(level, message, attrs)
}

// logs reports whether there is a logger that wants records of a level.
func (n *notifier) logs(level slog.Level) (enabled bool) {
	if n.logger == nil {
		return false
	}
	_ = guard("logger", func() error {
		enabled = n.logger.Enabled(context.Background(), level)
		return nil
	})
	return enabled
}

// log writes a record. Handlers are foreign code: a panic in one is dropped.
func (n *notifier) log(level slog.Level, message string, attrs []slog.Attr) {
	_ = guard("logger", func() error {
		n.logger.LogAttrs(context.Background(), level, message, attrs...)
		return nil
	})
}
