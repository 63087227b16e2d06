package queuetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func orderCases() []testCase {
	return []testCase{
		{
			topic: "order", name: "due-time",
			rule: "within a tenant items come in order of due time",
			run: func(x *trial) {
				// Neither ids nor the order of adding agree with the due times.
				due := x.soon()
				order := map[string]int{"d": 0, "a": 1, "e": 2, "c": 3, "b": 4}
				for _, id := range []string{"c", "a", "d", "b", "e"} {
					x.add(x.instance(id), due.Add(time.Duration(order[id])*time.Millisecond))
				}
				x.sleep(x.Lease + 10*poll)
				got := ids(x.claimN(5))
				equalList(x, "the order of one claim", got, []string{"d", "a", "e", "c", "b"})
			},
		},
		{
			topic: "order", name: "due-time-one-by-one",
			rule: "within a tenant items come in order of due time, also over several claims",
			run: func(x *trial) {
				due := x.soon()
				for n, id := range []string{"c", "a", "b"} {
					x.add(x.instance(id), due.Add(time.Duration(n)*time.Millisecond))
				}
				x.sleep(x.Lease + 10*poll)
				var got []string
				for range 3 {
					got = append(got, x.claimOne().ID)
				}
				equalList(x, "the order of three claims", got, []string{"c", "a", "b"})
			},
		},
		{
			topic: "order", name: "again-at-once-goes-behind",
			rule: "an instance that is due again at once goes behind those already due",
			run: func(x *trial) {
				x.due("a")
				x.sleep(poll)
				x.due("b")
				x.sleep(poll)
				first := x.claimOne()
				equal(x, "the first id", first.ID, "a")
				x.step(&first, `1`, supervisor.Continue{})
				equalList(x, "the ids claimed next", ids(x.claimN(2)), []string{"b", "a"})
			},
		},
		{
			topic: "order", name: "retry-moves-back",
			rule: "a retry moves an instance back in the order of due times",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				first := x.claimOne()
				x.fail(&first, "first", first.ClaimedAt)
				equalList(x, "the ids claimed next", ids(x.claimN(2)), []string{"b", "a"})
			},
		},
		{
			topic: "order", name: "lapsed-keeps-its-place",
			rule: "an instance whose lease has ended is due again as it was: before those that fell due later",
			run: func(x *trial) {
				x.due("z")
				x.claimShort()
				x.due("a")
				x.outlast()
				equalList(x, "the ids claimed next", ids(x.claimN(2)), []string{"z", "a"})
			},
		},
	}
}

func fairnessCases() []testCase {
	return []testCase{
		{
			topic: "fairness", name: "one-per-tenant-in-turn",
			rule: "across tenants that have due work one item per tenant is taken in turn, round after round",
			run: func(x *trial) {
				x.addTo("A", 4)
				x.addTo("B", 2)
				x.addTo("C", 1)
				got := x.tenants(x.claimN(7))
				for round, want := range [][]string{{"A", "B", "C"}, {"A", "B"}, {"A"}, {"A"}} {
					turn := slices.Clone(got[:len(want)])
					slices.Sort(turn)
					equalList(x, fmt.Sprintf("the tenants of round %d", round+1), turn, want)
					got = got[len(want):]
				}
			},
		},
		{
			topic: "fairness", name: "flood",
			rule: "the backlog of one tenant does not keep another one waiting",
			run: func(x *trial) {
				x.addTo("A", 60)
				x.sleep(poll)
				x.addTo("B", 1)
				got := x.tenants(x.claim(x.request(10)))
				if !slices.Contains(got, "B") {
					x.Errorf("the first claim of 10 served %v, want B among them", got)
				}
			},
		},
		{
			topic: "fairness", name: "least-recently-served-first",
			rule: "the least recently served tenant comes first",
			run: func(x *trial) {
				x.addTo("A", 3)
				x.addTo("B", 3)
				x.addTo("C", 3)
				got := x.oneByOne(9, x.spec)
				for n := 3; n < len(got); n++ {
					if got[n] != got[n-3] {
						x.Errorf("one claim after another served %v, want the same turn in each round", got)
						break
					}
				}
			},
		},
		{
			topic: "fairness", name: "never-served-before-all",
			rule: "a tenant never served comes before all others",
			run: func(x *trial) {
				x.addTo("A", 3)
				x.addTo("B", 3)
				x.oneByOne(2, x.spec)
				x.addTo("C", 1)
				equalList(x, "the tenant served after A and B had their turn", x.oneByOne(1, x.spec), []string{"C"})
			},
		},
		{
			topic: "fairness", name: "for-whatever-spec",
			rule: "a tenant's turn counts for whatever spec it was served",
			run: func(x *trial) {
				other := x.spec + " (other)"
				x.addSpec("B", "b", x.spec)
				x.addSpec("A", "a1", x.spec)
				x.addSpec("C", "c1", other)
				x.addSpec("A", "a2", other)
				x.addSpec("C", "c2", x.spec)
				equalList(x, "the tenants served for the other spec", sorted(x.oneByOne(2, other)), []string{"A", "C"})
				// B was never served; A and C were, for the other spec.
				equal(x, "the tenant served first for this spec", x.oneByOne(1, x.spec)[0], "B")
			},
		},
		{
			topic: "fairness", name: "others-keep-their-turn",
			rule: "tenants without due work of the wanted specs keep their turn",
			run: func(x *trial) {
				other := x.spec + " (other)"
				for n := range 4 {
					x.addSpec("B", fmt.Sprint("other", n), other)
				}
				x.addSpec("B", "b", x.spec)
				x.addSpec("A", "a1", x.spec)
				x.addSpec("A", "a2", x.spec)
				x.oneByOne(2, x.spec) // one of A, one of B, in whatever order
				x.addSpec("B", "b2", x.spec)
				x.oneByOne(4, other) // B alone has such work
				equal(x, "the tenant served first after B was served for another spec", x.oneByOne(1, x.spec)[0], "A")
			},
		},
	}
}

// addTo adds due instances to a tenant of the case.
func (x *trial) addTo(tenant string, n int) {
	x.Helper()
	for i := range n {
		x.addSpec(tenant, fmt.Sprintf("i%03d", i), x.spec)
	}
}

func (x *trial) addSpec(tenant, id, spec string) {
	x.Helper()
	instance := x.instance(id)
	instance.TenantID = x.tenant + " " + tenant
	instance.SpecID = spec
	x.add(instance, time.Time{})
}

// tenants returns the short names of the tenants that were served.
func (x *trial) tenants(items []supervisor.WorkItem) []string {
	names := make([]string, len(items))
	for n := range items {
		names[n] = items[n].TenantID[len(x.tenant)+1:]
	}
	return names
}

// oneByOne claims n times one item of a spec.
func (x *trial) oneByOne(n int, spec string) []string {
	x.Helper()
	var items []supervisor.WorkItem
	for range n {
		items = append(items, x.collect(1, func(int) supervisor.ClaimRequest {
			req := x.request(1)
			req.SpecIDs = []string{spec}
			return req
		})...)
	}
	return x.tenants(items)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
