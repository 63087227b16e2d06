package queuetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func identifierCases() []testCase {
	return []testCase{
		{
			topic: "identifiers", name: "same-id-in-two-tenants",
			rule: "everything is keyed by tenant and id: equal ids in two tenants never meet",
			run:  identifiersTwoTenants,
		},
		{
			topic: "identifiers", name: "look-alikes",
			rule: "ids are text: they differ by case, white space and Unicode form",
			run: func(x *trial) {
				all := []string{"id", "ID", "Id", " id", "id ", "caf\u00e9", "cafe\u0301", "id\u200b", "id%", "id_", "i?", "1", "01", "1.0"}
				for _, id := range all {
					instance := x.instance(id)
					instance.SubjectID = "subject of " + id
					x.add(instance, time.Time{})
				}
				items := x.claimN(len(all))
				got := ids(items)
				slices.Sort(got)
				slices.Sort(all)
				equalList(x, "the claimed ids", got, all)
				for _, item := range items {
					equal(x, "the subject of "+item.ID, item.SubjectID, "subject of "+item.ID)
					x.step(&item, fmt.Sprintf("%q", item.ID), supervisor.Continue{Delay: far})
				}
				if x.Instances == nil {
					return
				}
				for _, id := range all {
					x.equalJSON("the state of "+id, x.get(id).State, fmt.Sprintf("%q", id))
				}
			},
		},
		{
			topic: "identifiers", name: "separators",
			rule: "tenant and id are two keys, whatever characters they hold",
			run: func(x *trial) {
				var want []string
				for _, separator := range []string{":", "/", "|", ".", "\x1f", "\t", " "} {
					for _, parts := range [][2]string{{"t", "u" + separator + "v"}, {"t" + separator + "u", "v"}} {
						instance := x.instance(parts[1])
						instance.TenantID = x.tenant + parts[0]
						x.add(instance, time.Time{})
						want = append(want, instance.TenantID+"\n"+instance.ID)
					}
				}
				var got []string
				for _, item := range x.claimN(len(want)) {
					got = append(got, item.TenantID+"\n"+item.ID)
				}
				slices.Sort(got)
				slices.Sort(want)
				// Every separator adds tenant "t" and another id, so that none is there twice.
				equalList(x, "the claimed instances", got, slices.Compact(want))
			},
		},
		{
			topic: "identifiers", name: "longest",
			rule: "ids have at most 512 bytes; those of 512 work together",
			run: func(x *trial) {
				instance := x.instance(longest("id"))
				instance.TenantID, instance.SpecID = longest("tenant"), longest("spec")
				instance.DefinitionID = longest("definition")
				w := note("w")
				w.ID = longest("wakeup")
				if x.Add != nil {
					x.add(instance, time.Time{}, w)
				} else {
					x.add(instance, time.Time{})
					x.check(x.Instances.Deliver(x.ctx, instance.TenantID, instance.ID, w, time.Time{}), "Deliver")
				}
				req := x.request(1)
				req.SpecIDs, req.WorkerID = []string{instance.SpecID}, longest("worker")
				item := x.collect(1, func(int) supervisor.ClaimRequest { return req })[0]
				sameInstance(x, &item.Instance, &instance)
				renewal := lease(&item, held)
				renewal.WorkerID = req.WorkerID
				x.check(x.Renew(x.ctx, renewal), "Renew")
				command := x.command(&item, `1`, supervisor.Complete{})
				command.DeliveryKey, command.ConsumedWakeups = longest("key"), []string{w.ID}
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, longest("intent"))}
				command.ActionIntents[0].IdempotencyKey = longest("idempotency key")
				x.commit(&item, command)
			},
		},
	}
}

// longest returns an id of the greatest length that no store can compress, for
// some bound their index entries by the compressed size.
func longest(name string) string {
	id := []byte(name)
	random := rand.New(rand.NewPCG(uint64(len(name)), 1))
	for len(id) < supervisor.MaxIDBytes {
		id = append(id, '!'+byte(random.IntN('~'-'!')))
	}
	return string(id)
}

func identifiersTwoTenants(x *trial) {
	x.due("a")
	other := x.instance("a")
	other.TenantID += " other"
	x.add(other, time.Time{})
	items := x.claimN(2)
	if items[0].TenantID == items[1].TenantID {
		x.Fatalf("tenant %q was served twice", items[0].TenantID)
	}
	if items[0].TenantID != x.tenant {
		items[0], items[1] = items[1], items[0]
	}
	mine, theirs := items[0], items[1]
	equal(x, "the run id of mine", mine.RunID == theirs.RunID, false)

	// Each of the two commits under the other's lease version only by accident.
	before := x.look(&theirs)
	x.fail(&mine, "mine", mine.ClaimedAt)
	x.same(&theirs, before, "a commit of the same id in another tenant")
	x.fail(&theirs, "theirs", theirs.ClaimedAt)
	for _, item := range x.claimN(2) {
		equal(x, "Attempt in "+item.TenantID, item.Attempt, 1)
		command := x.command(&item, `1`, supervisor.Continue{Delay: far})
		command.DeliveryKey, command.DeliveryDigest = "run-1", "digest in "+item.TenantID
		x.commit(&item, command)
	}
	if x.Instances == nil {
		return
	}
	x.deliver("a", note("w"), time.Time{})
	item := x.claimOne()
	equal(x, "the tenant that was delivered to", item.TenantID, x.tenant)
	x.check(x.Instances.Cancel(x.ctx, other.TenantID, "a"), "Cancel")
	x.check(x.Renew(x.ctx, lease(&item, held)), "Renew after the same id in another tenant was cancelled")
	x.step(&item, `2`, supervisor.Complete{})
	equal(x, "Status of mine", x.get("a").Status, supervisor.StatusCompleted)
	snapshot, err := x.Instances.Get(x.ctx, other.TenantID, "a")
	x.check(err, "Get")
	equal(x, "Status of theirs", snapshot.Status, supervisor.StatusActive)
	equal(x, "CancelRequested of theirs", snapshot.CancelRequested, true)
}
