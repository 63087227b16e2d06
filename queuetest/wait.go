package queuetest

import (
	"context"
	"errors"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func waitCases() []testCase {
	return needing(waiter, []testCase{
		{
			topic: "wait", name: "start",
			rule: "WaitDue blocks until a start makes an instance of the specs due",
			run: func(x *trial) {
				x.wakes("Start", func() { x.due("a") })
			},
		},
		{
			topic: "wait", name: "before-the-wait",
			rule: "WaitDue never wakes too late: what became due between a claim and the wait is not missed",
			run: func(x *trial) {
				x.idle("nothing was added")
				x.due("a")
				x.waits("an instance became due before the wait", x.wait.WaitDue)
				x.claimOne()
			},
		},
		{
			topic: "wait", name: "next-due-time",
			rule: "WaitDue blocks until the next due time comes",
			run: func(x *trial) {
				x.add(x.instance("later"), x.now().Add(far))
				x.add(x.instance("a"), x.soon())
				x.wakes("the next due time", func() {})
			},
		},
		{
			topic: "wait", name: "lease-end",
			rule: "WaitDue blocks until the next lease end comes",
			run: func(x *trial) {
				x.due("a")
				x.claimShort()
				x.wakes("the end of a lease", func() {})
			},
		},
		{
			topic: "wait", name: "commit",
			rule: "WaitDue blocks until a commit makes an instance due",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.wakes("CommitCommand", func() { x.step(&item, `1`, supervisor.Continue{}) })
			},
		},
		{
			topic: "wait", name: "later-commit",
			rule: "WaitDue counts due times that arise while it waits",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.wakes("a due time that a commit set", func() { x.step(&item, `1`, supervisor.Continue{Delay: x.Lease}) })
			},
		},
		{
			topic: "wait", name: "release", needs: releaser,
			rule: "WaitDue blocks until a release makes an instance due",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.wakes("Release", func() { x.giveBack(&item, "given back") })
			},
		},
		{
			topic: "wait", name: "deliver", needs: instances,
			rule: "WaitDue blocks until a delivery makes an instance due",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.wakes("Deliver", func() { x.deliver("a", note("w"), time.Time{}) })
			},
		},
		{
			topic: "wait", name: "cancel", needs: instances,
			rule: "WaitDue blocks until a cancellation makes an instance due",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.wakes("Cancel", func() { x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel") })
			},
		},
		{
			topic: "wait", name: "resume", needs: instances,
			rule: "WaitDue blocks until Resume makes an instance due",
			run: func(x *trial) {
				for _, scope := range []supervisor.Scope{
					{TenantID: x.tenant}, {TenantID: x.tenant, InstanceID: "a"},
				} {
					if scope.InstanceID == "" {
						x.due("a")
					}
					x.check(x.Instances.Pause(x.ctx, scope), "Pause")
					x.wakes("Resume", func() { x.check(x.Instances.Resume(x.ctx, scope), "Resume") })
					item := x.claimOne()
					x.step(&item, `1`, supervisor.Continue{})
				}
			},
		},
		{
			topic: "wait", name: "retry", needs: instances,
			rule: "WaitDue blocks until Retry makes an instance due",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.wakes("Retry", func() { x.check(x.Instances.Retry(x.ctx, x.tenant, "a"), "Retry") })
			},
		},
		{
			topic: "wait", name: "all-waiters",
			rule: "every call of WaitDue returns when an instance becomes due, however many wait",
			run: func(x *trial) {
				done := make(chan error, 4)
				ctx, cancel := context.WithTimeout(x.ctx, patience)
				defer cancel()
				for range cap(done) {
					// Each ends with its wait, at the latest with ctx.
					go func() { done <- x.wait.WaitDue(ctx, []string{x.spec}) }()
				}
				x.sleep(5 * poll)
				x.due("a")
				for n := range cap(done) {
					if err := <-done; err != nil {
						x.Errorf("waiter %d of %d: %v", n+1, cap(done), err)
					}
				}
			},
		},
		{
			topic: "wait", name: "all-specs",
			rule: "no specs mean all",
			run: func(x *trial) {
				x.idle("nothing was added")
				x.due("a")
				x.waits("an instance is due", func(ctx context.Context, _ []string) error { return x.wait.WaitDue(ctx, nil) })
			},
		},
		{
			topic: "wait", name: "context",
			rule: "WaitDue returns the error of its context when that ends",
			run: func(x *trial) {
				ctx, cancel := context.WithTimeout(x.ctx, x.Lease)
				defer cancel()
				x.waitsFor(ctx, context.DeadlineExceeded)
				ctx, cancel = context.WithCancel(x.ctx)
				time.AfterFunc(x.Lease, cancel)
				x.waitsFor(ctx, context.Canceled)
				x.waitsFor(ctx, context.Canceled) // and at once where it had ended before
			},
		},
		{
			topic: "wait", name: "untouched-does-not-wake", needs: instances,
			rule: "what a claim just left untouched does not wake WaitDue: waiting and claiming in turn is no busy loop",
			run: func(x *trial) {
				x.due("paused")
				x.due("held")
				x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, InstanceID: "paused"}), "Pause")
				x.claimOne()
				x.add(x.instance("later"), x.now().Add(far))
				ctx, cancel := context.WithTimeout(x.ctx, x.Lease)
				defer cancel()
				wakes := 0
				for ; x.wait.WaitDue(ctx, []string{x.spec}) == nil; wakes++ {
					x.idle("one is paused, one held, one not due")
					if wakes > 100 {
						break
					}
				}
				if wakes > 10 {
					x.Errorf("WaitDue returned %d times in %v though nothing was due", wakes, x.Lease)
				}
			},
		},
		{
			topic: "wait", name: "another-handle", needs: reopen,
			rule: "WaitDue never wakes too late, also for what another process makes due",
			run: func(x *trial) {
				other, ok := x.reopen().(supervisor.Waiter)
				if !ok {
					x.Skipf("the other handle is no supervisor.Waiter")
				}
				begun := make(chan struct{})
				go func() {
					defer close(begun)
					x.sleep(5 * poll)
				}()
				<-begun
				x.due("a")
				x.waits("another handle started an instance", other.WaitDue)
			},
		},
	})
}

// wakes waits in the background, does something that makes an instance due or
// soon will, and reports a wait that missed it. A wait may return too early;
// then it is begun again, as a worker would.
func (x *trial) wakes(by string, act func()) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	claimed := make(chan error, 1)
	// It ends with the claim, at the latest with ctx.
	go func() {
		for {
			items, err := x.ClaimDue(ctx, supervisor.ClaimRequest{
				SpecIDs: []string{x.spec}, WorkerID: "waiting worker", LeaseDuration: x.Lease, Limit: 1,
			})
			if err == nil && len(items) == 0 {
				err = x.wait.WaitDue(ctx, []string{x.spec})
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
		x.Fatalf("a worker that claims and waits in turn got nothing within %v after %s", patience, by)
	case err != nil:
		x.Fatalf("waiting for %s: unexpected error: %v", by, err)
	}
	if took := time.Since(begun); took > patience/2+x.Lease {
		x.Errorf("WaitDue returned %v after %s", took, by)
	}
}

// waits reports a wait that does not return soon.
func (x *trial) waits(why string, wait func(context.Context, []string) error) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	if err := wait(ctx, []string{x.spec}); err != nil {
		x.Fatalf("WaitDue: error is %q, want nil: %s", err, why)
	}
}

// waitsFor waits until ctx ends, through wakes that are too early.
func (x *trial) waitsFor(ctx context.Context, want error) {
	x.Helper()
	for n := 0; ; n++ {
		err := x.wait.WaitDue(ctx, []string{x.spec})
		if err != nil {
			x.want(err, want, "WaitDue")
			return
		}
		if ctx.Err() != nil && n > 100 {
			x.Fatalf("WaitDue goes on returning nil after its context has ended")
		}
		x.sleep(poll / 10)
	}
}
