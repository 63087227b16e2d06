package queuetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// fullQueue is a queue with every ability.
type fullQueue interface {
	supervisor.WorkQueue
	supervisor.Instances
	supervisor.Releaser
	supervisor.CommitKeeper
}

// TestMemoryAgreesWithModel drives the memory queue and the model, which were
// written apart from each other, through the same random calls on one clock and
// compares every answer and all that can be seen after every call.
// QUEUETEST_SEED repeats one run.
func TestMemoryAgreesWithModel(t *testing.T) {
	if seed, err := strconv.ParseUint(os.Getenv("QUEUETEST_SEED"), 10, 64); err == nil {
		synctest.Test(t, func(t *testing.T) { agree(t, seed, 400) })
		return
	}
	runs := uint64(100)
	if testing.Short() {
		runs = 20
	}
	first := rand.Uint64()
	for seed := first; seed < first+runs; seed++ {
		synctest.Test(t, func(t *testing.T) { agree(t, seed, 120) })
		if t.Failed() {
			return
		}
	}
}

// comparison is one run of two queues side by side.
type comparison struct {
	t      *testing.T
	rand   *rand.Rand
	queues [2]fullQueue
	seed   uint64
	log    []string
	claims [][2]supervisor.WorkItem // all that were ever claimed, also stale ones
	keys   int
}

func agree(t *testing.T, seed uint64, calls int) {
	c := &comparison{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)),
		queues: [2]fullQueue{supervisor.NewMemoryWorkQueue(), newModel(broken{})},
	}
	for range calls {
		c.call()
		c.compareAll()
		if t.Failed() {
			return
		}
	}
}

func (c *comparison) pick(list ...string) string { return list[c.rand.IntN(len(list))] }

func (c *comparison) tenant() string { return c.pick("t1", "t1", "t2") }
func (c *comparison) id() string     { return c.pick("a", "b", "c", "d") }

// ahead is a short time ahead, or none.
func (c *comparison) ahead() time.Duration {
	return time.Duration(c.rand.IntN(4)) * 7 * time.Second
}

func (c *comparison) at() time.Time {
	if c.rand.IntN(3) == 0 {
		return time.Time{}
	}
	return time.Now().Add(c.ahead() - 3*time.Second)
}

// same calls both queues and compares what they answer.
func (c *comparison) same(what string, call func(q fullQueue) (any, error)) {
	c.log = append(c.log, what)
	var texts [2]string
	for n, q := range c.queues {
		answer, err := call(q)
		text, _ := json.Marshal(answer)
		texts[n] = string(text) + " " + class(err)
	}
	if texts[0] != texts[1] {
		c.differ(what, texts[0], texts[1])
	}
}

func (c *comparison) differ(what, memory, model string) {
	at := 0
	for at < min(len(memory), len(model)) && memory[at] == model[at] {
		at++
	}
	from := max(at-100, 0)
	memory, model = memory[from:min(len(memory), at+300)], model[from:min(len(model), at+300)]
	c.t.Errorf("seed %d: after\n%s\n%s differs:\nmemory %s\n model %s", c.seed, join(c.log), what, memory, model)
}

func join(lines []string) (text string) {
	for _, line := range lines {
		text += "\t" + line + "\n"
	}
	return text
}

// class is the sentinel that an error is.
func class(err error) string {
	if err == nil {
		return "nil"
	}
	for _, sentinel := range []error{
		supervisor.ErrLeaseLost, supervisor.ErrStateConflict, supervisor.ErrDeliveryConflict, supervisor.ErrNotFound,
		supervisor.ErrFinished, supervisor.ErrEpochStale, supervisor.ErrCommandRejected,
	} {
		if errors.Is(err, sentinel) {
			return sentinel.Error()
		}
	}
	return "another error"
}

func (c *comparison) call() {
	tenant, id, at := c.tenant(), c.id(), c.at()
	target := tenant + "/" + id
	scope := supervisor.Scope{TenantID: tenant}
	switch c.rand.IntN(4) {
	case 0, 1:
		scope.InstanceID = id
	case 2:
		scope.ResourceID = "r"
	}
	switch c.rand.IntN(17) {
	case 0, 1:
		instance := c.instance(tenant, id)
		c.same(fmt.Sprintf("Start %s at %v with %+v", target, at, instance.Lifecycle), func(q fullQueue) (any, error) {
			return q.Start(c.t.Context(), instance, at)
		})
	case 2, 3:
		w := supervisor.Wakeup{ID: c.pick("w1", "w2", "w3", "w4"), Kind: c.pick("note", "note", "timer"), Payload: json.RawMessage(`1`)}
		c.same(fmt.Sprintf("Deliver %s %s to %s at %v", w.ID, w.Kind, target, at), func(q fullQueue) (any, error) {
			return nil, q.Deliver(c.t.Context(), tenant, id, w, at)
		})
	case 4:
		c.same("Cancel "+target, func(q fullQueue) (any, error) { return nil, q.Cancel(c.t.Context(), tenant, id) })
	case 5:
		c.same("Retry "+target, func(q fullQueue) (any, error) { return nil, q.Retry(c.t.Context(), tenant, id) })
	case 6:
		c.same("Pause "+scope.String(), func(q fullQueue) (any, error) { return nil, q.Pause(c.t.Context(), scope) })
	case 7, 8:
		c.same("Resume "+scope.String(), func(q fullQueue) (any, error) { return nil, q.Resume(c.t.Context(), scope) })
	case 9, 10:
		c.claim()
	case 11:
		if item, ok := c.claimed(); ok {
			worker := c.pick("w", "w", "v")
			c.same(fmt.Sprintf("Renew %s version %d by %s", target, item[0].LeaseVersion, worker), func(q fullQueue) (any, error) {
				l := lease(c.of(q, &item), 11*time.Second)
				l.WorkerID = worker
				return nil, q.Renew(c.t.Context(), l)
			})
		}
	case 12, 13, 14:
		if item, ok := c.claimed(); ok {
			c.commit(item)
		}
	case 15:
		if item, ok := c.claimed(); ok {
			c.same(fmt.Sprintf("Release %s/%s version %d", item[0].TenantID, item[0].ID, item[0].LeaseVersion), func(q fullQueue) (any, error) {
				return nil, q.Release(c.t.Context(), c.of(q, &item), "given back")
			})
		}
	case 16:
		if c.rand.IntN(4) == 0 {
			before := time.Now().Add(-c.ahead())
			c.same(fmt.Sprint("Prune ", before), func(q fullQueue) (any, error) { return q.Prune(c.t.Context(), before) })
			return
		}
		d := c.ahead() + time.Millisecond
		c.log = append(c.log, fmt.Sprint("sleep ", d))
		time.Sleep(d)
	}
}

func (c *comparison) instance(tenant, id string) supervisor.Instance {
	instance := supervisor.Instance{
		ID: id, RunID: "00000000-0000-4000-8000-000000000001", TenantID: tenant, SpecID: c.pick("s1", "s2"), DefinitionID: "d",
		WorkflowRevision: 1, WorkflowRevisionDigest: "1", ExecutionProfileID: "p", ExecutionProfileRevision: 1,
		ExecutionProfileDigest: "p", KernelABIVersion: "1", CapabilityPins: []supervisor.CapabilityPin{pin()},
		Config: json.RawMessage(`{"c":1}`),
	}
	if c.rand.IntN(2) == 0 {
		return instance
	}
	now, policy := time.Now(), &instance.Lifecycle
	if c.rand.IntN(3) == 0 {
		policy.StartsAt = now.Add(c.ahead())
	}
	if c.rand.IntN(2) == 0 {
		policy.ExpiresAt = now.Add(30*time.Second + c.ahead())
		if c.rand.IntN(2) == 0 {
			policy.DrainDeadline = policy.ExpiresAt.Add(c.ahead())
		}
		policy.OnExpiry = supervisor.ExpiryPolicy(c.pick("", "drain", "cancel"))
	}
	if c.rand.IntN(3) == 0 {
		policy.EventIdleTimeout = 20*time.Second + c.ahead()
	}
	if c.rand.IntN(3) == 0 {
		policy.ProgressTimeout = 20*time.Second + c.ahead()
	}
	if c.rand.IntN(3) == 0 {
		policy.Completion = supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterSuccessfulRuns, N: 2}
	}
	return instance
}

// claim claims all that is due.
func (c *comparison) claim() {
	req := supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: 5*time.Second + c.ahead(), Limit: 100}
	if c.rand.IntN(3) == 0 {
		req.SpecIDs = []string{c.pick("s1", "s2")}
	}
	var claims [2][]supervisor.WorkItem
	c.same(fmt.Sprintf("ClaimDue %v for %v", req.SpecIDs, req.LeaseDuration), func(q fullQueue) (any, error) {
		items, err := q.ClaimDue(c.t.Context(), req)
		// The order among tenants, and among equal due times, is open.
		last := map[string]time.Time{}
		for _, item := range items {
			if item.ScheduledAt.Before(last[item.TenantID]) {
				c.t.Errorf("seed %d: tenant %s: %q was due at %v, after one that was due later", c.seed, item.TenantID, item.ID, item.ScheduledAt)
			}
			last[item.TenantID] = item.ScheduledAt
		}
		slices.SortFunc(items, func(a, b supervisor.WorkItem) int {
			return cmp.Or(strings.Compare(a.TenantID, b.TenantID), strings.Compare(a.ID, b.ID))
		})
		claims[c.index(q)] = items
		return items, err
	})
	if len(claims[0]) == len(claims[1]) {
		for n := range claims[0] {
			c.claims = append(c.claims, [2]supervisor.WorkItem{claims[0][n], claims[1][n]})
		}
	}
}

func (c *comparison) index(q fullQueue) int {
	if q == c.queues[0] {
		return 0
	}
	return 1
}

// of returns the item that a queue handed out.
func (c *comparison) of(q fullQueue, item *[2]supervisor.WorkItem) *supervisor.WorkItem {
	return &item[c.index(q)]
}

// claimed picks a claim, mostly one of the latest.
func (c *comparison) claimed() (item [2]supervisor.WorkItem, ok bool) {
	if len(c.claims) == 0 {
		return item, false
	}
	last := len(c.claims) - 1
	return c.claims[last-min(last, c.rand.IntN(6))], true
}

func (c *comparison) commit(item [2]supervisor.WorkItem) {
	var d supervisor.Disposition
	switch c.rand.IntN(9) {
	case 0:
		d = supervisor.Complete{}
	case 1:
		d = supervisor.Failed{Reason: "for good"}
	case 2, 3:
		d = supervisor.Failed{Reason: "again", RetryAt: time.Now().Add(c.ahead() - time.Second)}
	case 4:
		d = supervisor.Reschedule{At: time.Now().Add(c.ahead() - time.Second)}
	case 5, 6:
		d = supervisor.Continue{Delay: 20 * time.Second}
	default:
		d = supervisor.Continue{Delay: c.ahead()}
	}
	c.keys++
	outcome := supervisor.EvaluationOutcome{Succeeded: c.rand.IntN(3) == 0, Triggered: c.rand.IntN(2) == 0}
	key, digest := fmt.Sprint("key ", c.keys), c.pick("digest 1", "digest 2")
	if c.rand.IntN(4) == 0 {
		key = fmt.Sprint("key ", max(c.keys-1-c.rand.IntN(3), 0)) // one that was used
	}
	consumed := map[string]bool{}
	for _, w := range item[0].Wakeups {
		consumed[w.ID] = c.rand.IntN(3) > 0
	}
	intent := ""
	if c.rand.IntN(4) == 0 {
		intent = c.pick("i1", "i2", "i3", "i4", "i5")
	}
	keep := c.rand.IntN(2) == 0
	var kept [2]*supervisor.WorkItem
	what := fmt.Sprintf("commit of %s/%s version %d with %+v %+v, key %q %q, intent %q, consuming %v, keep %v",
		item[0].TenantID, item[0].ID, item[0].LeaseVersion, d, outcome, key, digest, intent, consumed, keep)
	c.same(what, func(q fullQueue) (any, error) {
		i := c.of(q, &item)
		command, err := supervisor.NewCommand(i, "stepped", c.keys, map[string]int{"step": c.keys}, d)
		if err != nil {
			return nil, err
		}
		command.DeliveryKey, command.DeliveryDigest, command.Outcome = key, digest, outcome
		for _, w := range i.Wakeups {
			if consumed[w.ID] {
				command.ConsumedWakeups = append(command.ConsumedWakeups, w.ID)
			}
		}
		if intent != "" {
			var x trial
			command.ActionIntents = []supervisor.ActionIntent{x.intent(i, intent)}
			command.ActionIntents[0].ResourceScopeID = "r"
		}
		if !keep {
			return nil, q.CommitCommand(c.t.Context(), i, &command)
		}
		next, err := q.CommitAndKeep(c.t.Context(), i, &command, 8*time.Second)
		kept[c.index(q)] = next
		return next, err
	})
	if kept[0] != nil && kept[1] != nil {
		c.claims = append(c.claims, [2]supervisor.WorkItem{*kept[0], *kept[1]})
	}
}

// compareAll compares all that can be seen.
func (c *comparison) compareAll() {
	var views [2]map[string]string
	for n, q := range c.queues {
		views[n] = map[string]string{}
		for s, err := range q.List(c.t.Context(), supervisor.Filter{}) {
			if err != nil {
				c.t.Fatal(err)
			}
			name := s.TenantID + "/" + s.ID
			text, _ := json.Marshal(s)
			views[n][name] = string(text)
			explanation, err := q.Explain(c.t.Context(), s.TenantID, s.ID)
			views[n][name+" explanation"] = fmt.Sprintf("%+v %v", explanation, err)
			for event, err := range q.History(c.t.Context(), s.TenantID, s.ID) {
				views[n][name+" history"] += fmt.Sprintf("%+v %v\n", event, err)
			}
		}
	}
	for name := range views[0] {
		if views[0][name] != views[1][name] {
			c.differ(name, views[0][name], views[1][name])
		}
	}
	if len(views[0]) != len(views[1]) {
		c.differ("the list", fmt.Sprint(len(views[0])), fmt.Sprint(len(views[1])))
	}
}
