package queuetest

import (
	"context"
	"errors"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentWaitCases() []testCase {
	return needing(intentWaiter, []testCase{
		{
			topic: "intent-wait", name: "commit",
			rule: "WaitIntents blocks until a commit makes an intent of the capabilities due",
			run: func(x *trial) {
				x.add(x.actor("a"), time.Time{})
				item := x.claimOne()
				x.wakesDispatcher("CommitCommand", func() { x.commitIntents(&item, supervisor.Continue{Delay: far}, x.effect("i")) })
			},
		},
		{
			topic: "intent-wait", name: "before-the-wait",
			rule: "WaitIntents never wakes too late: what became due between a claim and the wait is not missed",
			run: func(x *trial) {
				x.noIntent("there is none")
				x.plan("a", x.effect("i"))
				x.dispatcherWaits("an intent became due before the wait", x.capabilities())
				x.takeOne()
			},
		},
		{
			topic: "intent-wait", name: "due-time",
			rule: "WaitIntents blocks until the next due time comes",
			run: func(x *trial) {
				x.plan("a", x.effect("later"), x.effect("soon"))
				works := []supervisor.IntentWork{x.handOff(), x.handOff()}
				x.settle(works[0], retryIn(far))
				x.settle(works[1], retryIn(x.Lease))
				x.wakesDispatcher("the next due time", func() {})
			},
		},
		{
			topic: "intent-wait", name: "lease-end",
			rule: "WaitIntents blocks until the next lease end comes",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.mark(x.takeShort())
				x.wakesDispatcher("the end of a lease", func() {})
			},
		},
		{
			topic: "intent-wait", name: "release",
			rule: "WaitIntents counts due times that arise while it waits",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				x.wakesDispatcher("ReleaseIntent", func() { x.giveIntentBack(work, supervisor.IntentRelease{}) })
			},
		},
		{
			topic: "intent-wait", name: "receipt",
			rule: "WaitIntents wakes for a receipt whose work is due for settlement",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.wakesDispatcher("RecordReceipt", func() { x.accept(work, ended(supervisor.ProviderSucceeded, `1`)) })
			},
		},
		{
			topic: "intent-wait", name: "freed-slot", needs: intentOperator,
			rule: "WaitIntents blocks until a freed slot makes an intent due",
			run: func(x *trial) {
				works := x.takeEach("i1", "i2")
				x.limit("", "a", 1)
				holder := x.mark(works[0])
				x.refused(works[1], supervisor.CauseLimit)
				x.wakesDispatcher("a freed slot", func() { x.settle(holder, success(`1`)) })
			},
		},
		{
			topic: "intent-wait", name: "resume", needs: instances,
			rule: "WaitIntents blocks until Resume makes an intent due",
			run: func(x *trial) {
				resource := supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				x.pause(resource)
				x.plan("a", x.effect("i", scoped("r")))
				x.wakesDispatcher("Resume", func() { x.resume(resource) })
			},
		},
		{
			topic: "intent-wait", name: "confirmation", needs: intentOperator,
			rule: "WaitIntents blocks until a confirmation makes an intent due",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				x.wakesDispatcher("ConfirmIntent", func() { x.confirm("a", "i", "alice") })
			},
		},
		{
			topic: "intent-wait", name: "resolution", needs: intentOperator,
			rule: "WaitIntents blocks until an operator's answer makes an intent due",
			run: func(x *trial) {
				x.lose("a")
				x.wakesDispatcher("ResolveIntent", func() {
					x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", supervisor.IntentResolution{Kind: supervisor.ResolveRepeat}), "ResolveIntent")
				})
			},
		},
		{
			topic: "intent-wait", name: "cancel", needs: instances,
			rule: "WaitIntents blocks until a cancel makes an intent in flight due",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(far))
				x.wakesDispatcher("Cancel", func() { x.cancel("a") })
			},
		},
		{
			topic: "intent-wait", name: "context",
			rule: "WaitIntents returns the error of its context when that ends",
			run: func(x *trial) {
				ctx, cancel := context.WithTimeout(x.ctx, x.Lease)
				defer cancel()
				x.dispatcherWaitsFor(ctx, context.DeadlineExceeded)
				ctx, cancel = context.WithCancel(x.ctx)
				time.AfterFunc(x.Lease, cancel)
				x.dispatcherWaitsFor(ctx, context.Canceled)
				x.dispatcherWaitsFor(ctx, context.Canceled) // and at once where it had ended before
			},
		},
		{
			topic: "intent-wait", name: "untouched-does-not-wake", needs: instances | intentOperator,
			rule: "what a claim just left untouched does not wake WaitIntents: refused intents wait without a busy loop",
			run: func(x *trial) {
				x.pause(supervisor.Scope{TenantID: x.tenant, ResourceID: "r"})
				x.plan("paused", x.effect("i", scoped("r")))
				x.plan("awaiting", x.effect("i", confirmed))
				x.plan("held", x.effect("i", of(x.capability("b"))))
				x.plan("limited", x.effect("i1"), x.effect("i2"))
				x.limit("", "a", 1)
				for range 2 {
					x.handOff() // those of b and one of a
				}
				ctx, cancel := context.WithTimeout(x.ctx, x.Lease)
				defer cancel()
				wakes := 0
				for ; x.waitFor.WaitIntents(ctx, x.capabilities()) == nil; wakes++ {
					x.noIntent("one is paused, one awaits confirmation, two are held, one waits for a slot")
					if wakes > 100 {
						break
					}
				}
				if wakes > 10 {
					x.Errorf("WaitIntents returned %d times in %v though nothing was due", wakes, x.Lease)
				}
			},
		},
		{
			topic: "intent-wait", name: "all-capabilities",
			rule: "no capabilities mean all",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.dispatcherWaits("an intent is due", nil)
			},
		},
		{
			topic: "intent-wait", name: "another-handle", needs: reopen,
			rule: "WaitIntents never wakes too late, also for what another process makes due",
			run: func(x *trial) {
				other, ok := x.reopen().(supervisor.IntentWaiter)
				if !ok {
					x.Skipf("the other handle is no supervisor.IntentWaiter")
				}
				ctx, cancel := context.WithTimeout(x.ctx, patience)
				defer cancel()
				woken := make(chan error, 1)
				go func() { woken <- other.WaitIntents(ctx, x.capabilities()) }() // ends with its wait, at the latest with ctx
				x.sleep(5 * poll)
				x.plan("a", x.effect("i"))
				if err := <-woken; err != nil {
					x.Errorf("WaitIntents by another handle: error is %q, want nil", err)
				}
			},
		},
	})
}

// wakesDispatcher claims and waits in turn in the background, does something
// that makes an intent due or soon will, and reports a wait that missed it.
func (x *trial) wakesDispatcher(by string, act func()) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	claimed := make(chan error, 1)
	// It ends with the claim, at the latest with ctx.
	go func() {
		for {
			works, err := x.intents.ClaimIntents(ctx, x.wanted(1))
			if err == nil && len(works) == 0 {
				err = x.waitFor.WaitIntents(ctx, x.capabilities())
			} else if err == nil {
				claimed <- nil
				return
			}
			if err != nil {
				claimed <- err
				return
			}
		}
	}()
	x.sleep(5 * poll)
	begun := time.Now()
	act()
	switch err := <-claimed; {
	case errors.Is(err, context.DeadlineExceeded):
		x.Fatalf("a dispatcher that claims and waits in turn got nothing within %v after %s", patience, by)
	case err != nil:
		x.Fatalf("waiting for %s: unexpected error: %v", by, err)
	}
	if took := time.Since(begun); took > patience/2+x.Lease {
		x.Errorf("WaitIntents returned %v after %s", took, by)
	}
}

// dispatcherWaits reports a wait that does not return soon.
func (x *trial) dispatcherWaits(why string, capabilities []supervisor.CapabilityPin) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	if err := x.waitFor.WaitIntents(ctx, capabilities); err != nil {
		x.Fatalf("WaitIntents: error is %q, want nil: %s", err, why)
	}
}

// dispatcherWaitsFor waits until ctx ends, through wakes that are too early.
func (x *trial) dispatcherWaitsFor(ctx context.Context, want error) {
	x.Helper()
	for n := 0; ; n++ {
		err := x.waitFor.WaitIntents(ctx, x.capabilities())
		if err != nil {
			x.want(err, want, "WaitIntents")
			return
		}
		if ctx.Err() != nil && n > 100 {
			x.Fatalf("WaitIntents goes on returning nil after its context has ended")
		}
		x.sleep(poll / 10)
	}
}
