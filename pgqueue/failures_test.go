package pgqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

type evaluate = func(context.Context, int, *supervisor.WorkItem) (supervisor.TransitionCommand, error)

// onePass evaluates what is due with one driver for the spec of the tests.
func onePass(ctx context.Context, t *testing.T, q *Queue, settings supervisor.Settings, f evaluate) (supervisor.Stats, error) {
	t.Helper()
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(t, registry.Register(supervisor.NewDriver(testSpec, 1, f)))
	return supervisor.RunDuePass(ctx, q, registry, settings, func(context.Context) (int, error) { return 0, nil })
}

// completing is a driver that completes and records whom.
func completing(evaluated *sync.Map) evaluate {
	return func(_ context.Context, _ int, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		evaluated.Store(item.ID, true)
		return supervisor.NewCommand(item, "done", nil, nil, supervisor.Complete{})
	}
}

// failing is a driver that fails with a text.
func failing(text string) evaluate {
	return func(context.Context, int, *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		return supervisor.TransitionCommand{}, errors.New(text)
	}
}

// What a cancelled pass had in its hands others can claim soon, whatever the
// length of its leases.
func TestCancelledPassHandsItsWorkBack(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	for _, id := range []string{"a", "b", "c"} {
		start(t, q, id)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var began atomic.Int64
	stats, err := onePass(ctx, t, q, supervisor.Settings{RequeueDelay: time.Second, LeaseDuration: time.Hour},
		func(ctx context.Context, _ int, _ *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			if began.Add(1) == 3 {
				cancel()
			}
			<-ctx.Done()
			return supervisor.TransitionCommand{}, ctx.Err()
		})
	require.NoError(t, err)
	require.Equal(t, 3, stats.Failed)
	claimed := 0
	require.Eventually(t, func() bool {
		claimed += len(claim(t, other, 3))
		return claimed == 3
	}, 15*time.Second, 50*time.Millisecond)
}

// Failures in different words are events of their own, then the success is
// stored.
func TestFailingInDifferentWords(t *testing.T) {
	q := newQueue(t, Options{})
	start(t, q, "a")
	words := []string{"err one", "err two", "err one"}
	for _, word := range words {
		_, err := onePass(context.Background(), t, q, supervisor.Settings{}, failing(word))
		require.NoError(t, err)
		require.NoError(t, q.Retry(context.Background(), testTenant, "a"))
	}
	var evaluated sync.Map
	_, err := onePass(context.Background(), t, q, supervisor.Settings{}, completing(&evaluated))
	require.NoError(t, err)
	events := history(t, q, "a")
	require.Len(t, events, len(words)+1)
	for n, word := range words {
		require.Equal(t, supervisor.EventEvaluationFailed, events[n].Type)
		require.Contains(t, string(events[n].Payload), word)
		require.EqualValues(t, n+1, events[n].StateVersion)
	}
	require.Equal(t, supervisor.StatusCompleted, get(t, q, "a").Status)
}

// Stored instances whose pins are not valid are failed, are told what is wrong,
// and come back no sooner than any other failure.
func TestStoredInstancesWithInvalidPins(t *testing.T) {
	q := newQueue(t, Options{})
	for _, id := range []string{"x", "y", "z"} {
		start(t, q, id)
	}
	execute(t, q, `UPDATE {{schema}}.instance SET workflow_revision_digest = ' ' WHERE id = 'x'`)
	execute(t, q, `UPDATE {{schema}}.instance SET run_id = 'not-a-uuid' WHERE id = 'y'`)
	var evaluated sync.Map
	settings := supervisor.Settings{RequeueDelay: 30 * time.Second}
	stats, err := onePass(context.Background(), t, q, settings, completing(&evaluated))
	require.NoError(t, err)
	require.Equal(t, 3, stats.Claimed)
	require.Equal(t, 2, stats.Failed)
	for id, field := range map[string]string{"x": "WorkflowRevisionDigest", "y": "RunID"} {
		_, found := evaluated.Load(id)
		require.False(t, found, "%s was evaluated", id)
		events := history(t, q, id)
		require.Len(t, events, 1)
		require.Contains(t, string(events[0].Payload), field)
		require.Contains(t, get(t, q, id).LastError, field)
		require.False(t, get(t, q, id).NextDueAt.Before(events[0].At.Add(29*time.Second)))
	}
	require.Equal(t, supervisor.StatusCompleted, get(t, q, "z").Status)
	stats, err = onePass(context.Background(), t, q, settings, completing(&evaluated))
	require.NoError(t, err)
	require.Zero(t, stats.Claimed)
}

// An enormous delay ends with the calendar and never wraps into the past.
func TestEnormousRetryDelay(t *testing.T) {
	for _, delay := range []time.Duration{9_300_000 * time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		q := newQueue(t, Options{})
		start(t, q, "a")
		_, err := onePass(context.Background(), t, q, supervisor.Settings{RequeueDelay: delay}, failing("failed"))
		require.NoError(t, err)
		snapshot := get(t, q, "a")
		require.True(t, snapshot.NextDueAt.After(time.Now().Add(24*time.Hour)), "due at %v", snapshot.NextDueAt)
		require.LessOrEqual(t, snapshot.NextDueAt.Year(), 9999)
		_, err = json.Marshal(snapshot)
		require.NoError(t, err)
		require.Empty(t, claim(t, q, 1))
	}
}

// Timers that were missed for two days arrive together, in order, again after a
// failure, and never again once they are consumed.
func TestTwoDaysOfMissedTimers(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	i := instance(t, "a")
	_, err := q.Start(ctx, i, time.Now().Add(time.Hour))
	require.NoError(t, err)
	const timers = 576
	first := time.Now().Add(-48 * time.Hour)
	var wanted []string
	tx, err := q.pool.Begin(ctx)
	require.NoError(t, err)
	for n := range timers {
		id := fmt.Sprintf("timer %03d", n)
		wanted = append(wanted, id)
		wakeup := supervisor.Wakeup{ID: id, Kind: "timer", Payload: rawJSON(`{"kind":"tick"}`)}
		require.NoError(t, q.DeliverTx(ctx, tx, testTenant, "a", wakeup, first.Add(time.Duration(n)*5*time.Minute)))
	}
	require.NoError(t, tx.Commit(ctx))
	var got []string
	passes := 0
	evaluating := func(d supervisor.Disposition, err error) evaluate {
		return func(_ context.Context, _ int, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			passes++
			got = nil
			for n := range item.Wakeups {
				got = append(got, item.Wakeups[n].ID)
			}
			if err != nil {
				return supervisor.TransitionCommand{}, err
			}
			c, err := supervisor.NewCommand(item, "caught up", nil, nil, d)
			c.ConsumedWakeups = got
			return c, err
		}
	}
	settings := supervisor.Settings{RequeueDelay: time.Second}
	_, err = onePass(ctx, t, q, settings, evaluating(nil, errors.New("failed")))
	require.NoError(t, err)
	require.Equal(t, wanted, got)
	require.Equal(t, timers, get(t, q, "a").PendingWakeups)
	require.Empty(t, claim(t, q, 1), "it backs off")
	time.Sleep(1200 * time.Millisecond)
	began := time.Now()
	_, err = onePass(ctx, t, q, settings, evaluating(supervisor.Continue{Delay: time.Minute}, nil))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, wanted, got)
	require.Equal(t, 2, passes)
	snapshot := get(t, q, "a")
	require.Zero(t, snapshot.PendingWakeups)
	require.EqualValues(t, 2, snapshot.StateVersion)
	require.Empty(t, claim(t, q, 1))
}

// Equal ids in two tenants are two instances in every respect.
func TestEqualIDsInTwoTenants(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	tenants := []string{"t1", "t2"}
	for _, tenant := range tenants {
		i := instance(t, "inst-1")
		i.TenantID = tenant
		_, err := q.Start(ctx, i, zero)
		require.NoError(t, err)
	}
	_, err := onePass(ctx, t, q, supervisor.Settings{}, failing("failed"))
	require.NoError(t, err)
	for _, tenant := range tenants {
		require.Equal(t, 1, getOf(t, q, tenant, "inst-1").Attempt)
		require.NoError(t, q.Retry(ctx, tenant, "inst-1"))
	}
	items := claim(t, q, 2)
	require.Len(t, items, 2)
	other := getOf(t, q, items[1].TenantID, "inst-1").LeaseEndsAt
	require.NoError(t, q.Renew(ctx, leaseOf(&items[0], 2*testLease)))
	require.Equal(t, other, getOf(t, q, items[1].TenantID, "inst-1").LeaseEndsAt)
	for n := range items {
		c := command(t, &items[n], complete)
		c.DeliveryKey = "run-1"
		require.NoError(t, q.CommitCommand(ctx, &items[n], &c))
		require.Equal(t, supervisor.StatusCompleted, getOf(t, q, items[n].TenantID, "inst-1").Status)
	}
}

// Any error text is recorded, as valid text of bounded length.
func TestHostileErrorTexts(t *testing.T) {
	for name, text := range map[string]string{
		"NUL": "bad\x00byte", "broken": "bad \xff\xfe", "surrogate": "\xed\xa0\x80", "long": strings.Repeat("ä", 5<<20/2),
	} {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", panics: ", panics), func(t *testing.T) {
				q := newQueue(t, Options{})
				start(t, q, "a")
				_, err := onePass(context.Background(), t, q, supervisor.Settings{},
					func(context.Context, int, *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
						if panics {
							panic(text)
						}
						return supervisor.TransitionCommand{}, errors.New(text)
					})
				require.NoError(t, err)
				snapshot := get(t, q, "a")
				require.Equal(t, 1, snapshot.Attempt)
				require.NotEmpty(t, snapshot.LastError)
				require.True(t, utf8.ValidString(snapshot.LastError))
				require.NotContains(t, snapshot.LastError, "\x00")
				require.LessOrEqual(t, len(snapshot.LastError), supervisor.MaxReasonBytes)
				if name == "long" {
					require.Contains(t, snapshot.LastError, "ääää")
					var payload struct{ Error string }
					require.NoError(t, json.Unmarshal(history(t, q, "a")[0].Payload, &payload))
					require.Equal(t, snapshot.LastError, payload.Error)
				}
				require.Empty(t, claim(t, q, 1))
			})
		}
	}
}

// A cancel between claim and commit refuses the commit with all that was in it;
// the next claim converges.
func TestCancelBetweenClaimAndCommit(t *testing.T) {
	for _, remembered := range []bool{true, false} {
		t.Run(fmt.Sprint("remembered: ", remembered), func(t *testing.T) {
			q := newQueue(t, Options{})
			ctx := context.Background()
			start(t, q, "a")
			item := claimOne(t, q)
			c := command(t, &item, complete)
			c.ActionIntents = []supervisor.ActionIntent{intent(&item, "i")}
			require.NoError(t, q.Cancel(ctx, testTenant, "a"))
			if !remembered {
				q.held.forget(instanceKey{testTenant, "a"}, item.LeaseVersion)
			}
			require.ErrorIs(t, q.CommitCommand(ctx, &item, &c), supervisor.ErrEpochStale)
			require.ErrorIs(t, commit(t, q, &item, complete), supervisor.ErrEpochStale)
			require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.intent"))
			require.Zero(t, get(t, q, "a").StateVersion)
			require.NoError(t, q.Release(ctx, &item, "revoked"))
			item = claimOne(t, q)
			require.True(t, item.CancelRequested)
			require.NoError(t, commit(t, q, &item, complete))
			require.Equal(t, supervisor.StatusCancelled, get(t, q, "a").Status)
			require.Empty(t, claim(t, q, 1))
		})
	}
}

func intent(item *supervisor.WorkItem, id string) supervisor.ActionIntent {
	return supervisor.ActionIntent{
		ID: id, TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID,
		Capability: item.CapabilityPins[0], IdempotencyKey: id, State: supervisor.ActionPrepared,
		Input: rawJSON(`{}`), Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNone,
		ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}
}

// A registry whose drivers own no specs claims nothing; it is not one that wants
// everything.
func TestDriverWithoutSpecsClaimsNothing(t *testing.T) {
	q := newQueue(t, Options{})
	i := instance(t, "a")
	i.SpecID = "other"
	_, err := q.Start(context.Background(), i, zero)
	require.NoError(t, err)
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(t, registry.Register(specless{}))
	stats, err := supervisor.RunDuePass(context.Background(), q, registry, supervisor.Settings{}, func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	require.Equal(t, supervisor.Stats{}, stats)
	require.Zero(t, get(t, q, "a").LeaseVersion)
}

// specless is a driver that owns no spec.
type specless struct{}

func (specless) Name() string                               { return "specless" }
func (specless) SpecIDs() []string                          { return nil }
func (specless) ValidateSpecs() error                       { return nil }
func (specless) SupportsRevision(*supervisor.WorkItem) bool { return true }
func (specless) Evaluate(context.Context, int, *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	return supervisor.TransitionCommand{}, errors.New("evaluated")
}
