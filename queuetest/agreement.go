package queuetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func agreementCases() []testCase {
	return []testCase{{
		topic: "agreement", name: "random-calls", needs: instances, alone: true,
		rule: "all queues answer the same calls alike: those of the memory queue, too",
		run: func(x *trial) {
			x.now()
			seed := x.Seed
			runs := uint64(3)
			if seed == 0 {
				seed = rand.Uint64()
			} else {
				runs = 1
			}
			for run := range runs {
				x.pruneAll() // what the run before finished
				memory := supervisor.NewMemoryWorkQueue()
				a := &agreement{
					report: x.Errorf, unsupported: x.unsupported, ctx: x.ctx, seed: seed + run, rand: rand.New(rand.NewPCG(seed+run, 0)),
					prefix: fmt.Sprintf("%s %d ", x.tenant, run),
					sides: [2]side{
						{
							name: "this queue", queue: x.WorkQueue, client: x.Instances, release: x.release, keep: x.keep,
							intents: x.intents, operator: x.operator, now: x.now,
						},
						{
							name: "memory", queue: memory, client: memory, release: memory, keep: memory,
							intents: memory, operator: memory, now: time.Now,
						},
					},
				}
				if a.run(160); a.failed {
					return
				}
			}
		},
	}}
}

// side is one of two queues that are compared.
type side struct {
	name    string
	queue   supervisor.WorkQueue
	client  supervisor.Instances
	release supervisor.Releaser     // nil: none is called
	keep    supervisor.CommitKeeper // nil: none is called
	// intents and operator are called where both sides have both; else no
	// intents are made.
	intents  supervisor.IntentQueue
	operator supervisor.IntentOperator
	now      func() time.Time
}

// agreement drives two queues through the same random calls and compares every
// answer, and all that can be seen after every call.
type agreement struct {
	report func(format string, args ...any)
	// unsupported ends the run where a method is missing.
	unsupported func(err error)
	ctx         context.Context
	seed        uint64
	rand        *rand.Rand
	prefix      string // of tenants and specs
	sides       [2]side
	// exact compares instants and lease versions, too: the sides share one
	// clock, and sleeping costs no time.
	exact bool

	log    []string
	claims [][2]supervisor.WorkItem   // all that were ever claimed, also stale ones
	works  [][2]supervisor.IntentWork // the same of intents
	keys   int
	failed bool
}

func (a *agreement) run(calls int) {
	for range calls {
		if a.call(); !a.failed {
			a.compareViews()
		}
		if a.failed {
			return
		}
	}
}

// differ reports a difference by its first place.
func (a *agreement) differ(what, left, right string) {
	a.failed = true
	at := 0
	for at < min(len(left), len(right)) && left[at] == right[at] {
		at++
	}
	from := max(at-100, 0)
	left, right = left[from:min(len(left), at+300)], right[from:min(len(right), at+300)]
	a.report("with seed %d after these calls %s differs:\n\t%s\n%s: …%s\n%s: …%s",
		a.seed, what, strings.Join(a.log, "\n\t"), a.sides[0].name, left, a.sides[1].name, right)
}

// both makes a call on both sides and compares the answers.
func (a *agreement) both(what string, call func(n int, s *side) (any, error)) {
	a.log = append(a.log, what)
	var texts [2]string
	for n := range a.sides {
		s := &a.sides[n]
		answer, err := call(n, s)
		a.unsupported(err)
		texts[n] = a.text(s, answer) + " with error " + class(err)
	}
	if texts[0] != texts[1] {
		a.differ("the answer to the last", texts[0], texts[1])
	}
}

// class is the sentinel that an error is.
func class(err error) string {
	if err == nil {
		return "nil"
	}
	for _, sentinel := range []error{
		supervisor.ErrLeaseLost, supervisor.ErrStateConflict, supervisor.ErrDeliveryConflict, supervisor.ErrNotFound,
		supervisor.ErrFinished, supervisor.ErrEpochStale, supervisor.ErrCommandRejected, supervisor.ErrReceiptConflict,
		supervisor.ErrIntentConflict, supervisor.ErrIntentRefused,
	} {
		if errors.Is(err, sentinel) {
			return sentinel.Error() + " " + string(refusal(err))
		}
	}
	return "of another kind"
}

// text renders an answer for comparison.
func (a *agreement) text(s *side, answer any) string {
	text, err := json.Marshal(answer)
	if err != nil {
		return err.Error()
	}
	if a.exact {
		return string(text)
	}
	var value any
	if json.Unmarshal(text, &value) != nil {
		return string(text)
	}
	text, _ = json.Marshal(a.rounded(s, value))
	return string(text)
}

// rounded replaces what differs between two clocks, and between two ways to
// raise lease versions.
func (a *agreement) rounded(s *side, value any) any {
	switch value := value.(type) {
	case []any:
		for n := range value {
			value[n] = a.rounded(s, value[n])
		}
	case map[string]any:
		for key, field := range value {
			text, isText := field.(string)
			at, err := time.Parse(time.RFC3339Nano, text)
			switch {
			case key == "lease_version":
				delete(value, key)
			case !isText || err != nil:
				value[key] = a.rounded(s, field)
			case at.After(s.now().Add(far / 4)):
				value[key] = "later"
			default:
				value[key] = "past or soon"
			}
		}
	}
	return value
}

func (a *agreement) pick(list ...string) string { return list[a.rand.IntN(len(list))] }

// offset is a time from now: in exact runs some seconds, else none or an hour.
func (a *agreement) offset() time.Duration {
	if a.exact {
		return time.Duration(a.rand.IntN(4)) * 7 * time.Second
	}
	return time.Duration(a.rand.IntN(2)) * far
}

// instant returns how a side names a random instant, zero among them.
func (a *agreement) instant() (at func(*side) time.Time, text string) {
	if a.rand.IntN(3) == 0 {
		return func(*side) time.Time { return time.Time{} }, "now"
	}
	offset := a.offset() - 3*time.Second
	return func(s *side) time.Time { return s.now().Add(offset) }, fmt.Sprint("now+", offset)
}

func (a *agreement) call() {
	tenant, id := a.prefix+a.pick("t1", "t1", "t2"), a.pick("a", "b", "c", "d")
	target := tenant + "/" + id
	scope := supervisor.Scope{TenantID: tenant}
	switch a.rand.IntN(4) {
	case 0, 1:
		scope.InstanceID = id
	case 2:
		scope.ResourceID = "r"
	}
	at, when := a.instant()
	if a.dispatches() && a.rand.IntN(2) == 0 {
		a.intentCall(tenant, id)
		return
	}
	switch a.rand.IntN(17) {
	case 0, 1:
		start, text := a.instance(tenant, id)
		a.both("Start "+target+" at "+when+" "+text, func(_ int, s *side) (any, error) {
			return s.client.Start(a.ctx, start(s), at(s))
		})
	case 2, 3:
		w := supervisor.Wakeup{ID: a.pick("w1", "w2", "w3", "w4"), Kind: a.pick("note", "note", "timer"), Payload: json.RawMessage(`1`)}
		a.both("Deliver "+w.ID+" "+w.Kind+" to "+target+" at "+when, func(_ int, s *side) (any, error) {
			return nil, s.client.Deliver(a.ctx, tenant, id, w, at(s))
		})
	case 4:
		a.both("Cancel "+target, func(_ int, s *side) (any, error) { return nil, s.client.Cancel(a.ctx, tenant, id) })
	case 5:
		a.both("Retry "+target, func(_ int, s *side) (any, error) { return nil, s.client.Retry(a.ctx, tenant, id) })
	case 6:
		a.both("Pause "+scope.String(), func(_ int, s *side) (any, error) { return nil, s.client.Pause(a.ctx, scope) })
	case 7, 8:
		if scope.InstanceID == "" || a.exists(tenant, id) { // of unknown instances both answers are right
			a.both("Resume "+scope.String(), func(_ int, s *side) (any, error) { return nil, s.client.Resume(a.ctx, scope) })
		}
	case 9, 10:
		a.claim()
	case 11:
		if item, ok := a.claimed(); ok {
			name := a.pick(worker, worker, "another worker")
			a.both(fmt.Sprintf("Renew %s by %s", a.describe(&item[0]), name), func(n int, s *side) (any, error) {
				renewal := lease(&item[n], a.leaseFor())
				renewal.WorkerID = name
				return nil, s.queue.Renew(a.ctx, renewal)
			})
		}
	case 12, 13, 14:
		if item, ok := a.claimed(); ok {
			a.commit(&item)
		}
	case 15:
		if item, ok := a.claimed(); ok && a.sides[0].release != nil && a.sides[1].release != nil {
			a.both("Release "+a.describe(&item[0]), func(n int, s *side) (any, error) {
				return nil, s.release.Release(a.ctx, &item[n], "given back")
			})
		}
	case 16:
		if a.rand.IntN(4) == 0 {
			before := a.offset() - far/2
			a.both(fmt.Sprint("Prune now+", before), func(_ int, s *side) (any, error) {
				return s.client.Prune(a.ctx, s.now().Add(before))
			})
		} else if a.exact {
			d := a.offset() + time.Millisecond
			a.log = append(a.log, fmt.Sprint("sleep ", d))
			time.Sleep(d)
		}
	}
}

func (a *agreement) exists(tenant, id string) bool {
	_, err := a.sides[0].client.Get(a.ctx, tenant, id)
	return err == nil
}

// leaseFor is the length of a lease; without a common clock none may end.
func (a *agreement) leaseFor() time.Duration {
	if a.exact {
		return 11 * time.Second
	}
	return held
}

// describe names a claim by what is the same on both sides.
func (a *agreement) describe(item *supervisor.WorkItem) string {
	return fmt.Sprintf("%s/%s of state version %d, lease version %d", item.TenantID, item.ID, item.StateVersion, item.LeaseVersion)
}

// instance returns a random instance, whose instants are each side's own.
func (a *agreement) instance(tenant, id string) (start func(*side) supervisor.Instance, text string) {
	instance := supervisor.Instance{
		ID: id, RunID: "00000000-0000-4000-8000-000000000001", TenantID: tenant, SpecID: a.prefix + a.pick("s1", "s2"),
		DefinitionID: "d", WorkflowRevision: 1, WorkflowRevisionDigest: "1", ExecutionProfileID: "p",
		ExecutionProfileRevision: 1, ExecutionProfileDigest: "p", KernelABIVersion: "1",
		CapabilityPins: a.pins(), Config: json.RawMessage(`{"c":1}`),
	}
	var startsIn, expiresIn, drainsIn time.Duration
	policy := &instance.Lifecycle
	if a.rand.IntN(2) == 0 {
		if a.rand.IntN(3) == 0 {
			startsIn = a.offset()
		}
		if a.rand.IntN(2) == 0 {
			expiresIn = startsIn + time.Millisecond + a.offset()
			if a.rand.IntN(2) == 0 {
				drainsIn = expiresIn + a.offset()
			}
			policy.OnExpiry = supervisor.ExpiryPolicy(a.pick("", "drain", "cancel"))
		}
		if a.rand.IntN(3) == 0 {
			policy.EventIdleTimeout = time.Millisecond + a.offset()
		}
		if a.rand.IntN(3) == 0 {
			policy.ProgressTimeout = time.Millisecond + a.offset()
		}
		if a.rand.IntN(3) == 0 {
			policy.Completion = supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterSuccessfulRuns, N: 2}
		}
	}
	if !a.exact {
		// Whether a timer of a millisecond has passed depends on the pace.
		for _, timer := range []*time.Duration{&policy.EventIdleTimeout, &policy.ProgressTimeout, &expiresIn, &drainsIn} {
			if *timer > 0 {
				*timer += far
			}
		}
	}
	start = func(s *side) supervisor.Instance {
		instance, now := instance, s.now()
		for _, at := range []struct {
			in time.Duration
			at *time.Time
		}{
			{startsIn, &instance.Lifecycle.StartsAt}, {expiresIn, &instance.Lifecycle.ExpiresAt}, {drainsIn, &instance.Lifecycle.DrainDeadline},
		} {
			if at.in > 0 {
				*at.at = now.Add(at.in)
			}
		}
		return instance
	}
	return start, fmt.Sprintf("of spec %s, starts in %v, expires in %v, drains in %v, %+v", instance.SpecID, startsIn, expiresIn, drainsIn, *policy)
}

// claim claims all that is due.
func (a *agreement) claim() {
	req := supervisor.ClaimRequest{WorkerID: worker, LeaseDuration: a.leaseFor(), Limit: 100, SpecIDs: []string{a.prefix + "s1", a.prefix + "s2"}}
	if a.rand.IntN(3) == 0 {
		req.SpecIDs = req.SpecIDs[:1]
	}
	var claims [2][]supervisor.WorkItem
	a.both(fmt.Sprint("ClaimDue of ", req.SpecIDs), func(n int, s *side) (any, error) {
		items, err := s.queue.ClaimDue(a.ctx, req)
		// The order among tenants, and among equal due times, is open.
		last := map[string]time.Time{}
		for _, item := range items {
			if item.ScheduledAt.Before(last[item.TenantID]) {
				a.differ("the order", item.ID+" fell due at "+item.ScheduledAt.String(), "after one that fell due at "+last[item.TenantID].String())
			}
			last[item.TenantID] = item.ScheduledAt
		}
		slices.SortFunc(items, func(a, b supervisor.WorkItem) int {
			return cmp.Or(strings.Compare(a.TenantID, b.TenantID), strings.Compare(a.ID, b.ID))
		})
		for n := range items {
			sortWakeups(&items[n])
		}
		claims[n] = items
		if len(items) == 0 {
			return nil, err
		}
		return items, err
	})
	if len(claims[0]) == len(claims[1]) {
		for n := range claims[0] {
			a.claims = append(a.claims, [2]supervisor.WorkItem{claims[0][n], claims[1][n]})
		}
	}
}

// claimed picks a claim, mostly one of the latest.
func (a *agreement) claimed() (item [2]supervisor.WorkItem, ok bool) {
	if len(a.claims) == 0 {
		return item, false
	}
	last := len(a.claims) - 1
	return a.claims[last-min(last, a.rand.IntN(6))], true
}

func (a *agreement) disposition() (d func(*side) supervisor.Disposition, text string) {
	in := a.offset()
	switch a.rand.IntN(9) {
	case 0:
		return func(*side) supervisor.Disposition { return supervisor.Complete{} }, "Complete"
	case 1:
		return func(*side) supervisor.Disposition { return supervisor.Failed{Reason: "for good"} }, "Failed for good"
	case 2, 3:
		return func(s *side) supervisor.Disposition {
			return supervisor.Failed{Reason: "again", RetryAt: s.now().Add(in - time.Second)}
		}, fmt.Sprint("Failed until now+", in-time.Second)
	case 4:
		return func(s *side) supervisor.Disposition {
			return supervisor.Reschedule{At: s.now().Add(in - time.Second)}
		}, fmt.Sprint("Reschedule now+", in-time.Second)
	}
	return func(*side) supervisor.Disposition { return supervisor.Continue{Delay: in} }, fmt.Sprint("Continue ", in)
}

func (a *agreement) commit(item *[2]supervisor.WorkItem) {
	disposition, text := a.disposition()
	a.keys++
	step := a.keys
	outcome := supervisor.EvaluationOutcome{Succeeded: a.rand.IntN(3) == 0, Triggered: a.rand.IntN(2) == 0}
	key, digest := fmt.Sprint("key ", step), a.pick("digest 1", "digest 2")
	reused := a.rand.IntN(4) == 0
	if reused {
		key = fmt.Sprint("key ", max(step-1-a.rand.IntN(3), 0)) // one that was used
	}
	var consumed []string
	for _, w := range item[0].Wakeups {
		if a.rand.IntN(3) > 0 {
			consumed = append(consumed, w.ID)
		}
	}
	intent, intentText := a.intent()
	// Whether a kept item that is returned again holds what arrived since is open.
	keep := a.rand.IntN(2) == 0 && !reused && a.sides[0].keep != nil && a.sides[1].keep != nil
	var kept [2]*supervisor.WorkItem
	what := fmt.Sprintf("commit of %s with %s, %+v, key %q, digest %q, intent %s, consuming %v, keep %v",
		a.describe(&item[0]), text, outcome, key, digest, intentText, consumed, keep)
	a.both(what, func(n int, s *side) (any, error) {
		item := &item[n]
		command := supervisor.TransitionCommand{
			DeliveryKey: key, DeliveryDigest: digest, EventType: "stepped", EventDigest: fmt.Sprint("event ", step),
			EventPayload: json.RawMessage(fmt.Sprint(step)), NextState: json.RawMessage(fmt.Sprintf(`{"step":%d}`, step)),
			Outcome: outcome, ConsumedWakeups: consumed, Disposition: disposition(s),
		}
		if intent != nil {
			command.ActionIntents = []supervisor.ActionIntent{intent(s, item)}
		}
		if !keep {
			return nil, s.queue.CommitCommand(a.ctx, item, &command)
		}
		next, err := s.keep.CommitAndKeep(a.ctx, item, &command, a.leaseFor())
		kept[n] = next
		if next != nil {
			sortWakeups(next)
		}
		return next, err
	})
	if kept[0] != nil && kept[1] != nil {
		a.claims = append(a.claims, [2]supervisor.WorkItem{*kept[0], *kept[1]})
	}
}

// compareViews compares all that can be seen of the instances.
func (a *agreement) compareViews() {
	var views [2]map[string]string
	for n := range a.sides {
		s := &a.sides[n]
		views[n] = map[string]string{}
		for _, tenant := range []string{a.prefix + "t1", a.prefix + "t2"} {
			for snapshot, err := range s.client.List(a.ctx, supervisor.Filter{TenantID: tenant}) {
				a.unsupported(err)
				if err != nil {
					a.differ("List", err.Error(), "no error")
					return
				}
				name := tenant + "/" + snapshot.ID
				views[n][name] = a.text(s, snapshot)
				explanation, err := s.client.Explain(a.ctx, tenant, snapshot.ID)
				views[n]["the explanation of "+name] = a.text(s, explanation) + class(err)
				var history strings.Builder
				for event, err := range s.client.History(a.ctx, tenant, snapshot.ID) {
					history.WriteString(a.text(s, event) + class(err) + "\n")
				}
				views[n]["the history of "+name] = history.String()
			}
			if a.dispatches() {
				a.viewIntents(s, tenant, views[n])
			}
		}
	}
	for name := range views[0] {
		if views[0][name] != views[1][name] {
			a.differ(name, views[0][name], views[1][name])
			return
		}
	}
	if len(views[0]) != len(views[1]) {
		a.differ("the number of instances", fmt.Sprint(len(views[0])), fmt.Sprint(len(views[1])))
	}
}
