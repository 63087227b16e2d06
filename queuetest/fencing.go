package queuetest

import (
	"github.com/workflow-supervisor/supervisor"
)

func fencingCases() []testCase {
	return withKept([]testCase{
		{
			topic: "fencing", name: "frozen-holder",
			rule: "a holder whose instance was taken by another can neither renew nor commit: ErrLeaseLost",
			run:  fencingFrozenHolder,
		},
		{
			topic: "fencing", name: "same-worker-name",
			rule: "the lease version, not the worker's name, is the fence",
			run: func(x *trial) {
				x.due("a")
				old := x.claimShort()
				x.outlast()
				current := x.claimOne() // under the same name
				before := x.look(&current)
				x.want(x.Renew(x.ctx, lease(&old, 9*held)), supervisor.ErrLeaseLost, "Renew by a restarted worker of the same name")
				stale := x.command(&old, `"stale"`, supervisor.Complete{})
				x.want(x.tryCommit(&old, &stale), supervisor.ErrLeaseLost, "commit by a restarted worker of the same name")
				x.same(&current, before, "calls under a stale lease version")
				x.check(x.Renew(x.ctx, lease(&current, held)), "Renew by the holder")
				x.step(&current, `"current"`, supervisor.Complete{})
			},
		},
		{
			topic: "fencing", name: "other-version",
			rule: "a commit under any other lease version is ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.look(&item)
				for _, version := range []int64{item.LeaseVersion - 1, item.LeaseVersion + 1, 0} {
					wrong := item.Clone()
					wrong.LeaseVersion = version
					command := x.command(&wrong, `"wrong"`, supervisor.Complete{})
					x.want(x.tryCommit(&wrong, &command), supervisor.ErrLeaseLost, "commit with version %d of lease %d", version, item.LeaseVersion)
				}
				x.same(&item, before, "commits under other lease versions")
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "fencing", name: "ended-but-not-taken",
			rule: "a lease that ended but that nobody else has taken still commits: the version decides, not the clock",
			run: func(x *trial) {
				x.due("a")
				item := x.claimShort()
				x.outlast()
				command := x.command(&item, `"late"`, supervisor.Continue{Delay: far})
				x.check(x.tryCommit(&item, &command), "commit after the lease ended")
				x.idle("it was committed with a delay")
			},
		},
		{
			topic: "fencing", name: "after-commit",
			rule: "a commit raises the state version: the same claim cannot commit twice under different keys",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `"first"`, supervisor.Continue{Delay: far})
				before := x.look(&item)
				second := x.command(&item, `"second"`, supervisor.Complete{})
				second.DeliveryKey = "another key"
				x.want(x.tryCommit(&item, &second), supervisor.ErrStateConflict, "second commit of one claim")
				x.same(&item, before, "a second commit of one claim")
			},
		},
		{
			topic: "fencing", name: "another-handle", needs: reopen,
			rule: "leases and fences hold between processes on one store",
			run: func(x *trial) {
				other := x.reopen()
				x.due("a")
				mine := x.claimShort()
				var theirs supervisor.WorkItem
				x.until("another handle can claim what lapsed", func() bool {
					items := x.claimFrom(other, x.request(1))
					if len(items) == 0 {
						return false
					}
					theirs = items[0]
					return true
				})
				if theirs.ClaimedAt.Before(mine.ClaimedAt.Add(x.Lease)) {
					x.Errorf("another handle claimed at %v what is held from %v for %v", theirs.ClaimedAt, mine.ClaimedAt, x.Lease)
				}
				stale := x.command(&mine, `"stale"`, supervisor.Complete{})
				x.want(x.tryCommit(&mine, &stale), supervisor.ErrLeaseLost, "commit of what another handle has taken")
				command := x.command(&theirs, `"theirs"`, supervisor.Continue{})
				x.check(other.CommitCommand(x.ctx, &theirs, &command), "CommitCommand by the other handle")
				again := x.claimOne()
				x.equalJSON("State", again.State, `"theirs"`)
			},
		},
	})
}

func fencingFrozenHolder(x *trial) {
	x.due("a")
	frozen := x.claimShort()
	x.outlast()
	current := x.claimOne()
	x.want(x.Renew(x.ctx, lease(&frozen, held)), supervisor.ErrLeaseLost, "Renew by the frozen holder")
	stale := x.command(&frozen, `{"by":"frozen"}`, supervisor.Complete{})
	stale.DeliveryKey = "key of the frozen holder"
	stale.ActionIntents = []supervisor.ActionIntent{x.intent(&frozen, "intent")}
	x.want(x.tryCommit(&frozen, &stale), supervisor.ErrLeaseLost, "commit by the frozen holder")

	command := x.command(&current, `{"by":"current"}`, supervisor.Continue{})
	// The refused command must not have left its intent behind.
	command.ActionIntents = []supervisor.ActionIntent{x.intent(&current, "intent")}
	x.commit(&current, command)
	x.want(x.tryCommit(&frozen, &stale), supervisor.ErrLeaseLost, "second commit by the frozen holder")

	last := x.claimOne()
	x.equalJSON("State", last.State, `{"by":"current"}`)
	equal(x, "StateVersion", last.StateVersion, frozen.StateVersion+1)
	if x.Instances != nil {
		equal(x, "the number of events", len(x.history("a")), 1)
	}
}
