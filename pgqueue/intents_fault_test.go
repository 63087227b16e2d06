package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// cutCall is a call on an intent whose connection is cut.
type cutCall struct {
	name string
	// before brings an intent that was claimed to where the call finds it.
	before func(t *testing.T, q *Queue, work supervisor.IntentWork) supervisor.IntentWork
	call   func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error
	// done is whether the call has been carried out.
	done func(r *supervisor.IntentRecord) bool
	// attempts and told are what the intent has after the call, once.
	attempts int
	told     int64
	// ends is whether the call ends the lease without an answer that can be
	// repeated: the next one is ErrLeaseLost.
	ends bool
	// frees is whether a slot is free after it.
	frees bool
}

func settling(s supervisor.Settlement) func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
	return func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
		return q.SettleIntent(ctx, work, s)
	}
}

func inState(states ...supervisor.ActionState) func(r *supervisor.IntentRecord) bool {
	return func(r *supervisor.IntentRecord) bool {
		for _, state := range states {
			if r.Intent.State == state && r.LeaseEndsAt.IsZero() {
				return true
			}
		}
		return false
	}
}

func cutCalls() []cutCall {
	notSent := supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofNotSent, Delay: time.Hour}
	return []cutCall{{
		name: "mark", attempts: 1,
		call: func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
			marked, err := q.MarkIntent(ctx, work)
			if err == nil && marked.Attempt != 1 {
				return fmt.Errorf("attempt %d was returned", marked.Attempt)
			}
			return err
		},
		done: func(r *supervisor.IntentRecord) bool { return r.Intent.State == supervisor.ActionDispatchCommitted },
	}, {
		name: "receipt", before: mark1, attempts: 1,
		call: func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
			return q.RecordReceipt(ctx, work, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Hour}})
		},
		done: inState(supervisor.ActionExecuting),
	}, {
		name: "success", before: mark1, attempts: 1, told: 1, frees: true,
		call: settling(succeeded()), done: inState(supervisor.ActionSucceeded),
	}, {
		name: "unknown", before: mark1, attempts: 1, told: 1, ends: true, frees: true,
		call: settling(supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous}),
		done: inState(supervisor.ActionUnknown),
	}, {
		name: "retryable", before: mark1, attempts: 1, ends: true, frees: true,
		call: settling(notSent), done: inState(supervisor.ActionRetryable),
	}, {
		name: "retryable when it was to be cancelled", attempts: 1, told: 1, ends: true, frees: true,
		before: func(t *testing.T, q *Queue, work supervisor.IntentWork) supervisor.IntentWork {
			work = mark(t, q, work)
			require.Eventually(t, func() bool {
				return q.Cancel(context.Background(), work.Intent.TenantID, work.Intent.InstanceID) == nil
			}, 20*time.Second, time.Millisecond)
			return work
		},
		call: settling(notSent), done: inState(supervisor.ActionRejected),
	}, {
		name: "rejected after an ambiguous attempt", attempts: 2, told: 1, ends: true, frees: true,
		before: func(t *testing.T, q *Queue, work supervisor.IntentWork) supervisor.IntentWork {
			work = mark(t, q, work)
			require.NoError(t, q.SettleIntent(context.Background(), &work, supervisor.Settlement{State: supervisor.ActionRetryable}))
			return mark(t, q, claimOfTenant(t, q, work.Intent.TenantID))
		},
		call: settling(supervisor.Settlement{
			State: supervisor.ActionRejected, Outcome: supervisor.OutcomeFailed, Cause: supervisor.CauseRefused, Proof: supervisor.ProofNotSent,
		}),
		done: inState(supervisor.ActionUnknown),
	}, {
		name: "release", before: mark1, ends: true, frees: true,
		call: func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
			return q.ReleaseIntent(ctx, work, supervisor.IntentRelease{NotHandedOff: true, After: time.Hour})
		},
		done: inState(supervisor.ActionRetryable),
	}, {
		name: "renewal", before: mark1, attempts: 1,
		call: func(ctx context.Context, q *Queue, work *supervisor.IntentWork) error {
			return q.RenewIntent(ctx, work.Lease(time.Hour))
		},
		done: func(r *supervisor.IntentRecord) bool { return time.Until(r.LeaseEndsAt) > time.Hour/2 },
	}}
}

func mark1(t *testing.T, q *Queue, work supervisor.IntentWork) supervisor.IntentWork {
	return mark(t, q, work)
}

// claimOfTenant claims the one due intent of a tenant, and whatever else is due.
func claimOfTenant(t *testing.T, q *Queue, tenantID string) supervisor.IntentWork {
	t.Helper()
	var found []supervisor.IntentWork
	for _, work := range claimIntents(t, q, intentRequest(1000)) {
		if work.Intent.TenantID == tenantID {
			found = append(found, work)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// cutting is where and how a connection is cut.
type cutting struct {
	toServer, messages, staysDown, cold bool
}

func (c cutting) String() string {
	name := map[bool]string{true: "to the server", false: "to the client"}[c.toServer]
	for part, is := range map[string]bool{", by messages": c.messages, ", for long": c.staysDown, ", cold": c.cold} {
		if is {
			name += part
		}
	}
	return name
}

// each calls try with one step after the other cut, until a call ends before its
// step comes.
func (c cutting) each(t *testing.T, p *proxy, try func(t *testing.T, step string, call func(f func(ctx context.Context)))) {
	// A cold call may also end at the first dead connection.
	const most, coldSteps = 100, 6
	for step := range int64(most) {
		cut := false
		try(t, c.String()+", step "+strconv.FormatInt(step, 10), func(f func(ctx context.Context)) {
			timeout := time.Minute
			if c.staysDown {
				timeout = 60 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			if c.cold {
				p.cutAll()
			}
			before := p.cuts.Load()
			p.toServer.Store(c.toServer)
			p.messages.Store(c.messages)
			p.staysDown.Store(c.staysDown)
			p.left.Store(step)
			f(ctx)
			p.left.Store(-1)
			p.refusing.Store(false)
			cut = p.cuts.Load() > before
		})
		if !cut && (!c.cold || step > coldSteps) {
			require.True(t, c.cold || step > 0, "nothing was cut")
			return
		}
	}
	require.Fail(t, "too many steps")
}

func cuttings(limited bool) []cutting {
	list := []cutting{{toServer: true}, {messages: true}}
	if !limited {
		list = append(list, cutting{toServer: true, staysDown: true}, cutting{messages: true, staysDown: true}, cutting{toServer: true, cold: true})
	}
	return list
}

// undecided reports an error of a call that may have been carried out or not.
func undecided(err error) bool {
	return errors.Is(err, supervisor.ErrUnavailable) || errors.Is(err, supervisor.ErrCommitUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// requireUsed checks that the slots that are counted for a tenant are those of its
// intents between mark and settlement.
func requireUsed(t *testing.T, q *Queue, tenantID, about string) {
	t.Helper()
	require.Zero(t, number(t, q, `SELECT coalesce(sum(l.used), 0) - count(DISTINCT n.id)
		FROM {{schema}}.intent_limit l JOIN {{schema}}.tenant t USING (tenant_id)
		LEFT JOIN {{schema}}.intent n ON n.tenant_no = t.tenant_no AND n.state IN ('dispatch_committed', 'executing')
		WHERE t.tenant_id = $1`, tenantID), about)
}

// TestIntentCallsAreCutAtEveryStep cuts the connection of each call at each of its
// exchanges with the server. What is stored agrees with the answer, a repeat gets
// the answer of the rules, and nothing is marked, told or counted twice.
func TestIntentCallsAreCutAtEveryStep(t *testing.T) {
	for _, limited := range []bool{false, true} {
		for _, c := range cutCalls() {
			t.Run(c.name+map[bool]string{true: ", limited"}[limited], func(t *testing.T) {
				direct := newQueue(t, Options{DisableListen: true})
				q, p := openThrough(t, direct.options.Schema)
				for _, cuts := range cuttings(limited) {
					tenants := 0
					cuts.each(t, p, func(t *testing.T, step string, call func(f func(ctx context.Context))) {
						tenants++
						c.try(t, direct, q, cuts.String()+" "+strconv.Itoa(tenants), limited, step, call)
					})
				}
			})
		}
	}
}

func (c *cutCall) try(t *testing.T, direct, q *Queue, tenant string, limited bool, step string, call func(f func(ctx context.Context))) {
	ctx := context.Background()
	if limited {
		require.NoError(t, direct.LimitIntents(ctx, supervisor.IntentLimit{TenantID: tenant, Max: 1}))
	}
	item := prepare(t, direct, tenant, "i", made("one", native))
	requireConnected(t, q)
	// What the queue has claimed itself it knows.
	work := claimOfTenant(t, q, tenant)
	if c.before != nil {
		work = c.before(t, q, work)
	}
	var second supervisor.WorkItem
	if limited && c.frees {
		second = prepare(t, direct, tenant, "j", made("two"))
		require.Empty(t, claimIntents(t, direct, intentRequest(1000)), step)
		require.Equal(t, supervisor.ParkedByLimit, record(t, direct, keyOf(&second, "two")).Parked, step)
	}
	var err error
	call(func(ctx context.Context) { err = c.call(ctx, q, &work) })
	r := record(t, direct, work.Key())
	done := c.done(&r)
	switch {
	case err == nil:
		require.True(t, done, "%s: %+v", step, r)
	case !undecided(err):
		require.NoError(t, err, "%s: %+v", step, r)
	}
	switch err := c.call(ctx, direct, &work); {
	case done && c.ends:
		require.ErrorIs(t, err, supervisor.ErrLeaseLost, step)
	default:
		require.NoError(t, err, step)
	}
	r = record(t, direct, work.Key())
	require.True(t, c.done(&r), "%s: %+v", step, r)
	require.Equal(t, c.attempts, r.Attempt, step)
	require.Empty(t, r.Evidence, step)
	require.Equal(t, c.told, number(t, direct, `SELECT count(*) FROM {{schema}}.wakeup w JOIN {{schema}}.instance i USING (instance_no)
		WHERE i.tenant_id = $1 AND i.id = $2 AND w.kind = 'action'`, item.TenantID, item.ID), step)
	if !limited {
		return
	}
	requireUsed(t, direct, tenant, step)
	if c.frees {
		next := claimOfTenant(t, direct, tenant)
		require.Equal(t, "two", next.Intent.ID, step)
		mark(t, direct, next)
		requireUsed(t, direct, tenant, step)
	}
}

// requireConnected lets a queue find out which of its connections were cut.
func requireConnected(t *testing.T, q *Queue) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := q.ClaimIntents(context.Background(), intentRequest(1, "nothing"))
		return err == nil
	}, 20*time.Second, time.Millisecond)
}

func keyOf(item *supervisor.WorkItem, id string) supervisor.IntentKey {
	return supervisor.IntentKey{TenantID: item.TenantID, InstanceID: item.ID, IntentID: id}
}

// TestIntentClaimsAreCutAtEveryStep cuts the connection of claims. What a claim
// returns is stored so, whatever else it returns; what it has marked but not
// returned is recovered, not sent again.
func TestIntentClaimsAreCutAtEveryStep(t *testing.T) {
	for _, limited := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			name := map[bool]string{true: "limited", false: "plain"}[limited] + map[bool]string{true: ", with late ones"}[late]
			t.Run(name, func(t *testing.T) {
				direct := newQueue(t, Options{DisableListen: true})
				q, p := openThrough(t, direct.options.Schema)
				for _, cuts := range cuttings(limited) {
					tenants := 0
					cuts.each(t, p, func(t *testing.T, step string, call func(f func(ctx context.Context))) {
						tenants++
						tryClaim(t, direct, q, cuts.String()+" "+strconv.Itoa(tenants), limited, late, step, call)
					})
				}
			})
		}
	}
}

func tryClaim(t *testing.T, direct, q *Queue, tenant string, limited, late bool, step string, call func(f func(ctx context.Context))) {
	ctx := context.Background()
	if limited {
		require.NoError(t, direct.LimitIntents(ctx, supervisor.IntentLimit{TenantID: tenant, Max: 1}))
	}
	item := prepare(t, direct, tenant, "i", made("one", native), made("two"))
	if late {
		// It is withdrawn by the claim, which tells its instance.
		execute(t, direct, `UPDATE {{schema}}.intent n SET tenant_epoch = tenant_epoch - 1 FROM {{schema}}.instance i
			WHERE i.instance_no = n.instance_no AND i.tenant_id = $1 AND n.id = 'two'`, tenant)
	}
	requireConnected(t, q)
	req := intentRequest(1000)
	req.MarkRepeatable = true
	var works []supervisor.IntentWork
	var err error
	call(func(ctx context.Context) { works, err = q.ClaimIntents(ctx, req) })
	if !undecided(err) {
		require.NoError(t, err, step)
	}
	var returned []string
	for n := range works {
		if work := &works[n]; work.Intent.TenantID == tenant {
			r := record(t, direct, work.Key())
			require.Equal(t, work.LeaseVersion, r.LeaseVersion, step)
			require.False(t, r.LeaseEndsAt.IsZero(), step)
			require.Equal(t, work.Intent.State, r.Intent.State, step)
			returned = append(returned, work.Intent.ID)
		}
	}
	if err == nil {
		require.Contains(t, returned, "one", step)
	}
	if limited {
		requireUsed(t, direct, tenant, step)
	}
	// Leases that nobody has were lost with their answers; they end.
	execute(t, direct, `UPDATE {{schema}}.intent n SET lease_ends_at = clock_timestamp(), due_at = clock_timestamp(), touched = touched + 1
		FROM {{schema}}.instance i WHERE i.instance_no = n.instance_no AND i.tenant_id = $1 AND n.lease_ends_at IS NOT NULL`, tenant)
	marked := record(t, direct, keyOf(&item, "one")).Attempt > 0
	// The server may hold locks of a connection that was cut a moment longer.
	var one, two supervisor.IntentRecord
	require.Eventually(t, func() bool {
		for _, work := range claimIntents(t, direct, req) {
			if work.Intent.TenantID == tenant && work.Intent.ID == "one" {
				require.Equal(t, marked, work.Task == supervisor.IntentTaskRecover, step)
			}
		}
		one, two = record(t, direct, keyOf(&item, "one")), record(t, direct, keyOf(&item, "two"))
		return one.Attempt > 0 && (!late || two.Cause != "")
	}, 20*time.Second, time.Millisecond, step)
	require.Equal(t, 1, one.Attempt, step)
	require.Zero(t, two.Attempt, step)
	told := int64(0)
	if late {
		require.Equal(t, supervisor.CauseStaleEpoch, two.Cause, step)
		told = 1
	}
	require.Equal(t, told, number(t, direct, `SELECT count(*) FROM {{schema}}.wakeup w JOIN {{schema}}.instance i USING (instance_no)
		WHERE i.tenant_id = $1 AND w.kind = 'action'`, tenant), step)
	if limited {
		requireUsed(t, direct, tenant, step)
	}
}

// TestIntentsBehindPgBouncer dispatches intents through a real pooler in transaction
// mode, with and without a limit, and no error of any call.
func TestIntentsBehindPgBouncer(t *testing.T) {
	q := open(t, startPgBouncer(t), newSchema(t, testDSN(t)), Options{DisableListen: true})
	exerciseIntents(t, q, "free")
	require.NoError(t, q.LimitIntents(context.Background(), supervisor.IntentLimit{CapabilityID: testPin.ID, Max: 3}))
	exerciseIntents(t, q, "limited")
	require.Zero(t, number(t, q, "SELECT sum(used) FROM {{schema}}.intent_limit"))
}

// TestIntentsInSessionsThatForget is the same over connections that lose everything
// after every call.
func TestIntentsInSessionsThatForget(t *testing.T) {
	dsn := testDSN(t)
	q := open(t, dsn, newSchema(t, dsn), Options{DisableListen: true}, forgetful)
	exerciseIntents(t, q, "free")
	require.NoError(t, q.LimitIntents(context.Background(), supervisor.IntentLimit{CapabilityID: testPin.ID, Max: 3}))
	exerciseIntents(t, q, "limited")
}

// exerciseIntents lets some workers take intents through their whole life.
func exerciseIntents(t *testing.T, q *Queue, tenant string) {
	t.Helper()
	const intents = 60
	items := []supervisor.WorkItem{prepare(t, q, tenant, "i", madeMany(intents/2)...), prepare(t, q, tenant, "j", madeMany(intents/2, native)...)}
	ctx := withTimeout(t, time.Minute)
	var settled, handedOff atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil && settled.Load() < intents {
				works, err := q.ClaimIntents(ctx, intentRequest(2))
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				if len(works) == 0 {
					time.Sleep(5 * time.Millisecond)
				}
				for n := range works {
					if err := stepOne(ctx, q, works[n], &handedOff, &settled); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, ctx.Err())
	require.EqualValues(t, intents, handedOff.Load(), "nothing was handed off twice")
	for n := range items {
		require.Len(t, results(t, q, &items[n]), intents/2)
	}
}

// stepOne gives an intent back once, then makes one step of an intent: the hand-off with its receipt, or the
// look that settles it.
func stepOne(ctx context.Context, q *Queue, work supervisor.IntentWork, handedOff, settled *atomic.Int64) error {
	if err := q.RenewIntent(ctx, work.Lease(testLease)); err != nil {
		return err
	}
	if work.Task == supervisor.IntentTaskObserve {
		settled.Add(1)
		return q.SettleIntent(ctx, &work, succeeded())
	}
	marked, err := q.MarkIntent(ctx, &work)
	if errors.Is(err, supervisor.ErrIntentRefused) {
		return nil
	}
	if err != nil {
		return err
	}
	if work.LeaseVersion == 1 {
		return q.ReleaseIntent(ctx, &marked, supervisor.IntentRelease{NotHandedOff: true, After: time.Millisecond})
	}
	handedOff.Add(1)
	return q.RecordReceipt(ctx, &marked, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Millisecond}})
}
