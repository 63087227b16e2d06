package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func clockCases() []testCase {
	return []testCase{
		{
			topic: "clock", name: "one-clock",
			rule: "all instants of a claim are given by one clock, and follow one another",
			run: func(x *trial) {
				x.due("a")
				var last supervisor.WorkItem
				for n := range 4 {
					item := x.claimOne()
					if n > 0 && (item.ClaimedAt.Before(last.ClaimedAt) || item.ScheduledAt.Before(last.ClaimedAt)) {
						x.Errorf("claimed at %v as scheduled at %v, after a claim at %v", item.ClaimedAt, item.ScheduledAt, last.ClaimedAt)
					}
					if took := item.ClaimedAt.Sub(item.ScheduledAt); took < 0 || took > 2*patience {
						x.Errorf("an instance that was due at once was claimed %v after its due time", took)
					}
					last = item
					x.step(&item, `1`, supervisor.Continue{})
				}
			},
		},
		{
			topic: "clock", name: "wrong-host-clock", needs: shiftHost, alone: true,
			rule: "due, lease and retry times are judged and computed by the store's clock only, never by the host's",
			run:  clockWrongHost,
		},
		{
			topic: "clock", name: "lease-end", needs: instances,
			rule: "a lease ends its duration after the claim, by the store's clock",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.leaseEnds(item.ClaimedAt, x.get("a").LeaseEndsAt, held)
			},
		},
	}
}

// leaseEnds checks the end of a lease. A store may read its clock more than once
// in a transaction.
func (x *trial) leaseEnds(claimedAt, end time.Time, duration time.Duration) {
	x.Helper()
	if off := end.Sub(claimedAt.Add(duration)).Abs(); off > time.Second {
		x.Errorf("the lease of %v from %v ends at %v, which is off by %v", duration, claimedAt, end, off)
	}
}

func clockWrongHost(x *trial) {
	// The store's clock is read before anything is shifted.
	x.add(x.instance("later"), x.now().Add(10*time.Minute))
	for _, shift := range []time.Duration{far, -far} {
		id := "host " + shift.String()
		x.due(id)
		x.ShiftHost(shift)
		item := x.claimOne()
		equal(x, "the claimed id", item.ID, id)
		if off := item.ClaimedAt.Sub(x.now()).Abs(); off > far/2 {
			x.Errorf("with the host's clock shifted by %v ClaimedAt is off by %v", shift, off)
		}
		x.idle("the lease lasts, and the other instance is due in ten minutes")
		x.check(x.Renew(x.ctx, lease(&item, held)), "Renew with the host's clock shifted by %v", shift)
		x.fail(&item, "failed", x.now().Add(far/2))
		x.idle("the retry time is half an hour away")
		x.due(id + " lapses")
		lapses := x.claimShort()
		again := x.claimOne()
		equal(x, "the id whose lease has ended", again.ID, lapses.ID)
		x.step(&again, `1`, supervisor.Complete{})
		x.ShiftHost(0)
	}
}
