package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// sustainedInstances take turns for as long as it lasts, and never complete.
const sustainedInstances = 10_000

// sustainedCase runs until ctx ends and counts in progress.
type sustainedCase struct {
	name    string
	prepare func(ctx context.Context, s *stage) (run func(context.Context) error, progress *atomic.Int64, stop func(), err error)
}

// endless is a target that no run reaches.
const endless = 1 << 50

func sustainedCases() []sustainedCase {
	cases := []sustainedCase{{"by hand, pgx, moving due times", func(ctx context.Context, s *stage) (func(context.Context) error, *atomic.Int64, func(), error) {
		h, err := newHandLoop(ctx, s, sustainedInstances, 0, true)
		if err != nil {
			return nil, nil, nil, err
		}
		h.target = endless
		return func(ctx context.Context) error {
			_, err := h.run(ctx)
			return err
		}, h.progress, func() {}, nil
	}}}
	for _, keep := range []bool{false, true} {
		name := "pgqueue, a claim each"
		if keep {
			name = "pgqueue"
		}
		cases = append(cases, sustainedCase{name, func(ctx context.Context, s *stage) (func(context.Context) error, *atomic.Int64, func(), error) {
			q, _, err := openPgqueue(ctx, s, pgSeed{due: sustainedInstances, tenants: 1})
			if err != nil {
				return nil, nil, nil, err
			}
			w := newSupervised(q, keep, 0, endless)
			return func(ctx context.Context) error {
				_, err := w.run(ctx)
				return err
			}, w.progress, q.Close, nil
		}})
	}
	return cases
}

// sustained runs each case for some minutes and records the throughput of each
// window.
func (b *bench) sustained(ctx context.Context) error {
	for _, c := range sustainedCases() {
		if !b.wanted(c.name) {
			continue
		}
		if err := b.sustainedOnce(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func (b *bench) sustainedOnce(ctx context.Context, c sustainedCase) (err error) {
	s, err := newStage(ctx, b.db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	run, progress, stop, err := c.prepare(ctx, s)
	if err != nil {
		return err
	}
	defer stop()
	b.db.checkpoint(ctx)
	running, cancel := context.WithTimeout(ctx, b.lasting)
	defer cancel()
	ended := make(chan error, 1)
	// Ends with running.
	go func() { ended <- run(running) }()
	ticker := time.NewTicker(b.window)
	defer ticker.Stop()
	last, lastAt := int64(0), time.Now()
	for window := 0; ; {
		select {
		case now := <-ticker.C:
			count := progress.Load()
			b.record("sustained", Measurement{c.name, window, map[string]float64{
				perSecond: float64(count-last) / now.Sub(lastAt).Seconds(),
			}})
			last, lastAt = count, now
			window++
		case err := <-ended:
			// The end of the time is how it is meant to end.
			if ctx.Err() == nil && running.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			return errors.Join(err, ctx.Err())
		}
	}
}
