package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// startsPerSecond is how often something is started on an idle system.
const startsPerSecond = 20

// latencyCase is one way to start something and have it run.
type latencyCase struct {
	name, about string
	// across: starts come from another process.
	across bool
	// reference names the case that ratios refer to.
	reference string
	// prepare makes a system run that calls began in the first line of what was
	// started, and returns what starts one thing. A case across processes
	// returns the kind of its starter instead.
	prepare func(ctx context.Context, s *stage, began func(id string)) (latencySystem, error)
}

// latencySystem is a system that waits for starts.
type latencySystem struct {
	start func(ctx context.Context, id string) error
	// starter is the kind of starter for another process.
	starter string
	stop    func() error
}

// arrivals notes when something began.
type arrivals struct {
	mu    sync.Mutex
	at    map[string]time.Time
	count int
	want  int
	all   chan struct{}
}

func newArrivals(want int) *arrivals {
	return &arrivals{at: make(map[string]time.Time), want: want, all: make(chan struct{})}
}

// began notes the first time that something began.
func (a *arrivals) began(id string) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, again := a.at[id]; again {
		return
	}
	a.at[id] = now
	if a.count++; a.count == a.want {
		close(a.all)
	}
}

// warmups are starts that are not counted: connections and plans are made then.
const warmups = 5

// latency starts one thing after the other in each case, at random moments of
// their slots, and records the time from before the start to the first line of
// what was started.
func (b *bench) latency(ctx context.Context) error {
	for round := range b.rounds {
		for _, c := range latencyCases() {
			if !b.wanted(c.name) {
				continue
			}
			times, share, err := b.latencyOnce(ctx, &c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			values := map[string]float64{
				p50: percentile(times, 50), p99: percentile(times, 99), highest: percentile(times, 100), samples: float64(len(times)),
			}
			maps.Copy(values, share)
			b.record(partLatency, Measurement{c.name, round, values})
		}
	}
	return nil
}

// latencyTimeout bounds how long the last arrival is waited for.
const latencyTimeout = time.Minute

// latencyOnce returns the times of one round in milliseconds, and how much
// others disturbed it where the system tells.
func (b *bench) latencyOnce(ctx context.Context, c *latencyCase) (times []float64, share map[string]float64, err error) {
	count := max(b.scaled(b.starts), 1) + warmups
	s, err := newStage(ctx, b.db)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	arrived := newArrivals(count)
	system, err := c.prepare(ctx, s, arrived.began)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, system.stop()) }()
	before, err := meter{db: b.db}.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	var started []time.Time
	if c.across {
		var finish func() error
		if started, finish, err = startElsewhere(ctx, system.starter, b.dsn, s.schema, count); err == nil {
			defer func() { err = errors.Join(err, finish()) }()
		}
	} else {
		started, err = startSlots(ctx, count, system.start)
	}
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-arrived.all:
	case <-time.After(latencyTimeout):
		return nil, nil, errors.New("not all that was started began")
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	after, err := meter{db: b.db}.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	share = make(map[string]float64)
	if v, ok := perUnit(before, after, after.at.Sub(before.at), count)[others]; ok {
		share[others] = v
	}
	for n := warmups; n < count; n++ {
		times = append(times, float64(arrived.at[slotID(n)].Sub(started[n]).Microseconds())/1000)
	}
	return times, share, nil
}

func slotID(n int) string { return "start-" + strconv.Itoa(n) }

// startSlots starts things one by one at random moments of their slots, so that
// polling is seen fairly, and returns when it began each start.
func startSlots(ctx context.Context, count int, start func(ctx context.Context, id string) error) ([]time.Time, error) {
	const slot = time.Second / startsPerSecond
	began := time.Now()
	started := make([]time.Time, count)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for n := range count {
		timer.Reset(time.Until(began.Add(time.Duration(n)*slot + rand.N(slot*9/10))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// Wall time: it is compared with that of another process.
		started[n] = time.Now().Round(0)
		if err := start(ctx, slotID(n)); err != nil {
			return nil, err
		}
	}
	return started, nil
}
