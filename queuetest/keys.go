package queuetest

import (
	"errors"
	"strings"

	"github.com/workflow-supervisor/supervisor"
)

func keyCases() []testCase {
	return withKept([]testCase{
		{
			topic: "keys", name: "lost-acknowledgement",
			rule: "the latest key with the same digest at the state version it was stored with is success and changes nothing",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				command.ConsumedWakeups = []string{"w"}
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
				x.check(x.tryCommit(&item, &command), "commit")
				before := x.look(&item)
				for range 3 {
					x.check(x.tryCommit(&item, &command), "repeated commit")
				}
				x.same(&item, before, "repeated commits")
				x.idle("it continues an hour later")
			},
		},
		{
			topic: "keys", name: "repeated-when-finished",
			rule: "repeating the latest command is success also when the instance is finished",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Complete{})
				x.check(x.tryCommit(&item, &command), "commit")
				before := x.look(&item)
				x.check(x.tryCommit(&item, &command), "repeated commit of a finished instance")
				x.same(&item, before, "a repeated commit")
			},
		},
		{
			topic: "keys", name: "repeated-when-held-by-another",
			rule: "repeating the latest command is success also when the instance is held by another: the key is checked before the lease",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				x.commit(&item, command)
				other := x.claimOne()
				before := x.look(&other)
				x.check(x.tryCommit(&item, &command), "repeated commit while another holds the instance")
				x.same(&other, before, "a repeated commit")
				x.check(x.Renew(x.ctx, lease(&other, held)), "Renew by the holder")
				x.step(&other, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "keys", name: "other-digest",
			rule: "the latest key with another digest is ErrDeliveryConflict, told apart from a stale lease",
			run:  keysOtherDigest,
		},
		{
			topic: "keys", name: "other-state-version",
			rule: "the latest key at another state version than it was stored with is ErrDeliveryConflict",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				x.commit(&item, command)
				again := x.claimOne()
				before := x.look(&again)
				x.want(x.tryCommit(&again, &command), supervisor.ErrDeliveryConflict, "commit under the key of the step before")
				x.same(&again, before, "a refused commit")
				x.step(&again, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "keys", name: "conflict-before-fence",
			rule: "the latest key is checked before the lease version: with another digest it is ErrDeliveryConflict also to a holder that lost its lease",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				x.commit(&item, command)
				x.claimOne()
				command.DeliveryDigest = "another digest"
				x.want(x.tryCommit(&item, &command), supervisor.ErrDeliveryConflict, "commit of the latest key with another digest by a former holder")
			},
		},
		{
			topic: "keys", name: "per-instance",
			rule: "delivery keys are per tenant and instance",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				other := x.instance("a")
				other.TenantID += " other"
				x.add(other, x.now())
				for _, item := range x.claimN(3) {
					command := x.command(&item, `1`, supervisor.Continue{Delay: far})
					command.DeliveryKey, command.DeliveryDigest = "run-1", "digest of "+item.TenantID+item.ID
					x.check(x.tryCommit(&item, &command), "commit of %q in %q under a key that others use", item.ID, item.TenantID)
				}
				x.idle("all continue an hour later")
			},
		},
		{
			topic: "keys", name: "older-than-the-latest",
			rule: "an older command is refused by the fence",
			run: func(x *trial) {
				x.due("a")
				first := x.claimOne()
				old := x.command(&first, `1`, supervisor.Continue{})
				x.commit(&first, old)
				second := x.claimOne()
				x.step(&second, `2`, supervisor.Continue{})
				third := x.claimOne()
				before := x.look(&third)
				x.want(x.tryCommit(&first, &old), supervisor.ErrLeaseLost, "repeated commit of the step before the latest")
				x.same(&third, before, "a refused commit")
				x.equalJSON("State", third.State, `2`)
			},
		},
		{
			topic: "keys", name: "failure-repeated",
			rule: "a repeated failure is success and counts no further attempt",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := supervisor.FailureCommand(&item, "once", item.ClaimedAt)
				x.commit(&item, command)
				x.check(x.tryCommit(&item, &command), "repeated failure")
				again := x.claimOne()
				equal(x, "Attempt", again.Attempt, 1)
				equal(x, "StateVersion", again.StateVersion, 1)
			},
		},
		{
			topic: "keys", name: "compared-exactly",
			rule: "delivery keys are text: they differ by case, white space and Unicode form",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				command.DeliveryKey = "Key \u00e9 1"
				x.check(x.tryCommit(&item, &command), "commit")
				for _, key := range []string{"key \u00e9 1", "Key \u00e9 1 ", "Key e\u0301 1", "KEY \u00c9 1"} {
					command.DeliveryKey = key
					x.want(x.tryCommit(&item, &command), supervisor.ErrStateConflict, "second commit of one claim under key %q, which was never used", key)
				}
			},
		},
		{
			topic: "keys", name: "longest",
			rule: "a delivery key has at most 512 bytes; one of 512 works",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				command.DeliveryKey = strings.Repeat("k", supervisor.MaxIDBytes+1)
				x.want(x.tryCommit(&item, &command), supervisor.ErrCommandRejected, "commit under a key of 513 bytes")
				command.DeliveryKey = strings.Repeat("\u00e9", supervisor.MaxIDBytes/2)
				x.check(x.tryCommit(&item, &command), "commit under a key of 512 bytes")
				x.check(x.tryCommit(&item, &command), "repeated commit under a key of 512 bytes")
				command.DeliveryDigest = "another digest"
				x.want(x.tryCommit(&item, &command), supervisor.ErrDeliveryConflict, "commit under the same key with another digest")
			},
		},
	})
}

func keysOtherDigest(x *trial) {
	x.due("a")
	item := x.claimOne()
	command := x.command(&item, `1`, supervisor.Continue{Delay: far})
	x.check(x.tryCommit(&item, &command), "commit")
	before := x.look(&item)
	other := command.Clone()
	other.DeliveryDigest = "another digest"
	err := x.tryCommit(&item, &other)
	x.want(err, supervisor.ErrDeliveryConflict, "commit of the same key with another digest")
	if errors.Is(err, supervisor.ErrLeaseLost) || errors.Is(err, supervisor.ErrStateConflict) {
		x.Errorf("the conflict %q is also a lost lease or a state conflict", err)
	}
	if conflict := (*supervisor.DeliveryConflictError)(nil); !errors.As(err, &conflict) {
		x.Errorf("the conflict %s is no *DeliveryConflictError", describe(err))
	} else {
		want := supervisor.DeliveryConflictError{Key: command.DeliveryKey, StoredDigest: command.DeliveryDigest, Digest: "another digest"}
		equal(x, "the conflict", *conflict, want)
	}
	x.same(&item, before, "a refused commit")
}
