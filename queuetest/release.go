package queuetest

import (
	"strings"

	"github.com/workflow-supervisor/supervisor"
)

func releaseCases() []testCase {
	return needing(releaser, []testCase{
		{
			topic: "release", name: "claimable-at-once",
			rule: "Release ends the lease: state, attempt, wakeups and due time stay",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.fail(&item, "once", item.ClaimedAt)
				item = x.claimOne()
				x.giveBack(&item, "shutting down")
				again := x.claimOne()
				x.equalJSON("State", again.State, string(item.State))
				equal(x, "StateVersion", again.StateVersion, item.StateVersion)
				equal(x, "Attempt", again.Attempt, 1)
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				if !again.ScheduledAt.Equal(item.ScheduledAt) {
					x.Errorf("ScheduledAt changed from %v to %v", item.ScheduledAt, again.ScheduledAt)
				}
				if again.LeaseVersion <= item.LeaseVersion {
					x.Errorf("lease version %d follows %d", again.LeaseVersion, item.LeaseVersion)
				}
			},
		},
		{
			topic: "release", name: "keeps-its-place",
			rule: "a released instance keeps its due time, and with it its place before those that fell due later",
			run: func(x *trial) {
				x.due("z")
				x.due("a")
				item := x.claimOne()
				equal(x, "the claimed id", item.ID, "z")
				x.giveBack(&item, "shutting down")
				equal(x, "the id claimed next", x.claimOne().ID, "z")
			},
		},
		{
			topic: "release", name: "fences",
			rule: "Release raises the lease version, so that a late commit or renewal is ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.giveBack(&item, "shutting down")
				before := x.look(&item)
				late := x.command(&item, `"late"`, supervisor.Complete{})
				x.want(x.CommitCommand(x.ctx, &item, &late), supervisor.ErrLeaseLost, "CommitCommand after Release")
				x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew after Release")
				x.want(x.release.Release(x.ctx, &item, "again"), supervisor.ErrLeaseLost, "second Release")
				x.same(&item, before, "calls by a former holder")
				again := x.claimOne()
				x.want(x.CommitCommand(x.ctx, &item, &late), supervisor.ErrLeaseLost, "CommitCommand after Release and another claim")
				x.step(&again, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "release", name: "holder-only",
			rule: "whoever does not hold the lease version gets ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				before := x.look(&item)
				for what, change := range map[string]func(*supervisor.WorkItem){
					"an older lease version": func(w *supervisor.WorkItem) { w.LeaseVersion-- },
					"a later lease version":  func(w *supervisor.WorkItem) { w.LeaseVersion++ },
					"an unknown id":          func(w *supervisor.WorkItem) { w.ID = "unknown" },
					"an unknown tenant":      func(w *supervisor.WorkItem) { w.TenantID += " unknown" },
				} {
					other := item.Clone()
					change(&other)
					x.want(x.release.Release(x.ctx, &other, "not mine"), supervisor.ErrLeaseLost, "Release with %s", what)
				}
				x.same(&item, before, "refused releases")
				x.idle("the lease of the claim lasts")
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "release", name: "former-holder",
			rule: "a former holder cannot give back what another has taken",
			run: func(x *trial) {
				x.due("a")
				old := x.claimShort()
				x.outlast()
				current := x.claimOne()
				x.want(x.release.Release(x.ctx, &old, "too late"), supervisor.ErrLeaseLost, "Release by a former holder")
				x.idle("another holds it")
				x.step(&current, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "release", name: "after-commit",
			rule: "a commit releases the lease: whoever held it until then gets ErrLeaseLost",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				before := x.look(&item)
				x.want(x.release.Release(x.ctx, &item, "too late"), supervisor.ErrLeaseLost, "Release after a commit")
				x.same(&item, before, "a refused release")
			},
		},
		{
			topic: "release", name: "never-checks-epochs", needs: instances,
			rule: "Release checks the lease version only, never epochs",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant}), "Pause")
				x.giveBack(&item, "revoked")
				x.idle("the tenant is paused")
				x.check(x.Instances.Resume(x.ctx, supervisor.Scope{TenantID: x.tenant}), "Resume")
				again := x.claimOne()
				equal(x, "CancelRequested", again.CancelRequested, true)
				equal(x, "Attempt", again.Attempt, 0)
			},
		},
		{
			topic: "release", name: "reason-is-explained", needs: instances,
			rule: "the reason of a release is kept for Explain, until there is another claim",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.giveBack(&item, "the node is draining")
				explanation := x.explain("a")
				equal(x, "Reason", explanation.Reason, supervisor.ReasonDue)
				if !strings.Contains(explanation.Detail, "the node is draining") {
					x.Errorf("the explanation is %+v, want the reason of the release in it", explanation)
				}
				x.claimShort()
				x.outlast()
				equal(x, "Detail after a claim that was not given back", x.explain("a").Detail, "")
			},
		},
		{
			topic: "release", name: "hostile-reason",
			rule: "any reason can be given: a claim is never kept because of its text",
			run: func(x *trial) {
				x.due("a")
				for _, reason := range []string{"", "bad\x00byte", "bad \xff", strings.Repeat("long ", 1<<16)} {
					item := x.claimOne()
					x.giveBack(&item, reason)
				}
				x.claimOne()
			},
		},
	})
}

func (x *trial) giveBack(item *supervisor.WorkItem, reason string) {
	x.Helper()
	x.check(x.release.Release(x.ctx, item, reason), "Release of %q", item.ID)
}
