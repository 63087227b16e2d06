package supervisor

import (
	"log/slog"
	"time"
)

// dispatchStarted returns when the call began, zero where nobody wants to know.
func (n *notifier) dispatchStarted(work *IntentWork) time.Time {
	tell(n.observer.DispatchStart, DispatchInfo{WorkerID: n.workerID, Work: work})
	if n.observer.DispatchEnd == nil && n.logger == nil {
		return time.Time{}
	}
	return time.Now()
}

func (n *notifier) dispatchEnded(work *IntentWork, err error, startedAt time.Time) {
	if n.observer.DispatchEnd == nil && n.logger == nil {
		return
	}
	var elapsed time.Duration
	if !startedAt.IsZero() {
		elapsed = time.Since(startedAt)
	}
	tell(n.observer.DispatchEnd, DispatchInfo{WorkerID: n.workerID, Work: work, Err: err, Elapsed: elapsed})
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelWarn
	}
	n.logIntent(level, "handed off", work, err, slog.Duration(AttrElapsed, elapsed))
}

func (n *notifier) intentStored(work *IntentWork, v verdict, err error) {
	tell(n.observer.IntentStored, IntentInfo{
		WorkerID: n.workerID, Work: work, Settlement: v.settlement, Receipt: v.receipt, Err: err,
	})
	level, message, state := slog.LevelDebug, "intent released", work.Intent.State
	switch {
	case v.settlement != nil:
		message, state = "intent settled", v.settlement.State
	case v.receipt != nil:
		message, state = "receipt stored", ActionExecuting
	}
	if err != nil {
		level = slog.LevelError
	}
	n.logIntent(level, message, work, err, slog.String(AttrState, string(state)))
}

func (n *notifier) intentLost(work *IntentWork, err error) {
	tell(n.observer.IntentLost, IntentInfo{WorkerID: n.workerID, Work: work, Err: err})
	n.logIntent(slog.LevelWarn, "intent lease lost", work, err)
}

func (n *notifier) dispatchAbandoned(work *IntentWork, err error) {
	tell(n.observer.IntentAbandoned, IntentInfo{WorkerID: n.workerID, Work: work, Err: err})
	n.logIntent(slog.LevelError, "provider abandoned", work, err)
}

func (n *notifier) dispatchPassEnded(stats DispatchStats, err error, elapsed time.Duration) {
	tell(n.observer.DispatchPassEnd, DispatchPassInfo{WorkerID: n.workerID, Stats: stats, Err: err, Elapsed: elapsed})
	if n.logger == nil {
		return
	}
	n.logPass("dispatch pass ended", stats.Claimed, stats.Failed, err, elapsed)
}

func (n *notifier) logIntent(level slog.Level, message string, work *IntentWork, err error, more ...slog.Attr) {
	if !n.logs(level) {
		return
	}
	attrs := append([]slog.Attr{
		slog.String(AttrWorkerID, n.workerID),
		slog.String(AttrTenantID, work.Intent.TenantID),
		slog.String(AttrInstanceID, work.Intent.InstanceID),
		slog.String(AttrIntentID, work.Intent.ID),
		slog.String(AttrCapabilityID, work.Intent.Capability.ID),
		slog.Int64(AttrLeaseVersion, work.LeaseVersion),
		slog.Int(AttrAttempt, work.Attempt),
	}, more...)
	if err != nil {
		attrs = append(attrs, slog.String(AttrError, errorText(err)))
	}
	n.log(level, message, attrs)
}
