package supervisor

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// memWaited waits for the specs, at most a day, and returns how long it took.
func memWaited(t *testing.T, q *MemoryWorkQueue, specIDs ...string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), memWaitLimit)
	defer cancel()
	began := time.Now()
	if err := q.WaitDue(ctx, specIDs); err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Empty(t, q.waiters, "a waiter that returned is still registered")
	return time.Since(began)
}

const memWaitLimit = 24 * time.Hour

func TestMemoryWaitDueWakesFor(t *testing.T) {
	ctx := context.Background()
	wakeup := Wakeup{ID: "w", Kind: "signal"}
	instance := Scope{TenantID: "t1", InstanceID: "a"}
	claimFor := func(t *testing.T, q *MemoryWorkQueue, lease time.Duration) *WorkItem {
		items, err := q.ClaimDue(ctx, ClaimRequest{WorkerID: "w", LeaseDuration: lease, Limit: 1})
		require.NoError(t, err)
		require.Len(t, items, 1)
		return &items[0]
	}
	claim := func(t *testing.T, q *MemoryWorkQueue) *WorkItem { return claimFor(t, q, 48*time.Hour) }
	for name, test := range map[string]struct {
		// prepare leaves nothing due that no claim has seen, act makes an
		// instance due a minute later.
		prepare func(t *testing.T, q *MemoryWorkQueue) *WorkItem
		act     func(t *testing.T, q *MemoryWorkQueue, item *WorkItem)
	}{
		"a start": {act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) {
			_, err := q.Start(ctx, memInstance("b"), time.Time{})
			require.NoError(t, err)
		}},
		"a push": {act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) { q.Push(memItem("b")) }},
		"a delivery": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				item := claim(t, q)
				memCommit(t, q, item, Reschedule{At: endOfCalendar()})
				return nil
			},
			act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) {
				require.NoError(t, q.Deliver(ctx, "t1", "a", wakeup, time.Time{}))
			},
		},
		"a cancel": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				memCommit(t, q, claim(t, q), Continue{Delay: 48 * time.Hour})
				return nil
			},
			act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) { require.NoError(t, q.Cancel(ctx, "t1", "a")) },
		},
		"a retry": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				memCommit(t, q, claim(t, q), Failed{Reason: "for good"})
				return nil
			},
			act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) { require.NoError(t, q.Retry(ctx, "t1", "a")) },
		},
		"a resume": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				require.NoError(t, q.Pause(ctx, instance))
				require.Empty(t, memClaim(t, q, 1))
				return nil
			},
			act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) { require.NoError(t, q.Resume(ctx, instance)) },
		},
		"a resume of the tenant": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				require.NoError(t, q.Pause(ctx, Scope{TenantID: "t1"}))
				require.Empty(t, memClaim(t, q, 1))
				return nil
			},
			act: func(t *testing.T, q *MemoryWorkQueue, _ *WorkItem) {
				require.NoError(t, q.Resume(ctx, Scope{TenantID: "t1"}))
			},
		},
		"a release": {
			prepare: claim,
			act: func(t *testing.T, q *MemoryWorkQueue, item *WorkItem) {
				require.NoError(t, q.Release(ctx, item, ""))
			},
		},
		"a commit": {
			prepare: claim,
			act:     func(t *testing.T, q *MemoryWorkQueue, item *WorkItem) { memCommit(t, q, item, Continue{}) },
		},
		"the next due time": {prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
			memCommit(t, q, claim(t, q), Continue{Delay: time.Minute})
			return nil
		}},
		"the next lease end": {prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
			return claimFor(t, q, time.Minute)
		}},
		"a due time that a commit sets": {
			prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
				item := claim(t, q)
				time.AfterFunc(10*time.Second, func() {
					command := memCommand(t, item, Continue{Delay: 50 * time.Second})
					require.NoError(t, q.CommitCommand(ctx, item, &command))
				})
				return nil
			},
		},
		"the end of a lease that begins meanwhile": {prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
			q.Push(memItem("left by the claim"))
			item := claim(t, q)
			time.AfterFunc(10*time.Second, func() { claimFor(t, q, 50*time.Second) })
			return item
		}},
		"the end of a lease whose renewal shortens it": {prepare: func(t *testing.T, q *MemoryWorkQueue) *WorkItem {
			item := claim(t, q)
			lease := memLeaseOf(item)
			lease.Duration = time.Hour
			require.NoError(t, q.Renew(ctx, lease))
			time.AfterFunc(10*time.Second, func() {
				lease.Duration = 50 * time.Second
				require.NoError(t, q.Renew(ctx, lease))
			})
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewMemoryWorkQueue(memItem("a"))
				var item *WorkItem
				if test.prepare != nil {
					item = test.prepare(t, q)
				} else {
					memCommit(t, q, claim(t, q), Complete{})
				}
				if test.act != nil {
					time.AfterFunc(time.Minute, func() { test.act(t, q, item) })
				}
				require.Equal(t, time.Minute, memWaited(t, q, "spec"))
				require.Len(t, memClaim(t, q, 1, "spec"), 1)
			})
		})
	}
}

func TestMemoryWaitDueSleepsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		q := NewMemoryWorkQueue()
		memPush(q, "t1", "x", "a", time.Time{})
		memPush(q, "t1", "x", "b", time.Time{})
		require.Len(t, memClaim(t, q, 1, "x"), 1)
		time.AfterFunc(time.Second, func() { memPush(q, "t1", "y", "other spec", time.Time{}) })
		memPush(q, "t1", "y", "other spec, later", now.Add(3*time.Second))
		memPush(q, "t1", "x", "behind what was left", now.Add(10*time.Second))
		require.Equal(t, 10*time.Second, memWaited(t, q, "x"), "what a claim left untouched, or another spec, woke it")
		require.Len(t, memClaim(t, q, 1, "x"), 1)
		require.Equal(t, 50*time.Second, memWaited(t, q, "x"), "not woken by the end of its lease")

		q = NewMemoryWorkQueue(memItem("a"), memItem("b"))
		items := memClaim(t, q, 2)
		memCommit(t, q, &items[1], Reschedule{At: time.Now().AddDate(100, 0, 0)})
		lease := memLeaseOf(&items[0])
		for n := range 5 {
			time.AfterFunc(time.Duration(n)*30*time.Second, func() {
				if err := q.Renew(context.Background(), lease); err != nil {
					panic(err)
				}
			})
		}
		require.Equal(t, 3*time.Minute, memWaited(t, q), "renewed leases woke it")
		items = memClaim(t, q, 2)
		memCommit(t, q, &items[0], Complete{})
		require.Equal(t, memWaitLimit, memWaited(t, q), "nothing is due for a century")
	})
}

func TestMemoryWaitDueMissesNothingBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		require.Zero(t, memWaited(t, q), "due, and no claim has seen it")
		require.Zero(t, memWaited(t, q, "unknown", "spec"))
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Continue{Delay: time.Second})
		time.Sleep(time.Second)
		require.Zero(t, memWaited(t, q, "spec"), "fell due between claim and wait")
		require.Empty(t, memClaim(t, q, 1, "other"), "a claim of another spec")
		require.Zero(t, memWaited(t, q, "spec"))
		item = memClaimOne(t, q)
		time.Sleep(time.Minute)
		require.Zero(t, memWaited(t, q), "a lease ended between claim and wait")

		q = NewMemoryWorkQueue(memItem("a"), memItem("left by the claim"))
		memPush(q, "t1", "spec", "behind it", time.Now().Add(time.Second))
		require.Len(t, memClaim(t, q, 1), 1)
		time.Sleep(2 * time.Second)
		require.Zero(t, memWaited(t, q, "spec"), "fell due behind what a claim left")
		require.Zero(t, memWaited(t, q))
	})
}

// A waiter whose time has come returns, also when a claim of another worker was
// there first and left something.
func TestMemoryWaitDueOvertakenByAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		memPush(q, "t1", "spec", "a", time.Now().Add(time.Second))
		memPush(q, "t1", "spec", "left by the claim", time.Now().Add(time.Second))
		w := &memWaiter{nextDue: math.MaxInt64, wake: make(chan struct{}, 1)}
		due, delay := q.watch(w)
		require.False(t, due)
		require.Equal(t, time.Second, delay)
		time.Sleep(time.Second)
		require.Len(t, memClaim(t, q, 1), 1)
		due, _ = q.watch(w)
		require.True(t, due)
	})
}

func TestMemoryWaitDueSetsNoTimerForACentury(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for years, want := range map[int]bool{99: true, 100: false, 1000: false} {
			q := NewMemoryWorkQueue()
			memPush(q, "t1", "spec", "a", time.Now().AddDate(years, 0, 0))
			_, delay := q.watch(&memWaiter{nextDue: math.MaxInt64, wake: make(chan struct{}, 1)})
			require.Equal(t, want, delay > 0, "%d years", years)
		}
	})
}

func TestMemoryWaitDueWakesAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		var woken sync.WaitGroup
		for n := range 10 {
			woken.Go(func() {
				if err := q.WaitDue(t.Context(), []string{fmt.Sprint(n % 2), "spec"}); err != nil {
					panic(err)
				}
			})
		}
		synctest.Wait()
		require.Len(t, q.waiters, 10)
		q.Push(memItem("a"))
		require.Len(t, memClaim(t, q, 1), 1, "claimed before any of them looks")
		began := time.Now()
		woken.Wait()
		require.Zero(t, time.Since(began), "woken only by the end of the lease")
		require.Empty(t, q.waiters)
	})
}

// Workers that claim until nothing is due and then wait serve every instance at
// the very instant at which it is due.
func TestMemoryWorkersAreNeverLate(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		q := NewMemoryWorkQueue()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		left, served := 400, 0
		var workers sync.WaitGroup
		for n := range 5 {
			specIDs := [][]string{nil, {"x"}, {"y"}, {"x", "y", "z"}, {"z"}}[n]
			limit := 1 + random.IntN(3)
			workers.Go(func() {
				for {
					items, err := q.ClaimDue(ctx, ClaimRequest{SpecIDs: specIDs, WorkerID: "w", LeaseDuration: time.Minute, Limit: limit})
					if err == nil && len(items) == 0 {
						err = q.WaitDue(ctx, specIDs)
					}
					if err != nil {
						return
					}
					for n := range items {
						if !items[n].ClaimedAt.Equal(items[n].ScheduledAt) {
							t.Errorf("%s was due at %v, but claimed at %v", items[n].ID, items[n].ScheduledAt, items[n].ClaimedAt)
						}
						mu.Lock()
						served++
						var d Disposition = Complete{}
						switch random.IntN(4) {
						case 0:
							d = Continue{}
						case 1:
							d = Continue{Delay: time.Duration(random.IntN(1000)) * time.Millisecond}
						default:
							if left--; left == 0 {
								cancel()
							}
						}
						mu.Unlock()
						command, err := NewCommand(&items[n], "step", nil, 1, d)
						if err == nil {
							err = q.CommitCommand(t.Context(), &items[n], &command)
						}
						if err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		for n := range left {
			mu.Lock()
			due := time.Now().Add(time.Duration(random.IntN(5000)) * time.Millisecond)
			tenant, spec := fmt.Sprint("t", random.IntN(3)), []string{"x", "y", "z"}[random.IntN(3)]
			pause := time.Duration(random.IntN(20)) * time.Millisecond
			mu.Unlock()
			memPush(q, tenant, spec, fmt.Sprint(n), due)
			time.Sleep(pause)
		}
		workers.Wait()
		require.Zero(t, left)
		require.Len(t, q.Committed(), served)
	})
}
