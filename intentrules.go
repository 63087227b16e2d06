package supervisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// The rules change the record in place and report whether it came to an outcome
// that the instance is told of: the queue then stores [IntentRecord.Wakeup] in
// the same transaction, unless the instance is finished. After an error nothing
// is stored, except where a rule says otherwise.

// Admit decides about an intent that is due at now. A task other than "" means
// that it is handed out by [IntentRecord.Acquire]; with none it was settled,
// parked or had nothing to do, and is stored. slotFree is asked for an intent
// that only needs a slot.
func (r *IntentRecord) Admit(control *IntentControl, slotFree func() bool, now time.Time) (task IntentTask, told bool) {
	switch state := r.Intent.State; {
	case r.Waiting():
		if cause := r.refusal(control, slotFree, now); cause != "" {
			told = r.refuse(cause, now)
			if r.HoldsSlot() {
				return IntentTaskRecover, false
			}
			return "", told
		}
		if state == ActionAwaitingConfirmation {
			r.Parked, r.DueAt = NotParked, r.Intent.Deadline
			return "", false
		}
		return IntentTaskDispatch, false
	case state == ActionDispatchCommitted:
		return IntentTaskRecover, false
	case state == ActionExecuting && !r.ended():
		if r.late(now) && r.CancelRequestedAt.IsZero() {
			r.CancelRequestedAt = now
		}
		if r.cancelPending() {
			return IntentTaskCancel, false
		}
		return IntentTaskObserve, false
	case state == ActionExecuting, state == ActionUnknown && r.Receipt != nil:
		return IntentTaskObserve, false
	}
	r.DueAt = time.Time{}
	return "", false
}

// Acquire gives the intent a lease that ends after a duration.
func (r *IntentRecord) Acquire(worker string, lease time.Duration, now time.Time) {
	r.LeaseVersion++
	r.LeaseOwner = worker
	r.Parked = NotParked
	r.Extend(lease, now)
}

// Extend sets the end of the lease.
func (r *IntentRecord) Extend(lease time.Duration, now time.Time) {
	r.LeaseEndsAt = clampInstant(now.Add(lease))
	r.DueAt = r.LeaseEndsAt
}

// Mark decides whether the intent may be handed off at now by the holder of
// work, and marks it. With [ErrIntentRefused] the record has changed and is
// stored. A mark under the same lease again is nil and changes nothing.
func (r *IntentRecord) Mark(work *IntentWork, control *IntentControl, slotFree func() bool, now time.Time) (told bool, err error) {
	if !r.holds(work) {
		return false, r.errorf("mark of", ErrLeaseLost)
	}
	switch r.Intent.State {
	case ActionPrepared, ActionAuthorized, ActionRetryable:
	case ActionDispatchCommitted:
		if r.MarkedUnder == r.LeaseVersion {
			return false, nil
		}
		return false, r.errorf("mark of", ErrStateConflict)
	default:
		return false, r.errorf("mark of", ErrStateConflict)
	}
	if cause := r.refusal(control, slotFree, now); cause != "" {
		told = r.refuse(cause, now)
		return told, r.errorf("mark of", &IntentRefusedError{Cause: cause})
	}
	r.MarkNow(now)
	return false, nil
}

// MarkNow marks an intent that is leased and that [IntentRecord.Admit] gave out
// for dispatch in the same transaction.
func (r *IntentRecord) MarkNow(now time.Time) {
	r.Intent.State = ActionDispatchCommitted
	r.Attempt++
	r.MarkedAt, r.MarkedUnder = now, r.LeaseVersion
	r.Receipt, r.Looks = nil, 0
}

// refusal says why a waiting intent may not be handed off at now.
func (r *IntentRecord) refusal(control *IntentControl, slotFree func() bool, now time.Time) IntentCause {
	switch {
	case control.Paused:
		return CausePaused
	case control.stale(&r.Intent):
		return CauseStaleEpoch
	case r.late(now):
		return CauseDeadline
	case r.Intent.State != ActionAwaitingConfirmation && !slotFree():
		return CauseLimit
	}
	return ""
}

// refuse carries a refusal out.
func (r *IntentRecord) refuse(cause IntentCause, now time.Time) (told bool) {
	// Whoever had it before, under a lease that has ended, has it no longer: a mark
	// would be of an intent that nobody looks at.
	r.endLease()
	switch cause {
	case CausePaused:
		r.Parked, r.DueAt = ParkedByPause, time.Time{}
		return false
	case CauseLimit:
		r.Parked, r.DueAt = ParkedByLimit, r.Intent.Deadline
		return false
	}
	return r.withdraw(cause, now)
}

// withdraw ends an intent that waits for a hand-off. Where an attempt before may
// have had an effect nothing ends: it only is not to be repeated, and is in
// flight again until somebody finds out.
func (r *IntentRecord) withdraw(cause IntentCause, now time.Time) (told bool) {
	if r.Ambiguous == 0 {
		return r.settled(ActionRejected, OutcomeWithdrawn, cause, now)
	}
	r.Intent.State = ActionDispatchCommitted
	r.giveUp(now)
	return false
}

// giveUp asks for an end of a marked intent without another attempt.
func (r *IntentRecord) giveUp(now time.Time) {
	if r.CancelRequestedAt.IsZero() {
		r.CancelRequestedAt = now
	}
	r.Looks = 0
	r.Parked, r.DueAt = NotParked, now
	r.endLease()
}

// late reports whether the deadline has passed.
func (r *IntentRecord) late(now time.Time) bool {
	return !r.Intent.Deadline.IsZero() && !now.Before(r.Intent.Deadline)
}

// ended reports whether the receipt says that the work has ended.
func (r *IntentRecord) ended() bool { return r.Receipt != nil && r.Receipt.Terminal() }

// cancelPending reports whether a request to cancel is not acknowledged.
func (r *IntentRecord) cancelPending() bool {
	return !r.CancelRequestedAt.IsZero() && r.CancelAcknowledgedAt.IsZero()
}

// settled ends the intent, or sets its outcome to unknown.
func (r *IntentRecord) settled(state ActionState, outcome IntentOutcome, cause IntentCause, now time.Time) (told bool) {
	r.Intent.State, r.Outcome, r.Cause = state, outcome, cause
	r.Parked, r.DueAt = NotParked, time.Time{}
	r.endLease()
	if state.Terminal() {
		r.SettledAt = now
		r.Ambiguous = 0
	}
	return true
}

func (r *IntentRecord) endLease() { r.LeaseOwner, r.LeaseEndsAt = "", time.Time{} }

// retry lets the intent wait for its next attempt.
func (r *IntentRecord) retry(delay time.Duration, now time.Time) (told bool) {
	if !r.CancelRequestedAt.IsZero() {
		if r.Ambiguous != 0 {
			r.giveUp(now)
			return false
		}
		outcome, cause := OutcomeCancelled, CauseCancelled
		if r.Attempt == 0 {
			outcome = OutcomeWithdrawn
		}
		if r.late(r.CancelRequestedAt) {
			cause = CauseDeadline // which asked for it
		}
		return r.settled(r.known(ActionRejected), r.knownOutcome(outcome), cause, now)
	}
	r.Intent.State = ActionRetryable
	r.Outcome, r.Cause, r.Reason = "", "", ""
	r.Receipt, r.Looks = nil, 0
	r.Parked = NotParked
	r.DueAt = earlier(clampInstant(now.Add(delay)), r.Intent.Deadline)
	r.endLease()
	return false
}

// Accept takes the receipt of a hand-off from whoever has it. With
// [ErrReceiptConflict] the record has changed and is stored.
func (r *IntentRecord) Accept(work *IntentWork, receipt Receipt, now time.Time) (told bool, err error) {
	if err := receipt.Validate(); err != nil {
		return false, fmt.Errorf("%w: %w", ErrCommandRejected, err)
	}
	receipt.Reason = cleanReason(receipt.Reason)
	// Repeats under one key are one and the same work for the provider.
	if work.Attempt != r.Attempt && !(r.Repeatable() && work.Attempt > 0 && work.Attempt < r.Attempt) {
		return false, r.contradict(work, &receipt.Report, receipt.Reference, now)
	}
	holder := r.holds(work)
	switch state := r.Intent.State; {
	case state == ActionDispatchCommitted, state == ActionRetryable && r.Ambiguous != 0:
		r.Intent.State, r.Parked = ActionExecuting, NotParked
		r.Receipt, r.Looks, r.Diagnostic = receipt.clone(), 0, nil
	case r.Receipt != nil && (state == ActionExecuting || state == ActionUnknown):
		if !r.Receipt.agrees(&receipt) {
			return false, r.contradict(work, &receipt.Report, receipt.Reference, now)
		}
		if receipt.Terminal() && !r.Receipt.Terminal() {
			r.Receipt = receipt.clone()
		} else if !holder {
			return false, nil
		}
	case state == ActionExecuting, state == ActionUnknown:
		r.Receipt, r.Looks, r.Diagnostic = receipt.clone(), 0, nil
	case r.agreesWith(&receipt.Report):
		return false, nil
	default:
		return false, r.contradict(work, &receipt.Report, receipt.Reference, now)
	}
	r.Ambiguous = 0
	if r.Intent.State == ActionUnknown {
		switch r.Receipt.Status {
		case ProviderSucceeded, ProviderFailed, ProviderCancelled:
			return r.conclude(&r.Receipt.Report, now), nil
		}
	}
	if holder {
		r.endLease()
		r.DueAt = r.lookAt(r.Receipt.After, now)
	} else if !r.Leased(now) {
		r.DueAt = now
	}
	if r.Receipt.Terminal() && !r.Leased(now) {
		r.DueAt = now
	}
	return false, nil
}

// agrees reports whether two receipts can both be true of one piece of work.
func (r *Receipt) agrees(other *Receipt) bool {
	if r.Reference != other.Reference {
		return false
	}
	return !r.Terminal() || !other.Terminal() || r.same(&other.Report)
}

// same reports whether two terminal reports say the same.
func (r *Report) same(other *Report) bool {
	return r.Status == other.Status && sameJSON(r.Output, other.Output)
}

// sameJSON compares two texts as a store may have re-written them: white space
// and escapes aside. One left out is null.
func sameJSON(a, b json.RawMessage) bool {
	if len(a) == 0 {
		a = json.RawMessage("null")
	}
	if len(b) == 0 {
		b = json.RawMessage("null")
	}
	if bytes.Equal(a, b) {
		return true
	}
	left, leftErr := json.Marshal(a)
	right, rightErr := json.Marshal(b)
	return leftErr == nil && rightErr == nil && bytes.Equal(left, right)
}

// agreesWith reports whether a late report says no other than what is stored of
// an intent that is not in flight.
func (r *IntentRecord) agreesWith(report *Report) bool {
	if r.Intent.State == ActionRetryable {
		return report.Status == ProviderRetryable
	}
	switch report.Status {
	case ProviderSucceeded:
		return r.Outcome == OutcomeSucceeded && sameJSON(r.Output, report.Output)
	case ProviderFailed:
		return r.Outcome == OutcomeFailed
	case ProviderRetryable, ProviderCancelled:
		return r.Outcome == OutcomeCancelled || r.Outcome == OutcomeFailed
	}
	// That it was accepted contradicts only that it never was.
	return r.Outcome == OutcomeSucceeded || r.Intent.State.Terminal() && r.Receipt != nil
}

// conclude settles by a report that is terminal and not retryable.
func (r *IntentRecord) conclude(report *Report, now time.Time) (told bool) {
	state, outcome := ActionRejected, OutcomeFailed
	switch report.Status {
	case ProviderSucceeded:
		state, outcome = ActionSucceeded, OutcomeSucceeded
		r.Output = bytes.Clone(report.Output)
	case ProviderCancelled:
		outcome = OutcomeCancelled
	}
	r.Reason = cleanReason(report.Reason)
	return r.settled(r.known(state), r.knownOutcome(outcome), CauseReported, now)
}

// known is the terminal state that an intent takes: one whose outcome was
// unknown is reconciled, with a success or a failure.
func (r *IntentRecord) known(state ActionState) ActionState {
	if r.Intent.State == ActionUnknown {
		return ActionReconciled
	}
	return state
}

func (r *IntentRecord) knownOutcome(outcome IntentOutcome) IntentOutcome {
	if r.Intent.State == ActionUnknown && outcome != OutcomeSucceeded {
		return OutcomeFailed
	}
	return outcome
}

// contradict keeps what contradicts the record as evidence.
func (r *IntentRecord) contradict(work *IntentWork, report *Report, reference string, now time.Time) error {
	evidence := Evidence{At: now, Worker: work.LeaseOwner, Attempt: work.Attempt, Status: report.Status, Reference: reference}
	if len(report.Output) > 0 {
		digest := sha256.Sum256(report.Output)
		evidence.OutputDigest = hex.EncodeToString(digest[:])
	}
	if len(r.Evidence) >= MaxEvidence {
		r.Evidence = r.Evidence[len(r.Evidence)-MaxEvidence+1:]
	}
	r.Evidence = append(r.Evidence, evidence)
	return r.errorf("receipt of", ErrReceiptConflict)
}

// Settle stores an outcome from the holder of the lease. An agreeing repeat of a
// terminal outcome is nil and changes nothing, from whoever it comes; with
// [ErrReceiptConflict] the record has changed and is stored.
//
// An intent that is not [IntentRecord.Repeatable] becomes retryable only with a
// proof that the attempt before had no effect: else it is [ErrStateConflict]. A
// proof about the latest attempt says nothing of an ambiguous one before it: such
// an intent is not rejected but becomes unknown.
func (r *IntentRecord) Settle(work *IntentWork, s *Settlement, now time.Time) (told bool, err error) {
	if err := s.Validate(); err != nil {
		return false, fmt.Errorf("%w: %w", ErrCommandRejected, err)
	}
	if r.Intent.State.Terminal() {
		report := s.report()
		switch {
		case !report.Terminal() || work.Attempt != r.Attempt && !r.Repeatable():
			return false, r.errorf("settlement of", ErrLeaseLost)
		case r.agreesWith(&report):
			return false, nil
		}
		return false, r.contradict(work, &report, s.reference(), now)
	}
	if !r.holds(work) || work.Attempt != r.Attempt {
		return false, r.errorf("settlement of", ErrLeaseLost)
	}
	if !r.mayBecome(s) || r.Receipt != nil && work.Receipt == nil && s.State != ActionSucceeded {
		return false, r.errorf(fmt.Sprintf("settlement as %s from %s of", s.State, r.Intent.State), ErrStateConflict)
	}
	if r.ended() && !r.Receipt.allows(s) || r.ended() && s.State == ActionSucceeded && !sameJSON(r.Receipt.Output, s.Output) {
		report := s.report()
		return false, r.contradict(work, &report, s.reference(), now)
	}
	if s.Receipt != nil {
		if r.Receipt != nil && !r.Receipt.agrees(s.Receipt) {
			return false, r.contradict(work, &s.Receipt.Report, s.Receipt.Reference, now)
		}
		r.Receipt = s.Receipt.clone()
	}
	r.noteTrouble(s.Diagnostic, now)
	proven := r.proven(s.Proof)
	switch {
	case proven:
		r.Ambiguous = 0
	case s.State == ActionRetryable && !r.harmless() && r.Ambiguous == 0:
		r.Ambiguous = r.Attempt
	}
	switch s.State {
	case ActionRetryable:
		if r.Ambiguous != 0 && !work.CancelRequestedAt.IsZero() {
			// It knew of the request and still found no more.
			return r.settled(ActionUnknown, OutcomeUnknown, CauseAmbiguous, now), nil
		}
		return r.retry(s.Delay, now), nil
	case ActionUnknown:
		r.Reason = cleanReason(s.Reason)
		return r.settled(ActionUnknown, OutcomeUnknown, s.Cause, now), nil
	case ActionSucceeded:
		r.Output, r.Reason = bytes.Clone(s.Output), ""
		return r.settled(r.known(ActionSucceeded), OutcomeSucceeded, s.Cause, now), nil
	}
	r.Reason = cleanReason(s.Reason)
	if !proven && !r.harmless() {
		return r.settled(ActionUnknown, OutcomeUnknown, CauseAmbiguous, now), nil
	}
	return r.settled(r.known(ActionRejected), r.knownOutcome(s.Outcome), s.Cause, now), nil
}

// proven reports whether a proof shows that no attempt had an effect.
func (r *IntentRecord) proven(proof IntentProof) bool {
	switch proof {
	case ProofReported:
		return true
	case ProofNotAccepted:
		return r.Ambiguous == 0 || r.Ambiguous == r.Attempt
	case ProofNotSent:
		// Only who made the only call of an attempt knows that nothing was sent.
		return r.Ambiguous == 0 && (r.Waiting() || r.MarkedUnder == r.LeaseVersion)
	}
	return false
}

// mayBecome reports whether the state machine and the proof allow a settlement.
func (r *IntentRecord) mayBecome(s *Settlement) bool {
	next := s.State
	if next.Terminal() {
		next = r.known(next)
	}
	if !r.Intent.State.CanTransitionTo(next) {
		return false
	}
	switch {
	case s.State == ActionSucceeded || s.State == ActionUnknown || r.proven(s.Proof) || r.harmless():
		// Of what changes nothing it does not matter whether it happened.
		return true
	case r.Intent.State == ActionUnknown:
		return false
	case s.State == ActionRetryable:
		return r.Repeatable()
	}
	// Without a full proof it becomes unknown, which only the marked can.
	return s.Proof != "" && r.HoldsSlot()
}

// allows reports whether a settlement follows from a report.
func (r *Report) allows(s *Settlement) bool {
	switch r.Status {
	case ProviderSucceeded:
		return s.State == ActionSucceeded
	case ProviderFailed:
		return s.State == ActionRejected && s.Outcome == OutcomeFailed
	case ProviderCancelled:
		return s.State == ActionRejected && s.Outcome == OutcomeCancelled
	case ProviderRetryable:
		return s.State == ActionRetryable || s.State == ActionRejected
	}
	return true
}

// report is what a settlement says in a provider's words.
func (s *Settlement) report() Report {
	switch {
	case s.State == ActionSucceeded:
		return Report{Status: ProviderSucceeded, Output: s.Output}
	case s.State == ActionRejected && s.Outcome == OutcomeCancelled:
		return Report{Status: ProviderCancelled}
	case s.State == ActionRejected:
		return Report{Status: ProviderFailed}
	}
	return Report{}
}

func (s *Settlement) reference() string {
	if s.Receipt == nil {
		return ""
	}
	return s.Receipt.Reference
}

// noteTrouble keeps the latest diagnostic.
func (r *IntentRecord) noteTrouble(d *Diagnostic, now time.Time) {
	if d == nil {
		r.Diagnostic = nil
		return
	}
	noted := *d
	noted.At = now
	r.Diagnostic = &noted
}

// Release ends the lease of its holder without an outcome and sets when the
// intent is due again.
func (r *IntentRecord) Release(work *IntentWork, release *IntentRelease, now time.Time) (told bool, err error) {
	if err := release.Validate(); err != nil {
		return false, fmt.Errorf("%w: %w", ErrCommandRejected, err)
	}
	if !r.holds(work) {
		return false, r.errorf("release of", ErrLeaseLost)
	}
	if release.NotHandedOff && r.Intent.State == ActionDispatchCommitted {
		if r.MarkedUnder != r.LeaseVersion || r.Receipt != nil {
			return false, r.errorf("release as not handed off of", ErrStateConflict)
		}
		r.Attempt--
		r.MarkedAt, r.MarkedUnder = time.Time{}, 0
		r.noteTrouble(release.Diagnostic, now)
		return r.retry(release.After, now), nil
	}
	r.noteTrouble(release.Diagnostic, now)
	r.endLease()
	if r.Waiting() {
		r.DueAt = earlier(clampInstant(now.Add(release.After)), r.Intent.Deadline)
		return false, nil
	}
	if release.CancelAcknowledged && r.cancelPending() {
		r.CancelAcknowledgedAt = now
	}
	r.DueAt = r.lookAt(release.After, now)
	switch {
	case release.After > 0:
		// Somebody knows when to look: what fails afterwards begins anew.
		r.Looks = 0
	case r.Looks < maxLooks:
		r.Looks++
	}
	if r.cancelPending() && work.CancelRequestedAt.IsZero() || r.Receipt != nil && work.Receipt == nil || r.ended() && !work.ended() {
		r.DueAt = now // there is something new to do
	}
	return false, nil
}

// The rhythm of looks at work that says nothing of its own.
const (
	firstLook = time.Second
	lastLook  = time.Minute
	maxLooks  = 1 << 30
)

// lookAt is when to look at an intent again: after what was asked for, else in a
// growing rhythm; a deadline that is still ahead is not slept through.
func (r *IntentRecord) lookAt(after time.Duration, now time.Time) time.Time {
	if after <= 0 {
		after = growingDelay(firstLook, lastLook, r.Looks)
	}
	at := clampInstant(now.Add(after))
	if r.CancelRequestedAt.IsZero() && r.Intent.Deadline.After(now) {
		at = earlier(at, r.Intent.Deadline)
	}
	return at
}

// RequestCancel is part of Cancel of the instance: an intent that waits for a
// hand-off is withdrawn; for one in flight the request is recorded, and repeated
// until the provider acknowledges it.
func (r *IntentRecord) RequestCancel(now time.Time) (told bool) {
	switch {
	case r.Waiting():
		return r.withdraw(CauseCancelled, now)
	case r.Intent.State == ActionUnknown && r.CancelRequestedAt.IsZero():
		r.CancelRequestedAt = now // so that nobody allows a repeat any more
	case r.HoldsSlot() && r.CancelRequestedAt.IsZero():
		r.CancelRequestedAt, r.Looks = now, 0
		if !r.Leased(now) {
			r.DueAt = now
		}
	}
	return false
}

// Unpark makes an intent due that waits for a hand-off: what it was parked for
// has passed, or an epoch may have gone stale. The queue calls it for the intents
// of a scope that is resumed, also those not parked, and for as many as slots
// came free.
func (r *IntentRecord) Unpark(now time.Time) {
	if r.Waiting() && !r.Leased(now) {
		r.Parked, r.DueAt = NotParked, now
	}
}

// Confirm authorizes an intent that awaits confirmation. Again is nil and
// changes nothing.
func (r *IntentRecord) Confirm(by string, now time.Time) error {
	if err := checkID("by", by); err != nil {
		return fmt.Errorf("supervisor: confirm intent: %w", err)
	}
	switch {
	case r.Intent.State == ActionAwaitingConfirmation:
		r.Intent.State = ActionAuthorized
		r.Intent.Confirmation = &Confirmation{By: by, At: now}
		r.Parked, r.DueAt = NotParked, now
		return nil
	case r.Intent.Confirmation != nil && r.Cause != CauseDenied:
		return nil
	}
	return r.errorf("confirmation of", ErrIntentConflict)
}

// Deny settles an intent that awaits confirmation. Again is nil and changes
// nothing.
func (r *IntentRecord) Deny(by, reason string, now time.Time) (told bool, err error) {
	if err := checkID("by", by); err != nil {
		return false, fmt.Errorf("supervisor: reject intent: %w", err)
	}
	switch {
	case r.Intent.State == ActionAwaitingConfirmation:
		r.Intent.Confirmation = &Confirmation{By: by, At: now}
		r.Reason = cleanReason(reason)
		return r.settled(ActionRejected, OutcomeWithdrawn, CauseDenied, now), nil
	case r.Cause == CauseDenied:
		return false, nil
	}
	return false, r.errorf("rejection of", ErrIntentConflict)
}

// Resolve takes an operator's answer for an unknown outcome. The latest answer
// again is nil and changes nothing.
func (r *IntentRecord) Resolve(by string, resolution *IntentResolution, now time.Time) (told bool, err error) {
	if err := checkID("by", by); err != nil {
		return false, fmt.Errorf("supervisor: resolve intent: %w", err)
	}
	if err := resolution.Validate(); err != nil {
		return false, err
	}
	if r.Intent.State != ActionUnknown || resolution.Attempt != 0 && resolution.Attempt != r.Attempt {
		if r.Resolved.repeats(resolution) {
			return false, nil
		}
		return false, r.errorf("resolution of", ErrIntentConflict)
	}
	r.Ambiguous = 0
	stored := *resolution
	stored.Attempt = r.Attempt
	stored.Output = bytes.Clone(resolution.Output)
	stored.Reason = cleanReason(resolution.Reason)
	r.Resolved = &ResolvedIntent{IntentResolution: stored, By: by, At: now}
	switch resolution.Kind {
	case ResolveRepeat:
		return r.retry(0, now), nil
	case ResolveSucceeded:
		r.Output, r.Reason = bytes.Clone(resolution.Output), ""
		return r.settled(ActionReconciled, OutcomeSucceeded, CauseResolved, now), nil
	}
	r.Reason = stored.Reason
	return r.settled(ActionReconciled, OutcomeFailed, CauseResolved, now), nil
}

// repeats reports whether an answer is the stored one again.
func (r *ResolvedIntent) repeats(resolution *IntentResolution) bool {
	return r != nil && r.Kind == resolution.Kind && sameJSON(r.Output, resolution.Output) &&
		r.Reason == cleanReason(resolution.Reason) && (resolution.Attempt == 0 || resolution.Attempt == r.Attempt)
}

func (r *IntentRecord) errorf(what string, err error) error {
	return fmt.Errorf("supervisor: %s intent %q of instance %q of tenant %q: %w", what,
		shorten(r.Intent.ID), shorten(r.Intent.InstanceID), shorten(r.Intent.TenantID), err)
}
