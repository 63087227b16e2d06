package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An intentWalk takes one intent on a random walk: a queue that obeys the rules,
// dispatchers that stall, crash and come back, operators, and a provider that
// never lies. What really happened is known to the walk, never to the rules.
type intentWalk struct {
	*testing.T
	rng     *rand.Rand
	now     time.Time
	record  IntentRecord
	control IntentControl
	free    bool
	works   []*IntentWork // all that was ever handed out
	log     []string

	// effects are what the hand-offs came to, by attempt from 1.
	effects []walkEffect
	// risked: an operator allowed a repeat or decided, so that the truth is theirs.
	risked   bool
	told     []string
	settled  bool
	terminal IntentRecord
}

// walkEffect is what one hand-off came to.
type walkEffect struct {
	called bool
	// refused: nothing came of it and whoever called knows. accepted: work
	// began, which ends with status. Neither: it got lost on its way.
	refused, accepted bool
	status            ProviderStatus
	// under is the lease version of the call.
	under int64
	// proven: the record knows that it had no effect.
	proven bool
}

func (w *intentWalk) native() bool   { return w.record.Intent.RetryClass == IdempotencyNative }
func (w *intentWalk) harmless() bool { return w.record.harmless() }

// happened counts effects in the world; those under one native key are one.
func (w *intentWalk) happened() (count int) {
	for _, e := range w.effects {
		if e.accepted && e.status == ProviderSucceeded {
			count++
		}
	}
	if w.native() {
		count = min(count, 1)
	}
	return count
}

func (w *intentWalk) notef(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *intentWalk) failf(format string, args ...any) {
	w.Helper()
	require.Fail(w.T, fmt.Sprintf(format, args...), "after:\n\t%s\nrecord: %+v\nworld: %+v",
		strings.Join(w.log, "\n\t"), w.record, w.effects)
}

// pick returns a work, the latest more often than others; nil for none.
func (w *intentWalk) pick() *IntentWork {
	if len(w.works) == 0 {
		return nil
	}
	if w.rng.IntN(4) > 0 {
		return w.works[len(w.works)-1]
	}
	return w.works[w.rng.IntN(len(w.works))]
}

// effect is what the hand-off of a work came to, nil where there was none.
func (w *intentWalk) effect(work *IntentWork) *walkEffect {
	if work.Attempt == 0 || work.Attempt > len(w.effects) {
		return nil
	}
	return &w.effects[work.Attempt-1]
}

// call hands off what is marked: the world decides.
func (w *intentWalk) call(work *IntentWork) {
	e := w.effect(work)
	e.called, e.under = true, work.LeaseVersion
	if w.native() {
		// Work under the key is the same work, unless it ended to be tried again
		// and this is the next attempt.
		for n, other := range slices.Backward(w.effects) {
			if other.accepted && (other.status != ProviderRetryable || n >= work.Attempt) {
				e.accepted, e.status = true, other.status
				return
			}
		}
	}
	switch w.rng.IntN(4) {
	case 0:
		e.refused = true
	case 1, 2:
		e.accepted = true
		e.status = []ProviderStatus{ProviderSucceeded, ProviderSucceeded, ProviderFailed, ProviderRetryable, ProviderCancelled}[w.rng.IntN(5)]
	}
}

// report is a true report about accepted work, terminal or not.
func (w *intentWalk) report(e *walkEffect) Report {
	if w.rng.IntN(3) == 0 {
		return Report{}
	}
	report := Report{Status: e.status}
	if e.status == ProviderSucceeded {
		report.Output = json.RawMessage(`{"n":1}`)
	}
	return report
}

// outcome is the settlement that a true report leads to.
func (w *intentWalk) outcome(report Report) Settlement {
	switch report.Status {
	case ProviderSucceeded:
		return Settlement{State: ActionSucceeded, Output: report.Output, Proof: ProofReported}
	case ProviderFailed:
		return Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofReported}
	case ProviderCancelled:
		return Settlement{State: ActionRejected, Outcome: OutcomeCancelled, Proof: ProofReported}
	}
	if w.rng.IntN(3) == 0 {
		return Settlement{State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseAttempts, Proof: ProofReported}
	}
	return Settlement{State: ActionRetryable, Proof: ProofReported}
}

// settlement is what an honest dispatcher could say of a work.
func (w *intentWalk) settlement(work *IntentWork) Settlement {
	guess := []Settlement{
		{State: ActionUnknown, Cause: CauseAmbiguous},
		{State: ActionRetryable},
		{State: ActionRejected, Outcome: OutcomeCancelled},
	}[w.rng.IntN(3)]
	e := w.effect(work)
	if e == nil {
		return guess
	}
	switch {
	case e.accepted && w.rng.IntN(3) > 0:
		if report := w.report(e); report.Terminal() {
			return w.outcome(report)
		}
	case e.called && e.refused && e.under == work.LeaseVersion:
		if w.rng.IntN(2) == 0 {
			return Settlement{State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseRefused, Proof: ProofNotSent}
		}
		return Settlement{State: ActionRetryable, Proof: ProofNotSent}
	case !e.accepted && e.called && w.rng.IntN(2) == 0:
		// A reconciler's final answer.
		if w.rng.IntN(3) == 0 {
			return Settlement{State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseAttempts, Proof: ProofNotAccepted}
		}
		return Settlement{State: ActionRetryable, Proof: ProofNotAccepted}
	}
	return guess
}

func (w *intentWalk) step() {
	w.now = w.now.Add([]time.Duration{0, 1, time.Second, 40 * time.Second}[w.rng.IntN(4)])
	before := w.record.Clone()
	told, err := w.act()
	stored := err == nil || errors.Is(err, ErrIntentRefused) || errors.Is(err, ErrReceiptConflict)
	if !stored {
		if !w.equal(&before, &w.record) {
			w.failf("an error that stores nothing changed the record: %v, before: %+v", err, before)
		}
		if told {
			w.failf("an error tells the instance: %v", err)
		}
	}
	w.check(&before, told)
}

func (w *intentWalk) equal(a, b *IntentRecord) bool {
	left, err := json.Marshal(a)
	require.NoError(w.T, err)
	right, err := json.Marshal(b)
	require.NoError(w.T, err)
	return string(left) == string(right)
}

// act makes one random call.
func (w *intentWalk) act() (told bool, err error) {
	r, work := &w.record, w.pick()
	switch w.rng.IntN(16) {
	case 0, 1, 2, 3, 4:
		return w.claim()
	case 5, 6:
		if work == nil {
			return false, nil
		}
		return w.mark(work)
	case 7:
		e := (*walkEffect)(nil)
		if work != nil {
			e = w.effect(work)
		}
		if e == nil || !e.accepted {
			return false, nil
		}
		receipt := Receipt{Reference: w.reference(work), Report: w.report(e)}
		told, err := r.Accept(work, receipt, w.now)
		w.notef("receipt %q of attempt %d, lease %d: %v", receipt.Status, work.Attempt, work.LeaseVersion, err)
		return told, err
	case 8, 9, 10:
		if work == nil {
			return false, nil
		}
		settlement := w.settlement(work)
		told, err := r.Settle(work, &settlement, w.now)
		w.notef("settlement %s %q of attempt %d, lease %d: %v", settlement.State, settlement.Proof, work.Attempt, work.LeaseVersion, err)
		return told, err
	case 11:
		if work == nil {
			return false, nil
		}
		e := w.effect(work)
		release := &IntentRelease{NotHandedOff: e == nil || !e.called, CancelAcknowledged: w.rng.IntN(3) == 0}
		told, err := r.Release(work, release, w.now)
		w.notef("release, not handed off %v, of attempt %d, lease %d: %v", release.NotHandedOff, work.Attempt, work.LeaseVersion, err)
		if err == nil && w.record.Attempt < len(w.effects) {
			w.effects = w.effects[:w.record.Attempt]
			// Whoever held the mark that was taken back never calls.
			w.works = slices.DeleteFunc(w.works, func(work *IntentWork) bool { return work.Attempt > w.record.Attempt })
		}
		return told, err
	case 12:
		return w.operate()
	case 13:
		switch w.rng.IntN(8) {
		case 0:
			w.notef("cancel")
			w.control.Epochs.Instance++
			return r.RequestCancel(w.now), nil
		case 1:
			w.notef("stale")
			w.control.Epochs.Resource++
		case 2, 3, 4:
			w.control.Paused = !w.control.Paused
			w.notef("paused %v", w.control.Paused)
			if !w.control.Paused {
				r.Unpark(w.now)
			}
		default:
			w.free = !w.free
			w.notef("free %v", w.free)
			if w.free {
				r.Unpark(w.now)
			}
		}
	case 14:
		if work != nil && work.LeaseVersion == r.LeaseVersion && r.Leased(w.now) {
			r.Extend(time.Minute, w.now)
		}
	case 15:
		// The dispatcher that marked calls at last, however late.
		if work != nil {
			if e := w.effect(work); e != nil && !e.called && work.Intent.State == ActionDispatchCommitted {
				w.late(work, e)
			}
		}
	}
	return false, nil
}

// late calls for an attempt whose mark may be long ago. A provider that said
// finally that it never accepted it refuses it.
func (w *intentWalk) late(work *IntentWork, e *walkEffect) {
	if e.proven {
		e.called, e.refused = true, true
		return
	}
	w.call(work)
	w.notef("call of attempt %d: %+v", work.Attempt, *e)
}

func (w *intentWalk) reference(work *IntentWork) string {
	if w.native() {
		return "" // of the key
	}
	return strconv.Itoa(work.Attempt)
}

func (w *intentWalk) claim() (told bool, err error) {
	r := &w.record
	if r.DueAt.IsZero() || r.DueAt.After(w.now) {
		return false, nil
	}
	task, told := r.Admit(&w.control, func() bool { return w.free }, w.now)
	w.notef("claim: %q, now %s, parked %q", task, r.Intent.State, r.Parked)
	if task == "" {
		if !r.DueAt.IsZero() && !r.DueAt.After(w.now) {
			w.failf("what was not handed out is still due")
		}
		return told, nil
	}
	r.Acquire("d", time.Minute, w.now)
	if task == IntentTaskDispatch && r.Repeatable() && w.rng.IntN(2) == 0 {
		w.marked(r.Attempt)
		r.MarkNow(w.now)
	}
	w.works = append(w.works, &IntentWork{IntentRecord: r.Clone(), Task: task, ClaimedAt: w.now})
	return told, nil
}

func (w *intentWalk) mark(work *IntentWork) (told bool, err error) {
	r := &w.record
	before := r.Clone()
	told, err = r.Mark(work, &w.control, func() bool { return w.free }, w.now)
	w.notef("mark under lease %d: %v", work.LeaseVersion, err)
	if err != nil {
		return told, err
	}
	if r.Attempt == before.Attempt {
		return told, nil // again
	}
	switch {
	case w.control.Paused, !w.free, w.control.stale(&r.Intent), r.late(w.now):
		w.failf("a mark was set that nothing allowed")
	}
	w.marked(before.Attempt)
	w.works = append(w.works, &IntentWork{IntentRecord: r.Clone(), Task: work.Task})
	return told, nil
}

// marked checks the rule above all others.
func (w *intentWalk) marked(before int) {
	if before != len(w.effects) {
		w.failf("attempt %d follows after %d hand-offs", before+1, len(w.effects))
	}
	w.effects = append(w.effects, walkEffect{})
	if w.record.Repeatable() || w.risked {
		return
	}
	for n, e := range w.effects[:before] {
		if !e.proven {
			w.failf("attempt %d may have had an effect and another one is sent", n+1)
		}
	}
}

// operate lets a human answer.
func (w *intentWalk) operate() (told bool, err error) {
	r := &w.record
	switch w.rng.IntN(4) {
	case 0, 1:
		return false, r.Confirm("me", w.now)
	case 2:
		if w.rng.IntN(4) > 0 {
			return false, nil
		}
		return r.Deny("me", "no", w.now)
	}
	if w.rng.IntN(3) > 0 {
		return false, nil
	}
	resolution := &IntentResolution{
		Kind:    []IntentResolutionKind{ResolveSucceeded, ResolveFailed, ResolveRepeat, ResolveRepeat}[w.rng.IntN(4)],
		Attempt: w.rng.IntN(3),
	}
	was := r.Intent.State
	told, err = r.Resolve("me", resolution, w.now)
	w.notef("resolved as %s: %v", resolution.Kind, err)
	if err == nil && was == ActionUnknown && r.Intent.State != ActionUnknown {
		w.risked = true
	}
	return told, err
}

// check holds a step against what must be true whatever happens.
func (w *intentWalk) check(before *IntentRecord, told bool) {
	r := &w.record
	from, to := before.Intent.State, r.Intent.State
	if from != to && !from.CanTransitionTo(to) && !slices.ContainsFunc(allActionStates, func(between ActionState) bool {
		return from.CanTransitionTo(between) && between.CanTransitionTo(to)
	}) {
		w.failf("moved from %s to %s", from, to)
	}
	if w.settled {
		kept := w.terminal.Clone()
		kept.Evidence = r.Evidence
		if !w.equal(&kept, r) {
			w.failf("a settled intent has changed, from %+v", w.terminal)
		}
	}
	// A proof is about the attempts that were made until it came.
	if from != to && (to == ActionRetryable || to == ActionRejected || to == ActionReconciled) && r.Ambiguous == 0 && from != ActionUnknown || to == ActionRetryable && from == ActionUnknown {
		for n := range w.effects {
			if r.Ambiguous == 0 || n+1 < r.Ambiguous {
				w.effects[n].proven = true
			}
		}
	}
	if told != (from != to && (to.Terminal() || to == ActionUnknown)) {
		w.failf("moved from %s to %s, told %v", from, to, told)
	}
	if told {
		wakeup, err := r.Wakeup()
		require.NoError(w.T, err)
		if slices.Contains(w.told, wakeup.ID) {
			w.failf("told again: %s", wakeup.ID)
		}
		w.told = append(w.told, wakeup.ID)
		result, err := ParseActionResult(&wakeup)
		require.NoError(w.T, err)
		require.Equal(w.T, r.Outcome, result.Outcome)
	}
	switch {
	case to.Terminal() && (!r.DueAt.IsZero() || !r.LeaseEndsAt.IsZero() || r.SettledAt.IsZero() || r.Outcome == ""):
		w.failf("a settled intent has something to do")
	case !to.Terminal() && !r.SettledAt.IsZero():
		w.failf("an intent that is not settled says so")
	case r.Leased(w.now) && !r.DueAt.Equal(r.LeaseEndsAt):
		w.failf("an intent under a lease is due at another time than its end")
	case r.Parked != NotParked && !r.Waiting():
		w.failf("an intent is parked that does not wait")
	case r.HoldsSlot() && r.DueAt.IsZero():
		w.failf("an intent in flight is never looked at again")
	case len(r.Evidence) > MaxEvidence:
		w.failf("%d contradictions are kept", len(r.Evidence))
	case w.record.Intent.State == ActionRetryable && r.Ambiguous != 0 && !r.Repeatable():
		w.failf("ambiguous, and to be sent again")
	}
	if !w.settled && to.Terminal() {
		w.settled, w.terminal = true, r.Clone()
		w.judge()
	}
	if n := w.happened(); n > 1 && !w.risked && !w.harmless() {
		w.failf("the effect happened %d times", n)
	}
}

// judge holds the outcome against what really happened.
func (w *intentWalk) judge() {
	if w.risked || w.harmless() {
		return
	}
	happened := w.happened() > 0
	if w.record.Outcome == OutcomeSucceeded != happened {
		w.failf("the outcome is %s, the effect happened: %v", w.record.Outcome, happened)
	}
	// Nor will it: no call of it is still on its way, unless that would find the
	// work that there was under its key.
	if w.native() && slices.ContainsFunc(w.effects, func(e walkEffect) bool { return e.accepted }) {
		return
	}
	for n, e := range w.effects {
		if !e.called && w.record.Outcome != OutcomeSucceeded && !e.proven {
			w.failf("attempt %d may still be handed off", n+1)
		}
	}
}

func TestIntentRulesOnRandomWalks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SUPERVISOR_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d; set SUPERVISOR_SEED to repeat", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	walks := 500
	if testing.Short() {
		walks = 100
	}
	ended := make(map[ActionState]int)
	attempts := 0
	for range walks {
		intent := ruleRecord(ActionPrepared).Intent
		intent.Effect = []Effect{EffectPure, EffectExternalWrite, EffectExternalWrite, EffectFunds}[rng.IntN(4)]
		intent.RetryClass = []IdempotencyMode{
			IdempotencyNone, IdempotencyNative, IdempotencyNative, IdempotencyReconcileBeforeRetry, IdempotencyNeverAutomaticRetry,
		}[rng.IntN(5)]
		intent.RequiresConfirmation = rng.IntN(3) == 0
		if rng.IntN(3) == 0 {
			intent.Deadline = epoch.Add(time.Duration(rng.IntN(600)) * time.Second)
		}
		walk := &intentWalk{T: t, rng: rng, now: epoch, record: NewIntentRecord(intent, epoch), control: *ruleControl(), free: true}
		for range 120 {
			walk.step()
		}
		ended[walk.record.Intent.State]++
		attempts = max(attempts, walk.record.Attempt)
	}
	t.Log(ended, attempts)
	if !testing.Short() {
		for _, state := range []ActionState{ActionSucceeded, ActionRejected, ActionUnknown, ActionReconciled} {
			require.NotZero(t, ended[state], "no walk ended as %s", state)
		}
		require.Greater(t, attempts, 2)
	}
}
