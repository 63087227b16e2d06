package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// TestNothingIsMarkedAfterAPauseOrCancel races marks, also those of claims, with
// pauses of each scope and cancels: once such a call has returned, nothing that it
// covers is handed off any more.
func TestNothingIsMarkedAfterAPauseOrCancel(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	ctx := context.Background()
	stops := map[string]func(tenant string) error{
		"tenant": func(tenant string) error { return other.Pause(ctx, supervisor.Scope{TenantID: tenant}) },
		"instance": func(tenant string) error {
			return other.Pause(ctx, supervisor.Scope{TenantID: tenant, InstanceID: "i"})
		},
		"resource": func(tenant string) error {
			return other.Pause(ctx, supervisor.Scope{TenantID: tenant, ResourceID: "res"})
		},
		"cancel": func(tenant string) error { return other.Cancel(ctx, tenant, "i") },
	}
	for name, stop := range stops {
		for _, class := range []supervisor.IdempotencyMode{supervisor.IdempotencyNone, supervisor.IdempotencyNative} {
			for round := range repeats(2, 30) {
				tenant := fmt.Sprintf("%s %s %d", name, class, round)
				prepare(t, q, tenant, "i", madeMany(40, on("res"), of("a"), func(i *supervisor.ActionIntent) { i.RetryClass = class })...)
				var stopped atomic.Bool
				var late atomic.Int64
				var group sync.WaitGroup
				for range 4 {
					group.Go(func() {
						for range 10 {
							req := intentRequest(2, "a")
							req.MarkRepeatable = true
							began := stopped.Load()
							works, err := q.ClaimIntents(ctx, req)
							if err != nil {
								t.Error(err)
							}
							for n := range works {
								marked := works[n].Intent.State == supervisor.ActionDispatchCommitted
								if !marked {
									began = stopped.Load()
									_, err := q.MarkIntent(ctx, &works[n])
									marked = err == nil
									if err != nil && !errors.Is(err, supervisor.ErrIntentRefused) && !errors.Is(err, supervisor.ErrLeaseLost) {
										t.Error(err)
									}
								}
								if marked && began {
									late.Add(1)
								}
							}
						}
					})
				}
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				require.NoError(t, stop(tenant))
				stopped.Store(true)
				handedOff := number(t, q, `SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.tenant USING (tenant_no)
					WHERE tenant_id = $1 AND n.attempt > 0`, tenant)
				group.Wait()
				require.Zero(t, late.Load(), tenant)
				require.Equal(t, handedOff, number(t, q, `SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.tenant USING (tenant_no)
					WHERE tenant_id = $1 AND n.attempt > 0`, tenant), tenant)
			}
		}
	}
}

// TestRandomCallsDoNotDeadlock lets everything that locks intents, their instances
// and tenants meet, and looks for what must hold in the end. A deadlock would be
// hidden by its repeat, so that the server's log is read.
func TestRandomCallsDoNotDeadlock(t *testing.T) {
	server := ownServer(t)
	dsn := server.dsn()
	schema := newSchema(t, dsn)
	queues := []*Queue{open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})}
	ctx := context.Background()
	q := queues[0]
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "b", Max: 3}))
	var items []supervisor.WorkItem
	for n := range 8 {
		var makers []func(item *supervisor.WorkItem) supervisor.ActionIntent
		for k := range 30 {
			capability := []string{"a", "b", "c"}[k%3]
			change := []func(*supervisor.ActionIntent){of(capability), on("res")}
			if k%2 == 0 {
				change = append(change, native)
			}
			makers = append(makers, made(strconv.Itoa(k), change...))
		}
		items = append(items, prepare(t, q, "t"+strconv.Itoa(n%3), "i"+strconv.Itoa(n), makers...))
	}
	var group sync.WaitGroup
	deadline := time.Now().Add(time.Duration(repeats(4, 60)) * time.Second)
	for worker := range 8 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 7))
			for time.Now().Before(deadline) {
				queue := queues[random.IntN(2)]
				item := &items[random.IntN(len(items))]
				scopes := []supervisor.Scope{
					{TenantID: item.TenantID}, {TenantID: item.TenantID, InstanceID: item.ID}, {TenantID: item.TenantID, ResourceID: "res"},
				}
				scope := scopes[random.IntN(3)]
				var err error
				switch n := random.IntN(40); {
				case n == 0:
					if err = queue.Pause(ctx, scope); err == nil {
						err = queue.Resume(ctx, scope)
					}
				case n == 1:
					err = queue.LimitIntents(ctx, supervisor.IntentLimit{TenantID: item.TenantID, Max: 2 + random.IntN(4)})
				case n == 2:
					err = queue.Deliver(ctx, item.TenantID, item.ID, note(strconv.Itoa(random.Int())), zero)
				case n == 3 && random.IntN(20) == 0:
					err = queue.Cancel(ctx, item.TenantID, item.ID)
				case n == 4:
					var claimed []supervisor.WorkItem
					if claimed, err = queue.ClaimDue(ctx, request(3)); err == nil {
						for k := range claimed {
							if err := commit(t, queue, &claimed[k], later1h); err != nil && !isRule(err) {
								t.Error(err)
							}
						}
					}
				case n == 5:
					_, err = queue.Prune(ctx, time.Now())
				default:
					req := intentRequest(1 + random.IntN(6))
					req.MarkRepeatable = random.IntN(2) == 0
					var works []supervisor.IntentWork
					if works, err = queue.ClaimIntents(ctx, req); err == nil {
						finishAll(t, queue, random, works)
					}
				}
				if err != nil && !isRule(err) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	// Limits count what is in flight.
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM {{schema}}.intent_limit l WHERE l.used <> (
			SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.tenant t USING (tenant_no) JOIN {{schema}}.capability c USING (capability_no)
			WHERE n.state IN ('dispatch_committed', 'executing')
			  AND (l.tenant_id = '' OR l.tenant_id = t.tenant_id) AND (l.capability_id = '' OR l.capability_id = c.id))`))
	// Each outcome was told once.
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.run r USING (instance_no)
		WHERE n.state IN ('succeeded', 'rejected', 'reconciled') AND r.status NOT IN ('completed', 'cancelled') AND NOT EXISTS (
			SELECT 1 FROM {{schema}}.wakeup w WHERE w.instance_no = n.instance_no AND w.id = 'intent:' || n.id || ':settled')`))
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM {{schema}}.run r WHERE r.pending <> (
			SELECT count(*) FROM {{schema}}.wakeup w WHERE w.instance_no = r.instance_no AND w.counted AND w.consumed_at IS NULL)`))
	require.NoError(t, server.crash())
	require.NotContains(t, server.output.String(), "deadlock detected")
}

// finishAll marks intents and ends their leases in one way or another.
func finishAll(t *testing.T, q *Queue, random *rand.Rand, works []supervisor.IntentWork) {
	ctx := context.Background()
	var group sync.WaitGroup
	for n := range works {
		how := random.IntN(6)
		group.Go(func() {
			work := works[n]
			if work.Task == supervisor.IntentTaskDispatch && work.Intent.State != supervisor.ActionDispatchCommitted {
				marked, err := q.MarkIntent(ctx, &work)
				if err != nil {
					if !isRule(err) && !errors.Is(err, supervisor.ErrIntentRefused) {
						t.Error(err)
					}
					return
				}
				work = marked
			}
			var err error
			switch how {
			case 0:
				err = q.RecordReceipt(ctx, &work, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Millisecond}})
			case 1:
				err = q.SettleIntent(ctx, &work, supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofReported})
			case 2:
				err = q.ReleaseIntent(ctx, &work, supervisor.IntentRelease{After: time.Millisecond})
			default:
				err = q.SettleIntent(ctx, &work, succeeded())
			}
			if err != nil && !isRule(err) {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// dispatchUntilKilled is the work of another process: it claims, marks and
// settles, and writes each hand-off of its provider into a table between mark and
// settlement. It is killed between any two of these steps.
func dispatchUntilKilled(ctx context.Context, q *Queue) error {
	for {
		works, err := q.ClaimIntents(ctx, supervisor.IntentClaimRequest{
			WorkerID: "pid " + strconv.Itoa(os.Getpid()), LeaseDuration: time.Second, Limit: 8, MarkRepeatable: true,
		})
		if err != nil {
			return err
		}
		var group sync.WaitGroup
		for n := range works {
			group.Go(func() { _ = dispatchOne(ctx, q, works[n]) })
		}
		group.Wait()
		if len(works) == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func dispatchOne(ctx context.Context, q *Queue, work supervisor.IntentWork) error {
	switch work.Task {
	case supervisor.IntentTaskRecover:
		if !work.Repeatable() {
			// Nobody knows: it is never sent again without proof.
			return q.SettleIntent(ctx, &work, supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous})
		}
		return q.SettleIntent(ctx, &work, supervisor.Settlement{State: supervisor.ActionRetryable})
	case supervisor.IntentTaskDispatch:
		if work.Intent.State != supervisor.ActionDispatchCommitted {
			marked, err := q.MarkIntent(ctx, &work)
			if err != nil {
				return err
			}
			work = marked
		}
		if _, err := q.pool.Exec(ctx, q.store.text("INSERT INTO {{schema}}.ledger (instance, id, attempt) VALUES ($1, $2, $3)"),
			work.Intent.InstanceID, work.Intent.ID, work.Attempt); err != nil {
			return err
		}
		receipt := supervisor.Receipt{Reference: "r"}
		receipt.After = time.Millisecond
		return q.RecordReceipt(ctx, &work, receipt)
	}
	return q.SettleIntent(ctx, &work, succeeded())
}

// TestDispatchersAreKilled kills processes that dispatch, again and again: nothing
// that is not repeatable is handed off twice, and everything comes to an outcome.
func TestDispatchersAreKilled(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q := open(t, dsn, schema, Options{})
	execute(t, q, "CREATE TABLE {{schema}}.ledger (instance text NOT NULL, id text NOT NULL, attempt integer NOT NULL)")
	instances := repeats(10, 100)
	for n := range instances {
		prepare(t, q, testTenant, "i"+strconv.Itoa(n), append(madeMany(20), made("native", native), made("native2", native))...)
	}
	start := func() *exec.Cmd {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), workerVariable+"=dispatch", dsnVariable+"="+dsn, workerSchemaVariable+"="+schema)
		command.Stderr = os.Stderr
		require.NoError(t, command.Start())
		return command
	}
	workers := []*exec.Cmd{start(), start()}
	kill := func(worker *exec.Cmd) {
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}
	defer func() {
		for _, worker := range workers {
			kill(worker)
		}
	}()
	open := func() int64 {
		return number(t, q, "SELECT count(*) FROM {{schema}}.intent WHERE state NOT IN ('succeeded', 'unknown')")
	}
	deadline := time.Now().Add(2 * time.Minute)
	for kills := 0; open() > 0; kills++ {
		require.True(t, time.Now().Before(deadline), "%d intents are without an outcome", open())
		time.Sleep(time.Duration(30+rand.IntN(200)) * time.Millisecond)
		if kills < repeats(12, 200) {
			kill(workers[kills%2])
			workers[kills%2] = start()
		}
	}
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM (SELECT l.instance, l.id FROM {{schema}}.ledger l WHERE l.id NOT LIKE 'native%'
		                      GROUP BY l.instance, l.id HAVING count(*) > 1) twice`), "handed off twice without proof")
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.instance i USING (instance_no)
		WHERE n.state = 'succeeded' AND NOT EXISTS (SELECT 1 FROM {{schema}}.ledger l WHERE l.instance = i.id AND l.id = n.id)`))
	require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.intent WHERE state = 'unknown' AND retry_class = 'native'"))
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM {{schema}}.intent n WHERE n.state = 'succeeded' AND NOT EXISTS (
			SELECT 1 FROM {{schema}}.wakeup w WHERE w.instance_no = n.instance_no AND w.id = 'intent:' || n.id || ':settled')`))
}
