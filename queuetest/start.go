package queuetest

import (
	"encoding/json"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func startCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "start", name: "once",
			rule: "Start with the same tenant and id again is false and changes nothing",
			run: func(x *trial) {
				instance := x.instance("a")
				x.add(instance, x.now().Add(far))
				item := supervisor.WorkItem{Instance: instance}
				before := x.look(&item)
				other := x.instance("a")
				other.Config, other.SpecID = json.RawMessage(`"other"`), x.spec+" other"
				started, err := x.Instances.Start(x.ctx, other, time.Time{})
				x.check(err, "Start with the same id")
				equal(x, "started", started, false)
				x.same(&item, before, "a second Start")
				x.idle("the first Start asked for an hour")
			},
		},
		{
			topic: "start", name: "once-for-ever",
			rule: "an id that was started stays taken when its instance is finished",
			run: func(x *trial) {
				instance := x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				started, err := x.Instances.Start(x.ctx, instance, time.Time{})
				x.check(err, "Start with the id of a finished instance")
				equal(x, "started", started, false)
				x.idle("the instance is completed")
			},
		},
		{
			topic: "start", name: "due-now",
			rule: "a zero dueAt means now",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				if item.ScheduledAt.Sub(item.CreatedAt).Abs() > time.Second {
					x.Errorf("ScheduledAt is %v, want the time of the start, %v", item.ScheduledAt, item.CreatedAt)
				}
			},
		},
	})
}
