package supervisor

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The heap is compared with a plain list over thousands of random operations.
func TestMemHeapAgainstAList(t *testing.T) {
	type member struct {
		key   int64
		seq   uint64
		place int32
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var heap memHeap[member]
	members := make([]member, 60)
	least := func(match func(*member) bool) *member {
		var best *member
		for n := range members {
			m := &members[n]
			if m.place != 0 && match(m) && (best == nil || m.key < best.key || (m.key == best.key && m.seq < best.seq)) {
				best = m
			}
		}
		return best
	}
	seq := uint64(0)
	for range 20_000 {
		m := &members[random.IntN(len(members))]
		if random.IntN(3) == 0 {
			heap.remove(&m.place)
			require.Zero(t, m.place)
		} else {
			seq++
			m.key, m.seq = random.Int64N(20), seq
			heap.put(&m.place, m, m.key, m.seq)
		}
		best := least(func(*member) bool { return true })
		if best == nil {
			require.Zero(t, heap.len())
			continue
		}
		require.Same(t, best, heap.top().value)
		bound := random.Int64N(20)
		best = least(func(m *member) bool { return m.key > bound })
		found := heap.first(func(entry *memEntry[member]) bool { return entry.key > bound })
		if best == nil {
			require.Nil(t, found)
		} else {
			require.Same(t, best, found.value)
		}
		for n := range heap.entries {
			require.Equal(t, int32(n+1), *heap.entries[n].place)
		}
	}
	for n := range members {
		heap.remove(&members[n].place)
	}
	for _, entry := range heap.entries[:cap(heap.entries)] {
		require.Nil(t, entry.value, "a member that left is still referred to")
	}
}

func TestInstantKeyKeepsTheOrder(t *testing.T) {
	instants := []time.Time{
		{},
		time.Date(1969, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Unix(0, 0),
		time.Date(2026, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Date(2026, 1, 1, 0, 0, 0, 2, time.UTC),
		time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC),
		endOfCalendar(),
	}
	for n := 1; n < len(instants); n++ {
		require.Less(t, instantKey(instants[n-1]), instantKey(instants[n]))
	}
	require.Equal(t, int64(math.MinInt64), instantKey(time.Time{}))
	require.Equal(t, int64(math.MaxInt64), instantKey(endOfCalendar()))
	require.Equal(t, int64(-1), instantKey(instants[1]))
}
