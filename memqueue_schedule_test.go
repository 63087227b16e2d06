package supervisor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// modelRow is one instance as the plain model of the schedule knows it.
type modelRow struct {
	tenant, spec, id string
	due              time.Time
	seq              int
	leaseEnd         time.Time
	paused, finished bool
	item             WorkItem
}

// scheduleModel says which instance a claim may get next by looking at all of
// them.
type scheduleModel struct {
	rows         []*modelRow
	seq, turn    int
	served       map[string]int
	pausedTenant map[string]bool
}

func (m *scheduleModel) schedule(row *modelRow, due time.Time) {
	m.seq++
	row.due, row.seq, row.leaseEnd = due, m.seq, time.Time{}
}

// next returns what a claim may get now: the first instance of each tenant
// whose turn it is, which are several only where none of them was ever served.
func (m *scheduleModel) next(specIDs []string, now time.Time) []*modelRow {
	first := map[string]*modelRow{}
	for _, row := range m.rows {
		if row.finished || row.paused || m.pausedTenant[row.tenant] || row.due.After(now) || row.leaseEnd.After(now) ||
			(len(specIDs) > 0 && !slices.Contains(specIDs, row.spec)) {
			continue
		}
		best := first[row.tenant]
		if best == nil || row.due.Before(best.due) || (row.due.Equal(best.due) && row.seq < best.seq) {
			first[row.tenant] = row
		}
	}
	var turns []*modelRow
	for tenant, row := range first {
		switch {
		case len(turns) == 0 || m.served[tenant] < m.served[turns[0].tenant]:
			turns = []*modelRow{row}
		case m.served[tenant] == m.served[turns[0].tenant]:
			turns = append(turns, row)
		}
	}
	return turns
}

// The order of claims is compared with the model over random claims of random
// specs, commits, releases, lapses, pauses and pushes.
func TestMemoryScheduleAgainstAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, round))
			tenants, specs := 1+random.IntN(6), 1+random.IntN(5)
			q := NewMemoryWorkQueue()
			m := &scheduleModel{served: map[string]int{}, pausedTenant: map[string]bool{}}
			var held []*modelRow
			for range 400 {
				now := time.Now()
				switch random.IntN(10) {
				case 0, 1:
					row := &modelRow{
						tenant: fmt.Sprint("t", random.IntN(tenants)),
						spec:   fmt.Sprint("s", random.IntN(specs)),
						id:     fmt.Sprint(len(m.rows)),
					}
					m.rows = append(m.rows, row)
					m.schedule(row, now.Add(time.Duration(random.IntN(20)-10)*time.Second))
					memPush(q, row.tenant, row.spec, row.id, row.due)
				case 2, 3, 4:
					var specIDs []string
					for n := range specs {
						if random.IntN(3) == 0 {
							specIDs = append(specIDs, fmt.Sprint("s", n))
						}
					}
					limit := 1 + random.IntN(5)
					items, err := q.ClaimDue(t.Context(), ClaimRequest{SpecIDs: specIDs, WorkerID: "w", LeaseDuration: 30 * time.Second, Limit: limit})
					require.NoError(t, err)
					for n := range items {
						turns := m.next(specIDs, now)
						at := slices.IndexFunc(turns, func(row *modelRow) bool {
							return row.tenant == items[n].TenantID && row.id == items[n].ID
						})
						require.GreaterOrEqual(t, at, 0, "claimed %s/%s out of turn", items[n].TenantID, items[n].ID)
						row := turns[at]
						m.turn++
						m.served[row.tenant] = m.turn
						row.leaseEnd, row.item = now.Add(30*time.Second), items[n]
						held = append(held, row)
					}
					if len(items) < limit {
						require.Empty(t, m.next(specIDs, now), "left something that was due")
					}
				case 5, 6, 7:
					if len(held) == 0 {
						continue
					}
					// One that lapsed is here once for each of its claims.
					at := random.IntN(len(held))
					row := held[at]
					held = slices.DeleteFunc(held, func(other *modelRow) bool { return other == row })
					command := memCommand(t, &row.item, Continue{})
					delay := time.Duration(random.IntN(4)) * time.Second
					switch random.IntN(5) {
					case 0:
						command.Disposition = Complete{}
					case 1:
						if q.Release(t.Context(), &row.item, "") == nil {
							row.leaseEnd = time.Time{}
						}
						continue
					default:
						command.Disposition = Continue{Delay: delay}
					}
					if q.CommitCommand(t.Context(), &row.item, &command) == nil {
						m.schedule(row, now.Add(delay))
						row.finished = command.Disposition == Complete{}
					}
				case 8:
					time.Sleep(time.Duration(random.IntN(12)) * time.Second)
				case 9:
					scope := Scope{TenantID: fmt.Sprint("t", random.IntN(tenants))}
					var row *modelRow
					if len(m.rows) > 0 && random.IntN(2) == 0 {
						row = m.rows[random.IntN(len(m.rows))]
						scope = Scope{TenantID: row.tenant, InstanceID: row.id}
					}
					pause := random.IntN(2) == 0
					change := q.Resume
					if pause {
						change = q.Pause
					}
					require.NoError(t, change(t.Context(), scope))
					if row != nil {
						row.paused = pause
					} else {
						m.pausedTenant[scope.TenantID] = pause
					}
				}
			}
		})
	}
}

// What a claim does is counted by the lanes and instances that it touches: with
// a thousand tenants and specs of which few have anything due, few are woken.
func TestMemoryClaimTouchesOnlyWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		for n := range 1000 {
			memPush(q, fmt.Sprint("t", n), fmt.Sprint("s", n%100), fmt.Sprint(n), time.Now().Add(time.Hour))
		}
		for n := range 5 {
			memPush(q, fmt.Sprint("t", n), fmt.Sprint("s", n), fmt.Sprint("due", n), time.Time{})
		}
		require.Len(t, memClaim(t, q, 1, "s0", "s1", "s2"), 1)
		require.Equal(t, 3, q.schedule.awake.len(), "tenants with due work of the wanted specs")
		require.Len(t, memClaim(t, q, 1), 1)
		require.Equal(t, 5, q.schedule.awake.len())
		require.Len(t, memClaim(t, q, 9), 3)
		require.Zero(t, q.schedule.awake.len())
	})
}
