package main

import (
	"container/heap"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// memoryHand is the least that a queue in memory can be: a mutex, a heap by due
// time, a lease and a fence per item, and a slice of events.
type memoryHand struct {
	mu     sync.Mutex
	due    memoryHeap
	events []memoryEvent
	left   int
}

type memoryItem struct {
	due, leaseUntil    time.Time
	id, fence, version int64
	state              string
}

type memoryEvent struct {
	id, version int64
	at          time.Time
	payload     string
}

type memoryHeap []*memoryItem

func (h memoryHeap) Len() int           { return len(h) }
func (h memoryHeap) Less(a, b int) bool { return h[a].due.Before(h[b].due) }
func (h memoryHeap) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *memoryHeap) Push(item any)     { *h = append(*h, item.(*memoryItem)) }
func (h *memoryHeap) Pop() any {
	last := len(*h) - 1
	item := (*h)[last]
	*h = (*h)[:last]
	return item
}

func (m *memoryHand) run(context.Context) (done int, err error) {
	for m.left > 0 {
		m.mu.Lock()
		item := heap.Pop(&m.due).(*memoryItem)
		now := time.Now()
		item.leaseUntil = now.Add(time.Minute)
		item.fence++
		fence := item.fence
		m.mu.Unlock()
		step := `{"step":` + strconv.FormatInt(item.version+1, 10) + `}`
		m.mu.Lock()
		if item.fence == fence {
			item.version++
			item.state, item.due = step, now
			m.events = append(m.events, memoryEvent{item.id, item.version, now, step})
			done++
			if item.version == transitionsPerInstance {
				m.left--
			} else {
				heap.Push(&m.due, item)
			}
		}
		m.mu.Unlock()
	}
	return done, nil
}

func (m *memoryHand) close() error { return nil }

func memoryHandContender(name string) *contender {
	return &contender{
		name:  name,
		about: "a mutex, a heap and a slice of events, one goroutine",
		unit:  "a claim, a state and an event",
		lacks: "everything but lease, fence and event",
		units: 500_000,
		prepare: func(_ context.Context, _ *stage, units int) (work, error) {
			m := &memoryHand{left: max(units/transitionsPerInstance, 1)}
			now := time.Now()
			for n := range m.left {
				heap.Push(&m.due, &memoryItem{id: int64(n), due: now})
			}
			return m, nil
		},
	}
}

type memoryWork struct{ *supervised }

func (memoryWork) close() error { return nil }

// memoryHistory is how many commits the queue records before it is told to
// forget them.
const memoryHistory = 1 << 14

func memoryContender(name string, keep bool) *contender {
	about := "MemoryWorkQueue, Supervisor.Run with 256 in flight, a claim per transition"
	if keep {
		about = "the same, claims are kept from one transition to the next (the default)"
	}
	return &contender{
		name:  name,
		about: about,
		unit:  "a claim, a state, an event and a record of the commit for tests",
		lacks: "nothing",
		units: 200_000,
		prepare: func(ctx context.Context, _ *stage, units int) (work, error) {
			q := supervisor.NewMemoryWorkQueue()
			instances := max(units/transitionsPerInstance, 1)
			for n := range instances {
				instance, err := benchInstance(tenantName(0), "due-"+strconv.Itoa(n))
				if err != nil {
					return nil, err
				}
				if _, err := q.Start(ctx, instance, time.Time{}); err != nil {
					return nil, err
				}
			}
			s := newSupervised(q, keep, transitionsPerInstance, instances*transitionsPerInstance)
			s.committed = func(count int64) {
				if count%memoryHistory == 0 {
					q.ClearHistory()
				}
			}
			return memoryWork{s}, nil
		},
	}
}
