package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func revisionCases() []testCase {
	return []testCase{
		{
			topic: "revisions", name: "unpublished",
			rule: "LoadRevision of an item whose revision is not published is ErrRevisionUnavailable",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				_, err := x.LoadRevision(x.ctx, &item)
				x.want(err, supervisor.ErrRevisionUnavailable, "LoadRevision")
			},
		},
		{
			topic: "revisions", name: "whole", needs: instances,
			rule: "LoadRevision returns the published revision that a claimed item is pinned to, unchanged",
			run: func(x *trial) {
				for n, spec := range exactJSON() {
					revision := x.revision(uint64(n + 1))
					revision.DefinitionID = fmt.Sprint("definition ", n)
					revision.Spec = json.RawMessage(spec)
					x.publish(&revision)
					item := x.pinnedTo(&revision)
					got := x.load(&item)
					if got == nil {
						continue
					}
					x.equalJSON("Spec", got.Spec, spec)
					if !reflect.DeepEqual(*got, revision) {
						x.Errorf("the revision is\n%+v\nwant\n%+v", *got, revision)
					}
				}
			},
		},
		{
			topic: "revisions", name: "found-by-every-pin", needs: instances,
			rule: "a revision is found by the item's tenant, definition, revision number and digest",
			run: func(x *trial) {
				revision := x.revision(1)
				x.publish(&revision)
				item := x.pinnedTo(&revision)
				if x.load(&item) == nil {
					return
				}
				for what, change := range map[string]func(*supervisor.WorkItem){
					"tenant":     func(w *supervisor.WorkItem) { w.TenantID += " other" },
					"definition": func(w *supervisor.WorkItem) { w.DefinitionID += " other" },
					"number":     func(w *supervisor.WorkItem) { w.WorkflowRevision++ },
					"digest":     func(w *supervisor.WorkItem) { w.WorkflowRevisionDigest = "other" },
				} {
					other := item.Clone()
					change(&other)
					_, err := x.LoadRevision(x.ctx, &other)
					x.want(err, supervisor.ErrRevisionUnavailable, "LoadRevision with another %s", what)
				}
			},
		},
		{
			topic: "revisions", name: "immutable", needs: instances,
			rule: "publishing the same content again is nil; other content under the same definition and revision number is ErrStateConflict",
			run: func(x *trial) {
				revision := x.revision(1)
				x.publish(&revision)
				x.publish(&revision)
				for what, change := range map[string]func(*supervisor.Revision){
					"spec":         func(r *supervisor.Revision) { r.Spec = json.RawMessage(`{"nodes":2}`) },
					"spec id":      func(r *supervisor.Revision) { r.SpecID += " other" },
					"digest":       func(r *supervisor.Revision) { r.ContentDigest = "other" },
					"abi":          func(r *supervisor.Revision) { r.KernelABIVersion = "2" },
					"capabilities": func(r *supervisor.Revision) { r.Capabilities[0].ContractVersion = "2" },
					"expressions":  func(r *supervisor.Revision) { r.ExpressionVersions["e"] = "2" },
					"dependencies": func(r *supervisor.Revision) { r.DependencySetDigest = "other" },
				} {
					other := x.revision(1)
					change(&other)
					x.want(x.Instances.PublishRevision(x.ctx, x.tenant, &other), supervisor.ErrStateConflict, "PublishRevision with another %s", what)
				}
				item := x.pinnedTo(&revision)
				if got := x.load(&item); got != nil && !reflect.DeepEqual(*got, revision) {
					x.Errorf("the revision became\n%+v\nwant\n%+v", *got, revision)
				}
				// The number, the definition and the tenant make another revision.
				other := x.revision(2)
				other.Spec = json.RawMessage(`{"nodes":2}`)
				x.publish(&other)
				other.DefinitionID += " other"
				x.publish(&other)
				other.DefinitionID, other.Revision = revision.DefinitionID, 1
				x.check(x.Instances.PublishRevision(x.ctx, x.tenant+" other", &other), "PublishRevision in another tenant")
			},
		},
		{
			topic: "revisions", name: "invalid", needs: instances,
			rule: "a revision that Validate refuses is not published",
			run: func(x *trial) {
				for what, change := range map[string]func(*supervisor.Revision){
					"a number of 0":               func(r *supervisor.Revision) { r.Revision = 0 },
					"a blank definition":          func(r *supervisor.Revision) { r.DefinitionID = " " },
					"no spec":                     func(r *supervisor.Revision) { r.Spec = nil },
					"a spec that is not JSON":     func(r *supervisor.Revision) { r.Spec = json.RawMessage(`{`) },
					"a digest that is not its":    func(r *supervisor.Revision) { r.ContentDigest = "sha256:00" },
					"a capability pinned twice":   func(r *supervisor.Revision) { r.Capabilities = append(r.Capabilities, r.Capabilities[0]) },
					"a spec with an escaped NUL":  func(r *supervisor.Revision) { r.Spec = json.RawMessage(`"\u0000"`) },
					"a definition with NUL":       func(r *supervisor.Revision) { r.DefinitionID = "a\x00" },
					"a blank version of the ABI":  func(r *supervisor.Revision) { r.KernelABIVersion = "" },
					"an expression without name":  func(r *supervisor.Revision) { r.ExpressionVersions = map[string]string{"": "1"} },
					"a spec id that is not UTF-8": func(r *supervisor.Revision) { r.SpecID = "\xff" },
				} {
					revision := x.revision(1)
					change(&revision)
					x.wantErr(x.Instances.PublishRevision(x.ctx, x.tenant, &revision), "PublishRevision with %s", what)
				}
				revision := x.revision(1)
				x.publish(&revision)
			},
		},
		{
			topic: "revisions", name: "memory", needs: instances,
			rule: "revisions share no memory between the queue and its callers",
			run: func(x *trial) {
				want, published := x.revision(1), x.revision(1)
				x.publish(&published)
				spoilRevision(&published)
				item := x.pinnedTo(&want)
				for range 2 {
					got := x.load(&item)
					if got == nil {
						return
					}
					if !reflect.DeepEqual(*got, want) {
						x.Errorf("the revision became\n%+v\nwant\n%+v", *got, want)
					}
					spoilRevision(got)
				}
			},
		},
		{
			topic: "admission", name: "answers",
			rule: "AdmitEvaluation returns nil or an error that is ErrNotAdmitted",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				if err := x.AdmitEvaluation(x.ctx, &item); err != nil && !errors.Is(err, supervisor.ErrNotAdmitted) {
					x.Errorf("AdmitEvaluation: error is %q, want nil or one that is %q", err, supervisor.ErrNotAdmitted)
				}
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "admission", name: "denied", needs: deny,
			rule: "AdmitEvaluation is ErrNotAdmitted where the owner may not have the instance evaluated now",
			run: func(x *trial) {
				x.due("a")
				other := x.instance("a")
				other.TenantID += " denied"
				x.add(other, time.Time{})
				x.Deny(other.TenantID)
				for _, item := range x.claimN(2) {
					err := x.AdmitEvaluation(x.ctx, &item)
					if item.TenantID == other.TenantID {
						x.want(err, supervisor.ErrNotAdmitted, "AdmitEvaluation in a denied tenant")
					} else {
						x.check(err, "AdmitEvaluation in another tenant")
					}
				}
			},
		},
	}
}

// revision returns a valid revision with every field set.
func (x *trial) revision(number uint64) supervisor.Revision {
	return supervisor.Revision{
		DefinitionID: "definition", Revision: number, SpecID: x.spec, Spec: json.RawMessage(`{"nodes":1}`),
		ContentDigest: "opaque:1", KernelABIVersion: "1", Capabilities: []supervisor.CapabilityPin{pin()},
		ExpressionVersions: map[string]string{"e": "1", "f": "2"}, DependencySetDigest: "dependencies",
	}
}

func (x *trial) publish(revision *supervisor.Revision) {
	x.Helper()
	x.check(x.Instances.PublishRevision(x.ctx, x.tenant, revision), "PublishRevision %q number %d", revision.DefinitionID, revision.Revision)
}

// pinnedTo claims a new instance that is pinned to a revision.
func (x *trial) pinnedTo(revision *supervisor.Revision) supervisor.WorkItem {
	x.Helper()
	instance := x.instance("pinned to " + revision.DefinitionID)
	instance.DefinitionID, instance.WorkflowRevision = revision.DefinitionID, revision.Revision
	instance.WorkflowRevisionDigest = revision.ContentDigest
	x.add(instance, time.Time{})
	item := x.claimOne()
	x.step(&item, `1`, supervisor.Complete{})
	return item
}

// load returns nil, and reports it, where the revision is not there.
func (x *trial) load(item *supervisor.WorkItem) *supervisor.Revision {
	x.Helper()
	got, err := x.LoadRevision(x.ctx, item)
	if err != nil || got == nil {
		x.Errorf("LoadRevision of a published revision: %v with error %s", got, describe(err))
		return nil
	}
	return got
}

func spoilRevision(r *supervisor.Revision) {
	spoil(r.Spec)
	r.Capabilities[0].ID = "spoiled"
	r.ExpressionVersions["e"] = "spoiled"
}
