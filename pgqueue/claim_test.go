package pgqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func TestClaimTakesNoMoreThanItsLimitWhateverThePlan(t *testing.T) {
	dsn := testDSN(t)
	for _, settings := range [][]string{
		nil,
		{"enable_hashjoin", "enable_mergejoin"},
		{"enable_hashjoin", "enable_mergejoin", "enable_material"},
		{"enable_nestloop"},
		{"enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"},
	} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			q := open(t, dsn, newSchema(t, dsn), Options{}, func(config *pgxpool.Config) {
				config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
					for _, setting := range settings {
						if _, err := conn.Exec(ctx, "SET "+setting+" = off"); err != nil {
							return err
						}
					}
					return nil
				}
			})
			execute(t, q, "ALTER TABLE {{schema}}.run SET (autovacuum_enabled = false)")
			start(t, q, "first")
			execute(t, q, "ANALYZE {{schema}}.run")
			execute(t, q, "ANALYZE {{schema}}.instance")
			for n := range 50 {
				start(t, q, "more-"+strconv.Itoa(n))
			}
			require.Len(t, claim(t, q, 2), 2)
			require.EqualValues(t, 2, number(t, q, "SELECT count(*) FROM {{schema}}.run WHERE lease_version > 0"))
			require.Len(t, claim(t, q, 7), 7)
			require.EqualValues(t, 9, number(t, q, "SELECT count(*) FROM {{schema}}.run WHERE lease_version > 0"))
		})
	}
}

// TestClaimTakesTurns compares claims with a plain model of the rule: one item
// per tenant in turn, the least recently served tenant first, each tenant's by
// due time across its specs.
func TestClaimTakesTurns(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	type waiting struct {
		id   string
		spec string
		due  time.Time
	}
	base := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	due := map[string][]waiting{}
	served := map[string]int{}
	turn := 0
	tenants := []string{"a", "b", "c", "d", "e"}
	specs := []string{"one", "two", "three"}
	count := 0
	for range repeats(30, 300) {
		for range random.IntN(12) {
			count++
			i := instance(t, fmt.Sprintf("i%04d", count))
			i.TenantID, i.SpecID = tenants[random.IntN(len(tenants))], specs[random.IntN(1+random.IntN(len(specs)))]
			at := base.Add(time.Duration(random.IntN(1000))*time.Second + time.Duration(count)*time.Millisecond)
			_, err := q.Start(ctx, i, at)
			require.NoError(t, err)
			due[i.TenantID] = append(due[i.TenantID], waiting{i.ID, i.SpecID, at})
		}
		req := request(1 + random.IntN(9))
		if random.IntN(2) == 0 {
			req.SpecIDs = specs[:1+random.IntN(2)]
		}
		var want []string
		for len(want) < req.Limit {
			// The tenant whose turn it is, and the first of its wanted items.
			bestTenant, bestAt := "", -1
			for _, tenant := range tenants {
				at := -1
				for n, w := range due[tenant] {
					wanted := len(req.SpecIDs) == 0
					for _, spec := range req.SpecIDs {
						wanted = wanted || spec == w.spec
					}
					if wanted && (at < 0 || w.due.Before(due[tenant][at].due)) {
						at = n
					}
				}
				switch {
				case at < 0:
					continue
				case bestTenant == "" || served[tenant] < served[bestTenant]:
				case served[tenant] == 0 && served[bestTenant] == 0 && due[tenant][at].due.Before(due[bestTenant][bestAt].due):
				default:
					continue
				}
				bestTenant, bestAt = tenant, at
			}
			if bestTenant == "" {
				break
			}
			turn++
			served[bestTenant] = turn
			list := due[bestTenant]
			want = append(want, list[bestAt].id)
			due[bestTenant] = append(list[:bestAt:bestAt], list[bestAt+1:]...)
		}
		items, err := q.ClaimDue(ctx, req)
		require.NoError(t, err)
		if len(want) == 0 {
			require.Empty(t, items)
			continue
		}
		require.Equal(t, want, ids(items))
	}
}

// TestNothingIsOverlookedWhileLanesAreTidied starts, delivers, retries and
// finishes instances of few lanes while claims find these lanes empty all the
// time, which is when they note how long a lane need not be looked into.
func TestNothingIsOverlookedWhileLanesAreTidied(t *testing.T) {
	q := newQueue(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const lanes = 20
	total := repeats(1000, 20000)
	var started, finished atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				n := started.Add(1)
				if n > int64(total) {
					return
				}
				i := instance(t, strconv.FormatInt(n, 10))
				i.SpecID = "spec-" + strconv.FormatInt(n%lanes, 10)
				due := zero
				if n%4 == 0 {
					due = time.Now().Add(time.Duration(n%50) * time.Millisecond)
				}
				if n%4 == 1 {
					// Far away, until something is delivered.
					due = time.Now().Add(time.Hour)
				}
				if err := startSlowly(ctx, q, i, due, n%3 == 0); err != nil {
					t.Errorf("start: %v", err)
				}
				if n%4 == 1 {
					if err := q.Deliver(ctx, i.TenantID, i.ID, note("w"), zero); err != nil {
						t.Errorf("deliver: %v", err)
					}
				}
			}
		})
	}
	for range 3 {
		group.Go(func() {
			for finished.Load() < int64(total) && ctx.Err() == nil {
				items, err := q.ClaimDue(ctx, request(20))
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				for n := range items {
					item := &items[n]
					d := complete
					if item.StateVersion == 0 && len(item.ID)%2 == 0 {
						d = again
					}
					c, err := supervisor.NewCommand(item, "stepped", nil, 1, d)
					if err == nil {
						err = q.CommitCommand(ctx, item, &c)
					}
					if err != nil {
						t.Errorf("commit: %v", err)
					}
					if d == complete {
						finished.Add(1)
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	for last := int64(-1); ; last = finished.Load() {
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			if finished.Load() > last {
				continue
			}
			cancel()
			<-done
			t.Fatalf("only %d of %d are finished", last, total)
		}
		break
	}
	require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.run WHERE status = 'active'"))
	// The rule that claims rely on, at rest.
	require.Zero(t, number(t, q, `SELECT count(*) FROM {{schema}}.run r WHERE r.runnable AND NOT EXISTS (
		SELECT 1 FROM {{schema}}.lane_due d WHERE d.lane_no = r.lane_no AND d.due_at <= r.due_at)`))
}

// startSlowly starts an instance; in a transaction of the caller's it takes a
// while until that commits.
func startSlowly(ctx context.Context, q *Queue, i supervisor.Instance, due time.Time, inTx bool) error {
	if !inTx {
		_, err := q.Start(ctx, i, due)
		return err
	}
	return pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
		_, err := q.StartTx(ctx, tx, i, due)
		time.Sleep(3 * time.Millisecond)
		return err
	})
}

func TestClaimLooksOnlyIntoLanesWithDueWork(t *testing.T) {
	q := newQueue(t, Options{})
	const lanes = 300
	fill(t, q, lanes, lanes, "clock_timestamp()")
	items := claim(t, q, lanes)
	require.Len(t, items, lanes)
	for n := range items {
		require.NoError(t, commit(t, q, &items[n], later1h))
	}
	require.Empty(t, claim(t, q, 1))
	require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.lane_due WHERE due_at < now() + interval '30 min'"),
		"a claim that found nothing due notes when to look again")
	require.EqualValues(t, lanes, number(t, q, "SELECT count(*) FROM {{schema}}.lane_due"))
	// The next claim has nothing to write, and reads no lane.
	before := number(t, q, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
	for range 10 {
		require.Empty(t, claim(t, q, 1))
	}
	if before > 0 && number(t, q, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") < 10 {
		after := number(t, q, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
		require.Less(t, after-before, int64(100_000))
	}
}

func TestEmptyClaimIsOneStatement(t *testing.T) {
	q := newQueue(t, Options{})
	start(t, q, "a")
	item := claimOne(t, q)
	require.NoError(t, commit(t, q, &item, later1h))
	require.Empty(t, claim(t, q, 1))
	var statements atomic.Int64
	q.store.fault = func(string) error {
		statements.Add(1)
		return nil
	}
	for range 5 {
		require.Empty(t, claim(t, q, 1))
	}
	require.EqualValues(t, 5, statements.Load())
}

func TestRowThatCannotBeDecodedIsSetAside(t *testing.T) {
	for column, value := range map[string]string{
		"state": `{"`, "config": `[1,`, "lifecycle": `{"starts_at":"yesterday"}`, "capability_pins": `{}`,
	} {
		t.Run(column, func(t *testing.T) {
			q := newQueue(t, Options{})
			start(t, q, "broken")
			start(t, q, "whole")
			table := "instance"
			if column == "state" {
				table = "run"
				item := claimOne(t, q)
				require.NoError(t, commit(t, q, &item, again))
			}
			execute(t, q, fmt.Sprintf(`UPDATE {{schema}}.%s SET %s = $1 WHERE instance_no =
				(SELECT instance_no FROM {{schema}}.instance WHERE id = 'broken')`, table, column), value)
			require.Equal(t, []string{"whole"}, ids(claim(t, q, 10)))
			require.Empty(t, claim(t, q, 10), "it does not come back hot")
			explanation, err := q.Explain(context.Background(), testTenant, "broken")
			require.NoError(t, err)
			require.Equal(t, supervisor.ReasonSetAside, explanation.Reason)
			require.Contains(t, explanation.Detail, column)
			require.Greater(t, time.Until(explanation.Until), time.Minute)
		})
	}
}

func TestConcurrentClaimsShareOut(t *testing.T) {
	q := newQueue(t, Options{})
	const instances = 200
	fill(t, q, instances, 7, "clock_timestamp()")
	var mu sync.Mutex
	seen := map[string]int{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				items, err := q.ClaimDue(context.Background(), request(5))
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				mu.Lock()
				for n := range items {
					seen[items[n].TenantID+"/"+items[n].ID]++
				}
				all := len(seen) == instances
				mu.Unlock()
				if all {
					return
				}
			}
		})
	}
	group.Wait()
	for id, times := range seen {
		require.Equal(t, 1, times, "%s was claimed twice", id)
	}
}
