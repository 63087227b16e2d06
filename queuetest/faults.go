package queuetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Op names an operation of a queue by its method.
type Op string

// The operations that can be made to fail.
const (
	OpClaimDue        Op = "ClaimDue"
	OpLoadRevision    Op = "LoadRevision"
	OpAdmitEvaluation Op = "AdmitEvaluation"
	OpRenew           Op = "Renew"
	OpCommitCommand   Op = "CommitCommand"
	OpCommitAndKeep   Op = "CommitAndKeep"
	OpRelease         Op = "Release"
	OpWaitDue         Op = "WaitDue"
	OpStart           Op = "Start"
	OpDeliver         Op = "Deliver"
	OpCancel          Op = "Cancel"
	OpPause           Op = "Pause"
	OpResume          Op = "Resume"
	OpRetry           Op = "Retry"
	OpPublishRevision Op = "PublishRevision"
	OpGet             Op = "Get"
	OpList            Op = "List"
	OpHistory         Op = "History"
	OpExplain         Op = "Explain"
	OpPrune           Op = "Prune"

	OpClaimIntents  Op = "ClaimIntents"
	OpRenewIntent   Op = "RenewIntent"
	OpMarkIntent    Op = "MarkIntent"
	OpRecordReceipt Op = "RecordReceipt"
	OpSettleIntent  Op = "SettleIntent"
	OpReleaseIntent Op = "ReleaseIntent"
	OpWaitIntents   Op = "WaitIntents"
	OpConfirmIntent Op = "ConfirmIntent"
	OpRejectIntent  Op = "RejectIntent"
	OpResolveIntent Op = "ResolveIntent"
	OpListIntents   Op = "ListIntents"
	OpLimitIntents  Op = "LimitIntents"
)

func ops() []Op {
	return []Op{
		OpClaimDue, OpLoadRevision, OpAdmitEvaluation, OpRenew, OpCommitCommand, OpCommitAndKeep, OpRelease, OpWaitDue,
		OpStart, OpDeliver, OpCancel, OpPause, OpResume, OpRetry, OpPublishRevision, OpGet, OpList, OpHistory, OpExplain, OpPrune,
		OpClaimIntents, OpRenewIntent, OpMarkIntent, OpRecordReceipt, OpSettleIntent, OpReleaseIntent, OpWaitIntents,
		OpConfirmIntent, OpRejectIntent, OpResolveIntent, OpListIntents, OpLimitIntents,
	}
}

// FaultKind is what happens to a call.
type FaultKind string

// The kinds of faults.
const (
	// Fail returns an error; the queue is not called.
	Fail FaultKind = "fail"
	// Delay waits, then calls the queue. A context that ends meanwhile ends the
	// call; then the queue is not called.
	Delay FaultKind = "delay"
	// Drop never answers: the call returns the error of its context when that
	// ends, and the queue is not called. Without an end it blocks for ever.
	Drop FaultKind = "drop"
	// ApplyThenFail calls the queue, throws its answer away and returns an
	// error, as after a lost acknowledgement.
	ApplyThenFail FaultKind = "apply_then_fail"
	// Panic panics; the queue is not called.
	Panic FaultKind = "panic"
)

// Fault is one entry of a plan.
type Fault struct {
	Kind FaultKind
	// Op is the operation that it meets; empty: every one.
	Op Op
	// Call is the one call of Op that it meets, the first being 1. Zero: every
	// call, with Probability.
	Call int
	// Probability, between 0 and 1, goes with Call 0. Zero means 1.
	Probability float64
	// Err is what Fail and ApplyThenFail return, wrapped. Nil means
	// [supervisor.ErrUnavailable], and for an applied commit
	// [supervisor.ErrCommitUnknown].
	Err error
	// Delay is how long Delay waits.
	Delay time.Duration
}

func (f *Fault) validate() error {
	var errs []error
	if !slices.Contains([]FaultKind{Fail, Delay, Drop, ApplyThenFail, Panic}, f.Kind) {
		errs = append(errs, fmt.Errorf("Kind %q is not known", f.Kind))
	}
	if f.Op != "" && !slices.Contains(ops(), f.Op) {
		errs = append(errs, fmt.Errorf("Op %q is not known", f.Op))
	}
	if f.Call < 0 {
		errs = append(errs, fmt.Errorf("Call is %d, must not be negative", f.Call))
	}
	if !(f.Probability >= 0 && f.Probability <= 1) {
		errs = append(errs, fmt.Errorf("Probability is %v, must be between 0 and 1", f.Probability))
	}
	if f.Call > 0 && f.Probability > 0 {
		errs = append(errs, fmt.Errorf("Call is %d and Probability %v, only one may be set", f.Call, f.Probability))
	}
	if (f.Kind == Delay) != (f.Delay > 0) {
		errs = append(errs, fmt.Errorf("Delay is %v and Kind %q, a delay goes with the kind delay", f.Delay, f.Kind))
	}
	return errors.Join(errs...)
}

// Injection is a fault that met a call.
type Injection struct {
	Op   Op
	Call int
	Kind FaultKind
}

// Faults makes calls of queues fail by a plan, for tests of what uses a queue.
// It may be used by many goroutines at once, and in synctest bubbles. Calls are
// counted by operation over all the queues that it wraps.
type Faults struct {
	seed uint64
	plan []Fault

	mu       sync.Mutex
	calls    map[Op]int
	injected []Injection
}

// NewFaults returns a plan; the first fault that meets a call happens to it. The
// error names what is wrong with the plan.
//
// Whether a fault with a probability meets a call depends on the seed, the
// operation and the number of the call alone, not on how goroutines interleave.
// The seed is in the text of every injected error, so that a run can be
// repeated.
func NewFaults(seed uint64, plan ...Fault) (*Faults, error) {
	for n := range plan {
		if err := plan[n].validate(); err != nil {
			return nil, fmt.Errorf("queuetest: fault %d: %w", n+1, err)
		}
	}
	return &Faults{seed: seed, plan: slices.Clone(plan), calls: map[Op]int{}}, nil
}

// Seed returns the seed.
func (f *Faults) Seed() uint64 { return f.seed }

// Calls returns how often an operation was called.
func (f *Faults) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Injected returns the faults that met a call, in order. It grows with every
// one.
func (f *Faults) Injected() []Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.injected)
}

// next counts a call and returns the fault that meets it, if any.
func (f *Faults) next(op Op) (*Fault, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	call := f.calls[op]
	for n := range f.plan {
		fault := &f.plan[n]
		if fault.Op != "" && fault.Op != op || fault.Call > 0 && fault.Call != call {
			continue
		}
		if fault.Probability > 0 && f.chance(op, call, n) >= fault.Probability {
			continue
		}
		f.injected = append(f.injected, Injection{Op: op, Call: call, Kind: fault.Kind})
		return fault, call
	}
	return nil, call
}

// chance is a number in [0, 1) that belongs to one call and one fault.
func (f *Faults) chance(op Op, call, fault int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d %d", op, call, fault)
	return rand.New(rand.NewPCG(f.seed, h.Sum64())).Float64()
}

// call makes a call, or what a fault makes of it.
func call[R any](ctx context.Context, f *Faults, op Op, do func() (R, error)) (R, error) {
	var none R
	fault, n := f.next(op)
	if fault == nil {
		return do()
	}
	text := fmt.Sprintf("queuetest: injected %s: %s call %d, seed %d", fault.Kind, op, n, f.seed)
	switch fault.Kind {
	case Panic:
		panic(text)
	case Delay:
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			return do()
		case <-ctx.Done():
			return none, fmt.Errorf("%s: %w", text, ctx.Err())
		}
	case Drop:
		<-ctx.Done()
		return none, fmt.Errorf("%s: %w", text, ctx.Err())
	}
	err := fault.Err
	if err == nil {
		err = supervisor.ErrUnavailable
	}
	if fault.Kind == ApplyThenFail {
		if _, failed := do(); failed != nil {
			return none, failed
		}
		if fault.Err == nil && (op == OpCommitCommand || op == OpCommitAndKeep) {
			err = supervisor.ErrCommitUnknown
		}
	}
	return none, fmt.Errorf("%s: %w", text, err)
}
