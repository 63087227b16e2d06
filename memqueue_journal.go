package supervisor

import "slices"

// journal is a list that only grows, in chunks, so that growing never copies
// what is there and a reader needs no lock for what it has seen.
type journal[T any] struct {
	chunks [][]T
}

// Chunks double from the first size, so that a short list takes little, up to
// the largest.
const (
	firstJournalChunk   = 8
	largestJournalChunk = 256
)

// next appends a zero entry, for the caller to fill before it unlocks.
func (j *journal[T]) next() *T {
	last := len(j.chunks) - 1
	if last < 0 || len(j.chunks[last]) == cap(j.chunks[last]) {
		size := firstJournalChunk
		if last >= 0 {
			size = min(2*cap(j.chunks[last]), largestJournalChunk)
		}
		j.chunks = append(j.chunks, make([]T, 0, size))
		last++
	}
	chunk := &j.chunks[last]
	*chunk = (*chunk)[:len(*chunk)+1]
	return &(*chunk)[len(*chunk)-1]
}

func (j *journal[T]) snapshot() [][]T { return slices.Clone(j.chunks) }

func count[T any](chunks [][]T) int {
	n := 0
	for _, chunk := range chunks {
		n += len(chunk)
	}
	return n
}
