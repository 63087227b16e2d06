package supervisor

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lifeModel is a second, slow implementation of Record. It keeps the whole
// history of an instance and answers every question from it by the question's
// definition; it carries no state from one fact to the next.
type lifeModel struct {
	policy  LifecyclePolicy
	history []lifeFact
}

type lifeFact struct {
	kind        string // commit, cancel, retry, resume or raise
	at          time.Time
	disposition Disposition
	outcome     EvaluationOutcome
	consumed    []Wakeup
	reason      string // of what was raised
}

func (f *lifeFact) failed() bool {
	_, failed := f.disposition.(Failed)
	return f.kind == "commit" && failed
}

// until is the model as it was before a fact.
func (m *lifeModel) until(n int) *lifeModel { return &lifeModel{m.policy, m.history[:n]} }

// last returns the index of the last fact that has a property, or -1.
func (m *lifeModel) last(has func(*lifeFact) bool) int {
	for n := range slices.Backward(m.history) {
		if has(&m.history[n]) {
			return n
		}
	}
	return -1
}

func (m *lifeModel) cancelRequested() bool {
	return m.last(func(f *lifeFact) bool { return f.kind == "cancel" }) >= 0
}

func (m *lifeModel) raised(reason string) bool {
	return m.last(func(f *lifeFact) bool { return f.kind == "raise" && f.reason == reason }) >= 0
}

func (m *lifeModel) count(has func(EvaluationOutcome) bool) (count int64) {
	for n := range m.history {
		if f := &m.history[n]; f.kind == "commit" && !f.failed() && has(f.outcome) {
			count++
		}
	}
	return count
}

func (m *lifeModel) counters() Counters {
	return Counters{
		Triggered:      m.count(func(o EvaluationOutcome) bool { return o.Triggered }),
		Matched:        m.count(func(o EvaluationOutcome) bool { return o.Matched }),
		Succeeded:      m.count(func(o EvaluationOutcome) bool { return o.Succeeded }),
		ActionTerminal: m.count(func(o EvaluationOutcome) bool { return o.ActionTerminal }),
	}
}

// statusAfter is the status that a fact gave, or empty.
func (m *lifeModel) statusAfter(n int) Status {
	f, before := &m.history[n], m.until(n)
	ended := StatusCompleted
	switch f.kind {
	case "retry":
		return StatusActive
	case "cancel":
		if before.status() == StatusFailed {
			return StatusCancelled
		}
		return ""
	case "commit":
		if f.failed() {
			if !f.disposition.(Failed).RetryAt.IsZero() {
				return ""
			}
			ended = StatusFailed
		} else if _, complete := f.disposition.(Complete); !complete && !m.until(n+1).policyMet() && !m.endedByTimer(f) {
			return ""
		}
	default:
		return ""
	}
	if before.cancelRequested() {
		return StatusCancelled
	}
	return ended
}

func (m *lifeModel) policyMet() bool {
	counters, n := m.counters(), int64(m.policy.Completion.N)
	return map[CompletionKind]bool{
		CompleteFirstTrigger:            counters.Triggered > 0,
		CompleteFirstMatch:              counters.Matched > 0,
		CompleteFirstSuccess:            counters.Succeeded > 0,
		CompleteFirstActionTerminal:     counters.ActionTerminal > 0,
		CompleteAfterMatchedEvaluations: counters.Matched >= n,
		CompleteAfterSuccessfulRuns:     counters.Succeeded >= n,
	}[m.policy.Completion.Kind]
}

func (m *lifeModel) endedByTimer(f *lifeFact) bool {
	return slices.ContainsFunc(f.consumed, func(w Wakeup) bool {
		return w.ID == "lifecycle:event_idle" || w.ID == "lifecycle:no_progress" ||
			w.ID == "lifecycle:expired" && (m.policy.DrainDeadline.IsZero() || !f.at.Before(m.policy.DrainDeadline))
	})
}

func (m *lifeModel) status() Status {
	for n := range slices.Backward(m.history) {
		if status := m.statusAfter(n); status != "" {
			return status
		}
	}
	return StatusActive
}

func (m *lifeModel) finishedAt() time.Time {
	if m.status() == StatusActive {
		return time.Time{}
	}
	for n := len(m.history) - 1; ; n-- {
		if m.statusAfter(n) != "" {
			return m.history[n].at
		}
	}
}

func (m *lifeModel) attempt() (attempt int) {
	for _, f := range slices.Backward(m.history) {
		if f.failed() {
			attempt++
		} else if f.kind == "commit" || f.kind == "retry" {
			break
		}
	}
	return attempt
}

// floor is the retry time that holds an instance back; zero for none.
func (m *lifeModel) floor() time.Time {
	n := m.last(func(f *lifeFact) bool { return f.kind != "raise" })
	if n < 0 || !m.history[n].failed() || m.history[n].disposition.(Failed).RetryAt.IsZero() {
		return time.Time{}
	}
	if at := m.history[n].disposition.(Failed).RetryAt; at.After(m.history[n].at) {
		return at
	}
	return m.history[n].at
}

func (m *lifeModel) lastAt(has func(*lifeFact) bool) time.Time {
	if n := m.last(has); n >= 0 {
		return m.history[n].at
	}
	return time.Time{}
}

func (m *lifeModel) lastEventAt() time.Time {
	return m.lastAt(func(f *lifeFact) bool {
		return slices.ContainsFunc(f.consumed, func(w Wakeup) bool { return w.Kind != "timer" })
	})
}

func (m *lifeModel) lastProgressAt() time.Time {
	return m.lastAt(func(f *lifeFact) bool { return f.kind == "commit" && !f.failed() })
}

// timers are the instants of the timers that are still to come, by reason; the
// reason cancel stands for those that do what Cancel does.
func (m *lifeModel) timers() map[string]time.Time {
	timers := make(map[string]time.Time)
	if m.status() != StatusActive || m.cancelRequested() {
		return timers
	}
	add := func(reason string, since time.Time, timeout time.Duration) {
		if since.Before(epoch) {
			since = epoch // the creation
		}
		if !m.raised(reason) {
			timers[reason] = since.Add(timeout)
		}
	}
	if m.policy.EventIdleTimeout > 0 {
		add("event_idle", m.lastEventAt(), m.policy.EventIdleTimeout)
	}
	if m.policy.ProgressTimeout > 0 {
		add("no_progress", m.lastProgressAt(), m.policy.ProgressTimeout)
	}
	if at := m.policy.DrainDeadline; !at.IsZero() {
		timers["cancel"] = at
	}
	if at := m.policy.ExpiresAt; !at.IsZero() {
		if m.policy.OnExpiry != ExpiryCancel {
			add("expired", at, 0)
		} else if deadline, both := timers["cancel"]; !both || at.Before(deadline) {
			timers["cancel"] = at
		}
	}
	return timers
}

func (m *lifeModel) record() Record {
	var raised Raised
	for reason, bit := range map[string]Raised{"expired": RaisedExpired, "event_idle": RaisedEventIdle, "no_progress": RaisedNoProgress} {
		if m.raised(reason) {
			raised |= bit
		}
	}
	return Record{
		Status: m.status(), CreatedAt: epoch, FinishedAt: m.finishedAt(), CancelRequested: m.cancelRequested(), Attempt: m.attempt(),
		RetryAt: m.floor(), Counters: m.counters(), LastEventAt: m.lastEventAt(), LastProgressAt: m.lastProgressAt(), Raised: raised,
	}
}

// due is the earliest of some instants and the timers, held back by the floors.
func (m *lifeModel) due(instants ...time.Time) time.Time {
	if m.status() != StatusActive {
		return time.Time{}
	}
	for _, at := range m.timers() {
		instants = append(instants, at)
	}
	due := slices.MinFunc(instants, time.Time.Compare)
	floors := []time.Time{due, m.floor()}
	if !m.cancelRequested() {
		floors = append(floors, m.policy.StartsAt)
	}
	return slices.MaxFunc(floors, time.Time.Compare)
}

// A lifeWalk takes one instance on a random walk, as a queue with one instance
// would, and holds every step against the model.
type lifeWalk struct {
	*testing.T
	rng     *rand.Rand
	now     time.Time
	policy  LifecyclePolicy
	record  Record
	due     time.Time // zero: never
	pending []lifeWakeup
	sent    int
	model   lifeModel
}

type lifeWakeup struct {
	Wakeup
	dueAt time.Time
}

func TestRecordAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SUPERVISOR_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d; set SUPERVISOR_SEED to repeat", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	seen := make(map[Status]int)
	for life := range 400 {
		t.Run(fmt.Sprint("life ", life), func(t *testing.T) {
			walk := &lifeWalk{T: t, rng: rng, now: epoch, policy: randomPolicy(rng), record: NewRecord(epoch)}
			require.NoError(t, walk.policy.Validate())
			walk.model.policy = walk.policy
			walk.due = walk.record.NextDue(&walk.policy, epoch, time.Time{})
			require.Equal(t, walk.model.due(epoch), walk.due)
			for range 40 {
				walk.step()
				seen[walk.record.Status]++
			}
		})
	}
	for _, status := range []Status{StatusActive, StatusCompleted, StatusFailed, StatusCancelled} {
		require.NotZero(t, seen[status], "no life ever was %s", status)
	}
}

func randomPolicy(rng *rand.Rand) (p LifecyclePolicy) {
	often := func() bool { return rng.IntN(3) == 0 }
	if often() {
		p.StartsAt = epoch.Add(time.Duration(rng.IntN(10)) * time.Minute)
	}
	if often() {
		p.ExpiresAt = epoch.Add(time.Duration(10+rng.IntN(30)) * time.Minute)
		p.OnExpiry = []ExpiryPolicy{"", ExpiryDrain, ExpiryCancel}[rng.IntN(3)]
	}
	if often() {
		p.DrainDeadline = epoch.Add(time.Duration(40+rng.IntN(30)) * time.Minute)
	}
	if often() {
		p.EventIdleTimeout = time.Duration(1+rng.IntN(20)) * time.Minute
	}
	if often() {
		p.ProgressTimeout = time.Duration(1+rng.IntN(20)) * time.Minute
	}
	if often() {
		p.Completion.Kind = []CompletionKind{
			CompleteExplicitStop, CompleteFirstTrigger, CompleteFirstMatch, CompleteFirstActionTerminal, CompleteFirstSuccess,
			CompleteAfterMatchedEvaluations, CompleteAfterSuccessfulRuns,
		}[rng.IntN(7)]
		if p.Completion.Kind == CompleteAfterMatchedEvaluations || p.Completion.Kind == CompleteAfterSuccessfulRuns {
			p.Completion.N = 1 + rng.IntN(4)
		}
	}
	return p
}

func (w *lifeWalk) step() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(4)) * time.Minute)
	switch w.rng.IntN(10) {
	case 0:
		if w.rng.IntN(4) == 0 {
			w.cancel()
		}
	case 1:
		w.retry()
	case 2:
		w.resume()
	case 3, 4:
		w.deliver()
	default:
		w.evaluate()
	}
	require.Equal(w, w.model.record(), w.record)
}

func (w *lifeWalk) add(f lifeFact) {
	f.at = w.now
	w.model.history = append(w.model.history, f)
}

// pull brings the due time forward, as every queue does.
func (w *lifeWalk) pull(at time.Time) {
	due := w.record.NextDue(&w.policy, earlier(w.due, at), time.Time{})
	if w.record.Status == StatusActive {
		require.Equal(w, w.model.due(earlier(w.due, at)), due)
	} else {
		require.Zero(w, due)
	}
	w.due = due
}

func (w *lifeWalk) cancel() {
	wanted := w.model.status() == StatusFailed || w.model.status() == StatusActive && !w.model.cancelRequested()
	next, changed := w.record.AfterCancel(w.now)
	require.Equal(w, wanted, changed)
	if w.record = next; changed {
		w.add(lifeFact{kind: "cancel"})
		w.pull(w.now)
	}
}

func (w *lifeWalk) retry() {
	wanted := w.model.status() == StatusFailed || w.model.status() == StatusActive && w.model.attempt() > 0
	next, ok := w.record.AfterRetry()
	require.Equal(w, wanted, ok)
	if w.record = next; ok {
		w.add(lifeFact{kind: "retry"})
		w.pull(w.now)
	}
}

func (w *lifeWalk) resume() {
	wanted := w.model.status() == StatusActive && !w.model.floor().IsZero()
	next, lifted := w.record.AfterResume()
	require.Equal(w, wanted, lifted)
	if w.record = next; lifted {
		w.add(lifeFact{kind: "resume"})
		w.pull(w.firstDue(w.pending))
	}
}

func (w *lifeWalk) firstDue(wakeups []lifeWakeup) (first time.Time) {
	for n := range wakeups {
		first = earlier(first, wakeups[n].dueAt)
	}
	return first
}

func (w *lifeWalk) deliver() {
	if w.record.Status == StatusCompleted || w.record.Status == StatusCancelled {
		return
	}
	w.sent++
	kind := []string{"mail", "mail", WakeupKindTimer}[w.rng.IntN(3)]
	wakeup := lifeWakeup{Wakeup{ID: fmt.Sprint("w", w.sent), Kind: kind}, w.now.Add(time.Duration(w.rng.IntN(10)-3) * time.Minute)}
	w.pending = append(w.pending, wakeup)
	due := w.record.WakeupDue(&w.policy, wakeup.dueAt, w.now)
	if w.record.Status == StatusFailed {
		require.Zero(w, due, "it is kept and wakes nothing")
		return
	}
	require.False(w, due.Before(w.now))
	require.False(w, due.Before(w.model.floor()))
	w.due = earlier(w.due, due)
}

// evaluate claims the instance where it is due, and commits something.
func (w *lifeWalk) evaluate() {
	if w.due.IsZero() || w.due.After(w.now) {
		return
	}
	w.raise()
	item := &WorkItem{CancelRequested: w.record.CancelRequested}
	var claimed, left []lifeWakeup
	for _, wakeup := range w.pending {
		if wakeup.dueAt.After(w.now) {
			left = append(left, wakeup)
			continue
		}
		claimed = append(claimed, wakeup)
		item.Wakeups = append(item.Wakeups, wakeup.Wakeup)
	}
	w.now = w.now.Add(time.Duration(w.rng.IntN(2)) * time.Minute)

	fact := lifeFact{kind: "commit", disposition: w.disposition(), outcome: EvaluationOutcome{
		Triggered: w.rng.IntN(2) == 0, Matched: w.rng.IntN(4) == 0, Succeeded: w.rng.IntN(6) == 0, ActionTerminal: w.rng.IntN(8) == 0,
	}}
	command := &TransitionCommand{Disposition: fact.disposition, Outcome: fact.outcome}
	kept := left
	for _, wakeup := range claimed {
		if w.rng.IntN(2) == 0 && (!fact.failed() || fact.outcome.Triggered) {
			fact.consumed = append(fact.consumed, wakeup.Wakeup)
			command.ConsumedWakeups = append(command.ConsumedWakeups, wakeup.ID)
		} else {
			kept = append(kept, wakeup)
		}
	}
	w.add(fact)
	next, at := w.record.AfterCommit(&w.policy, item, command, w.now)
	w.record, w.pending = next, kept

	due := next.NextDue(&w.policy, at, w.firstDue(left))
	if next.Status != StatusActive {
		require.Zero(w, at)
		require.Zero(w, due)
		w.due = time.Time{}
		return
	}
	require.False(w, at.Before(w.now))
	instants := []time.Time{at}
	for n := range left {
		instants = append(instants, left[n].dueAt)
	}
	require.Equal(w, w.model.due(instants...), due)
	w.due = later(due, w.now)
}

// raise raises the timers that a claim finds passed.
func (w *lifeWalk) raise() {
	timers := w.model.timers()
	next, wakeups, cancel := w.policy.RaiseTimers(w.record, w.now)
	w.record = next
	cancelAt, mayCancel := timers["cancel"]
	require.Equal(w, mayCancel && !cancelAt.After(w.now), cancel)
	delete(timers, "cancel")
	for n := range wakeups {
		reason := wakeups[n].Wakeup.ID[len("lifecycle:"):]
		require.Contains(w, timers, reason)
		require.Equal(w, timers[reason], wakeups[n].DueAt)
		delete(timers, reason)
		w.pending = append(w.pending, lifeWakeup{wakeups[n].Wakeup, wakeups[n].DueAt})
		w.add(lifeFact{kind: "raise", reason: reason})
	}
	for reason, at := range timers {
		require.True(w, at.After(w.now), "%s was not raised", reason)
	}
	if cancel {
		w.add(lifeFact{kind: "cancel"})
	}
}

func (w *lifeWalk) disposition() Disposition {
	minutes := func() time.Duration { return time.Duration(w.rng.IntN(20)-5) * time.Minute }
	switch w.rng.IntN(20) {
	case 0:
		return Complete{}
	case 1:
		return Failed{Reason: "for good"}
	case 2, 3, 4, 5:
		return Failed{Reason: "again", RetryAt: w.now.Add(minutes())}
	case 6, 7, 8, 9, 10:
		return Reschedule{At: w.now.Add(minutes())}
	}
	return Continue{Delay: minutes()}
}
