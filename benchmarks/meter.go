package main

import (
	"context"
	"runtime"
	"syscall"
	"time"
)

// reading is the state of all meters at one moment.
type reading struct {
	at             time.Time
	client, server float64
	hasServer      bool
	// busy is the processor time of the whole machine.
	busy    float64
	hasBusy bool
	wal     int64
	mallocs uint64
}

// meter reads what this process and the server have used. Without a database it
// reads this process alone.
type meter struct{ db *database }

func (m meter) read(ctx context.Context) (r reading, err error) {
	if m.db != nil {
		if r.wal, err = m.db.wal(ctx); err != nil {
			return r, err
		}
		r.server, r.hasServer = m.db.serverSeconds()
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	r.mallocs = memory.Mallocs
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return r, err
	}
	r.busy, r.hasBusy = busySeconds()
	r.client = float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	r.at = time.Now()
	return r, nil
}

// measure runs work between two readings and returns what a unit of it took.
// What earlier work left is cleared before.
func (m meter) measure(ctx context.Context, work func(context.Context) (units int, err error)) (map[string]float64, error) {
	runtime.GC()
	if m.db != nil {
		m.db.checkpoint(ctx)
	}
	before, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	units, err := work(ctx)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(before.at)
	after, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	return perUnit(before, after, elapsed, units), nil
}

// perUnit divides the difference of two readings by the units between them.
func perUnit(before, after reading, elapsed time.Duration, units int) map[string]float64 {
	n := float64(units)
	values := map[string]float64{
		perSecond:     n / elapsed.Seconds(),
		clientSeconds: (after.client - before.client) / n * 1000,
		allocations:   float64(after.mallocs-before.mallocs) / n,
	}
	if after.hasServer && before.hasServer {
		values[serverSeconds] = (after.server - before.server) / n * 1000
	}
	if after.hasBusy && before.hasBusy {
		ours := after.client - before.client + after.server - before.server
		share := (after.busy - before.busy - ours) / (elapsed.Seconds() * float64(runtime.NumCPU()))
		values[others] = min(max(share, 0), 1)
	}
	if after.wal > 0 {
		values[walBytes] = float64(after.wal-before.wal) / n
	}
	return values
}
