package supervisor

import (
	"math"
	"time"
)

// memHeap is a min-heap whose members know their place, so that any of them can
// be moved or removed in logarithmic time. Keys lie beside one another in the
// heap: comparing them follows no pointer, which is what a heap of a million
// members spends its time on.
type memHeap[T any] struct {
	entries []memEntry[T]
}

// memEntry is one member. seq orders members with equal keys.
type memEntry[T any] struct {
	key   int64
	seq   uint64
	value *T
	// place is where the member keeps its index plus one; zero is outside the heap.
	place *int32
}

// memHeapArity is the number of children of a node: with four of them the heap
// is half as deep as a binary one, and they share two cache lines.
const memHeapArity = 4

func (h *memHeap[T]) len() int { return len(h.entries) }

// top returns the least member of a heap that is not empty.
func (h *memHeap[T]) top() *memEntry[T] { return &h.entries[0] }

// put adds a member, or moves the one that is already there to a new key.
func (h *memHeap[T]) put(place *int32, value *T, key int64, seq uint64) {
	if *place == 0 {
		h.entries = append(h.entries, memEntry[T]{})
		h.up(len(h.entries)-1, memEntry[T]{key: key, seq: seq, value: value, place: place})
		return
	}
	n := int(*place - 1)
	old := h.entries[n]
	moved := memEntry[T]{key: key, seq: seq, value: value, place: place}
	if moved.less(&old) {
		h.up(n, moved)
	} else {
		h.down(n, moved)
	}
}

// remove takes a member out; one that is not there stays outside.
func (h *memHeap[T]) remove(place *int32) {
	if *place == 0 {
		return
	}
	n := int(*place - 1)
	*place = 0
	last := len(h.entries) - 1
	moved := h.entries[last]
	h.entries[last] = memEntry[T]{}
	h.entries = h.entries[:last]
	if n == last {
		return
	}
	if n > 0 && moved.less(&h.entries[(n-1)/memHeapArity]) {
		h.up(n, moved)
	} else {
		h.down(n, moved)
	}
}

func (e *memEntry[T]) less(other *memEntry[T]) bool {
	return e.key < other.key || (e.key == other.key && e.seq < other.seq)
}

// up settles an entry at n or above it.
func (h *memHeap[T]) up(n int, entry memEntry[T]) {
	for n > 0 {
		parent := (n - 1) / memHeapArity
		if !entry.less(&h.entries[parent]) {
			break
		}
		h.set(n, h.entries[parent])
		n = parent
	}
	h.set(n, entry)
}

// down settles an entry at n or below it.
func (h *memHeap[T]) down(n int, entry memEntry[T]) {
	for {
		first := n*memHeapArity + 1
		if first >= len(h.entries) {
			break
		}
		least := first
		for child := first + 1; child < min(first+memHeapArity, len(h.entries)); child++ {
			if h.entries[child].less(&h.entries[least]) {
				least = child
			}
		}
		if !h.entries[least].less(&entry) {
			break
		}
		h.set(n, h.entries[least])
		n = least
	}
	h.set(n, entry)
}

func (h *memHeap[T]) set(n int, entry memEntry[T]) {
	h.entries[n] = entry
	*entry.place = int32(n + 1)
}

// first returns the least member that matches, nil for none. It looks only at
// members that are less than the one it finds.
func (h *memHeap[T]) first(match func(*memEntry[T]) bool) *memEntry[T] {
	return h.firstBelow(0, nil, match)
}

func (h *memHeap[T]) firstBelow(n int, best *memEntry[T], match func(*memEntry[T]) bool) *memEntry[T] {
	if n >= len(h.entries) {
		return best
	}
	entry := &h.entries[n]
	if best != nil && !entry.less(best) {
		return best
	}
	if match(entry) {
		return entry
	}
	for child := n*memHeapArity + 1; child <= n*memHeapArity+memHeapArity; child++ {
		best = h.firstBelow(child, best, match)
	}
	return best
}

// instantKey is an instant as a heap key: nanoseconds, exact for as long as the
// queue's own clock can be, the ends of the range standing for what lies beyond.
func instantKey(t time.Time) int64 {
	switch seconds := t.Unix(); {
	case seconds > math.MaxInt64/int64(time.Second)-1:
		return math.MaxInt64
	case seconds < math.MinInt64/int64(time.Second)+1:
		return math.MinInt64
	default:
		return seconds*int64(time.Second) + int64(t.Nanosecond())
	}
}
