package queuetest

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func explainCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "explain", name: "finished",
			rule: "Explain tells completed, failed and cancelled instances apart, and why one failed",
			run: func(x *trial) {
				for id, d := range map[string]supervisor.Disposition{
					"completed": supervisor.Complete{}, "failed": supervisor.Failed{Reason: "the reason"}, "cancelled": supervisor.Complete{},
				} {
					x.due(id)
					if id == "cancelled" {
						x.check(x.Instances.Cancel(x.ctx, x.tenant, id), "Cancel")
					}
					item := x.claimOne()
					x.step(&item, `1`, d)
					explanation := x.explain(id)
					equal(x, "Reason", string(explanation.Reason), id)
					if id == "failed" && !strings.Contains(explanation.Detail, "the reason") {
						x.Errorf("the explanation is %+v, want the reason of the failure in it", explanation)
					}
				}
			},
		},
		{
			topic: "explain", name: "running",
			rule: "Explain names the worker of a running instance and the end of its lease",
			run: func(x *trial) {
				x.due("a")
				x.claimOne()
				explanation := x.explain("a")
				equal(x, "Reason", explanation.Reason, supervisor.ReasonRunning)
				equal(x, "By", explanation.By, worker)
				if !explanation.Until.Equal(x.get("a").LeaseEndsAt) {
					x.Errorf("Until is %v, want the end of the lease", explanation.Until)
				}
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				equal(x, "Reason while it runs and is cancelled", x.explain("a").Reason, supervisor.ReasonRunning)
			},
		},
		{
			topic: "explain", name: "paused",
			rule: "Explain names the scope of a pause, the widest one",
			run: func(x *trial) {
				x.due("a")
				instance, tenant := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}, supervisor.Scope{TenantID: x.tenant}
				for _, scope := range []supervisor.Scope{instance, tenant} {
					x.check(x.Instances.Pause(x.ctx, scope), "Pause")
					explanation := x.explain("a")
					equal(x, "Reason", explanation.Reason, supervisor.ReasonPaused)
					equal(x, "By", explanation.By, scope.String())
				}
			},
		},
		{
			topic: "explain", name: "cancelling",
			rule: "Explain says of an instance with cancellation requested that it is cancelling",
			run: func(x *trial) {
				x.due("a")
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				equal(x, "Reason", x.explain("a").Reason, supervisor.ReasonCancelling)
			},
		},
		{
			topic: "explain", name: "failure-classes",
			rule: "revision_unpublished and no_driver are told from the class of the last failure",
			run: func(x *trial) {
				for reason, class := range map[supervisor.Reason]supervisor.FailureClass{
					supervisor.ReasonRevisionUnpublished: supervisor.FailureRevisionUnpublished,
					supervisor.ReasonNoDriver:            supervisor.FailureNoDriver,
					supervisor.ReasonBackingOff:          "",
				} {
					id := string(reason)
					x.due(id)
					item := x.claimOne()
					command := supervisor.FailureCommand(&item, "what went wrong", x.now().Add(far))
					payload, err := json.Marshal(map[string]string{"error": "what went wrong", "class": string(class)})
					x.check(err, "encoding the payload")
					command.EventPayload = payload
					x.commit(&item, command)
					explanation := x.explain(id)
					equal(x, "Reason", explanation.Reason, reason)
					if !strings.Contains(explanation.Detail, "what went wrong") || !explanation.Until.Equal(x.get(id).NextDueAt) {
						x.Errorf("the explanation is %+v, want the error and the retry time in it", explanation)
					}
					x.check(x.Instances.Retry(x.ctx, x.tenant, id), "Retry")
					equal(x, "Reason after Retry", x.explain(id).Reason, supervisor.ReasonDue)
					again := x.claimOne()
					x.step(&again, `1`, supervisor.Continue{Delay: far})
					equal(x, "Reason after a success", x.explain(id).Reason, supervisor.ReasonNotDue)
				}
			},
		},
		{
			topic: "explain", name: "waiting-and-due",
			rule: "Explain tells due, not due until when, and waiting for a delivery apart",
			run: func(x *trial) {
				due := x.now().Add(far)
				x.add(x.instance("not due"), due)
				explanation := x.explain("not due")
				equal(x, "Reason", explanation.Reason, supervisor.ReasonNotDue)
				if !explanation.Until.Equal(due) {
					x.Errorf("Until is %v, want %v", explanation.Until, due)
				}
				x.add(x.instance("waiting"), x.now().AddDate(150, 0, 0))
				equal(x, "Reason", x.explain("waiting").Reason, supervisor.ReasonWaiting)
				x.deliver("waiting", note("w"), time.Time{})
				equal(x, "Reason after a delivery", x.explain("waiting").Reason, supervisor.ReasonDue)
				x.due("due")
				equal(x, "Reason", x.explain("due").Reason, supervisor.ReasonDue)
			},
		},
		{
			topic: "explain", name: "lapsed",
			rule: "an instance whose lease has ended is due, not running",
			run: func(x *trial) {
				x.due("a")
				x.claimShort()
				x.outlast()
				equal(x, "Reason", x.explain("a").Reason, supervisor.ReasonDue)
			},
		},
	})
}

func (x *trial) explain(id string) supervisor.Explanation {
	x.Helper()
	explanation, err := x.Instances.Explain(x.ctx, x.tenant, id)
	x.check(err, "Explain of %q", id)
	return explanation
}
