package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func renewCases() []testCase {
	return []testCase{
		{
			topic: "renew", name: "extends",
			rule: "Renew extends a lease by lease.Duration from the store's now",
			run:  renewExtends,
		},
		{
			topic: "renew", name: "new-end", needs: instances,
			rule: "the new end of a renewed lease is the store's now plus lease.Duration",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.now()
				x.check(x.Renew(x.ctx, lease(&item, 3*held)), "Renew")
				end, after := x.get("a").LeaseEndsAt, x.now()
				const slack = 2 * time.Second // of the measured difference between two clocks
				if end.Before(before.Add(3*held-slack)) || end.After(after.Add(3*held+slack)) {
					x.Errorf("the lease ends at %v, want %v after a moment between %v and %v", end, 3*held, before, after)
				}
			},
		},
		{
			topic: "renew", name: "repeated",
			rule: "repeating a renewal is harmless",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				for range 5 {
					x.check(x.Renew(x.ctx, lease(&item, held)), "Renew")
				}
				x.idle("the lease was renewed")
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "renew", name: "ended-lease",
			rule: "a lease that has ended cannot be renewed: ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimShort()
				x.outlast()
				x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew of an ended lease")
				x.claimOne() // it was not revived
			},
		},
		{
			topic: "renew", name: "other-version",
			rule: "only the holder of exactly this lease version may renew: everything else is ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.look(&item)
				for _, version := range []int64{item.LeaseVersion - 1, item.LeaseVersion + 1, 0, -1} {
					wrong := lease(&item, 9*held)
					wrong.Version = version
					x.want(x.Renew(x.ctx, wrong), supervisor.ErrLeaseLost, "Renew with version %d of lease %d", version, item.LeaseVersion)
				}
				x.same(&item, before, "renewals under other versions")
			},
		},
		{
			topic: "renew", name: "other-worker",
			rule: "only the worker that holds the lease version may renew: another one that knows the version gets ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.look(&item)
				wrong := lease(&item, 9*held)
				wrong.WorkerID = "worker-2"
				x.want(x.Renew(x.ctx, wrong), supervisor.ErrLeaseLost, "Renew by another worker")
				x.same(&item, before, "a renewal by another worker")
			},
		},
		{
			topic: "renew", name: "unknown",
			rule: "renewing an unknown instance is ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				unknown := lease(&item, held)
				unknown.InstanceID = "unknown"
				x.want(x.Renew(x.ctx, unknown), supervisor.ErrLeaseLost, "Renew of an unknown id")
				unknown = lease(&item, held)
				unknown.TenantID = x.tenant + " unknown"
				x.want(x.Renew(x.ctx, unknown), supervisor.ErrLeaseLost, "Renew in an unknown tenant")
			},
		},
		{
			topic: "renew", name: "other-tenant",
			rule: "renewing in one tenant leaves the lease of the same id in another alone",
			run:  renewOtherTenant,
		},
		{
			topic: "renew", name: "released-by-commit",
			rule: "a commit releases the lease: renewing it afterwards is ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{})
				x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew after the commit")
				x.claimOne() // and it is not held by a ghost
			},
		},
		{
			topic: "renew", name: "finished",
			rule: "renewing a finished instance is ErrLeaseLost",
			run: func(x *trial) {
				for id, end := range map[string]supervisor.Disposition{
					"completed": supervisor.Complete{}, "failed": supervisor.Failed{Reason: "for good"},
				} {
					x.due(id)
					item := x.claimOne()
					x.step(&item, `1`, end)
					x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew of a %s instance", id)
				}
				x.idle("both are finished")
			},
		},
		{
			topic: "renew", name: "duration",
			rule: "the new end is in the future when the call returns: a duration that is not positive is refused",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.look(&item)
				x.wantErr(x.Renew(x.ctx, lease(&item, 0)), "Renew with Duration 0")
				x.wantErr(x.Renew(x.ctx, lease(&item, -time.Hour)), "Renew with a negative Duration")
				x.same(&item, before, "refused renewals")
				x.idle("the lease of the claim lasts")
			},
		},
		{
			topic: "renew", name: "paused", needs: instances,
			rule: "where the tenant or instance epoch has moved since the claim, Renew is ErrEpochStale and extends nothing",
			run: func(x *trial) {
				for _, scope := range []supervisor.Scope{
					{TenantID: x.tenant, InstanceID: "a"}, {TenantID: x.tenant},
				} {
					instance := x.instance("a")
					instance.ID += scope.InstanceID
					if scope.InstanceID != "" {
						scope.InstanceID = instance.ID
					}
					x.add(instance, time.Time{})
					item := x.claimOne()
					x.check(x.Instances.Pause(x.ctx, scope), "Pause")
					before := x.look(&item)
					x.want(x.Renew(x.ctx, lease(&item, 9*held)), supervisor.ErrEpochStale, "Renew after a pause of %v", scope)
					x.same(&item, before, "a refused renewal")
					x.check(x.Instances.Resume(x.ctx, scope), "Resume")
					x.want(x.Renew(x.ctx, lease(&item, 9*held)), supervisor.ErrEpochStale, "Renew after pause and resume of %v", scope)
				}
			},
		},
		{
			topic: "renew", name: "cancelled", needs: instances,
			rule: "Cancel raises the instance epoch, so that a renewal by the holder is ErrEpochStale",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				before := x.look(&item)
				x.want(x.Renew(x.ctx, lease(&item, 9*held)), supervisor.ErrEpochStale, "Renew after Cancel")
				x.same(&item, before, "a refused renewal")
			},
		},
		{
			topic: "renew", name: "paused-resource", needs: instances,
			rule: "the pause of a resource refuses no holder",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}), "Pause")
				x.check(x.Renew(x.ctx, lease(&item, held)), "Renew after the pause of a resource")
			},
		},
	}
}

func renewExtends(x *trial) {
	// On a busy machine a short lease may end before its renewal is even sent.
	x.unhurried(func(first time.Duration) bool {
		x.due("a")
		begun := time.Now()
		req := x.request(1)
		req.LeaseDuration = first
		item := x.collect(1, func(int) supervisor.ClaimRequest { return req })[0]
		err := x.Renew(x.ctx, lease(&item, 2*first))
		if err != nil && time.Since(begun) >= first {
			return false
		}
		x.check(err, "Renew of a lease of %v", first)
		again := x.claimOne()
		if least := item.ClaimedAt.Add(2 * first); again.ClaimedAt.Before(least) {
			x.Errorf("claimed again at %v, but the renewed lease ended at %v at the earliest", again.ClaimedAt, least)
		}
		return true
	})
}

func renewOtherTenant(x *trial) {
	x.due("a")
	other := x.instance("a")
	other.TenantID = x.tenant + " other"
	x.add(other, time.Time{})
	// Both are claimed, the second under a short lease.
	theirs := x.claimOne()
	mine := x.claimShort()
	if mine.TenantID == theirs.TenantID {
		x.Fatalf("%q was claimed twice", mine.TenantID)
	}
	x.outlast()
	x.check(x.Renew(x.ctx, lease(&theirs, held)), "Renew of the one that is held")
	again := x.claimOne()
	equal(x, "the tenant whose lease has ended", again.TenantID, mine.TenantID)
	x.step(&theirs, `1`, supervisor.Complete{})
	x.check(x.Renew(x.ctx, lease(&again, held)), "Renew of the one that the commit did not touch")
}
